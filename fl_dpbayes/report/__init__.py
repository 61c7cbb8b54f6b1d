"""Tables, figures and the page with its answer.

What comes in: a run's summary and rows. What goes out: text, figures and `report.html`.
"""

from fl_dpbayes.report.headline import headline_predictor
from fl_dpbayes.report.hospitals import hospital_verdicts
from fl_dpbayes.report.numbers import (
    count,
    decimal,
    duration,
    interval,
    points,
    rounded_up,
    significant,
)
from fl_dpbayes.report.page import PAGE, write_report
from fl_dpbayes.report.page_tables import page_table
from fl_dpbayes.report.run_files import (
    CALIBRATION_COLUMNS,
    PRIVACY_COLUMNS,
    PRIVACY_FILE,
    ROUND_COLUMNS,
    ROUNDS_FILE,
    SUMMARY_FILE,
    PrivacyRow,
    RoundRow,
    append_csv,
    calibration_csv_row,
    check_not_cut_off,
    read_summary,
    stored_summary,
    write_calibration,
    write_csv,
    write_summary,
)
from fl_dpbayes.report.study.quantities import over_seeds
from fl_dpbayes.report.summary import (
    AggregationInputs,
    BaselineRecord,
    Baselines,
    ConvergenceRecord,
    EvaluationPrivacyRecord,
    HospitalRecord,
    ParticipationRecord,
    PassRecord,
    PrivacyRecord,
    RecalibrationRecord,
    ReleaseRecord,
    SiteRecord,
    SmallDeltaRecord,
    Summary,
    Traffic,
    parse_summary,
)
from fl_dpbayes.report.tables import (
    calibration_table,
    privacy_overview,
    privacy_table,
    verdict_table,
)
from fl_dpbayes.report.terminal_table import printed_table
from fl_dpbayes.report.warnings import sentence, sentences
from fl_dpbayes.report.wording import CONSTANT_NOISE
