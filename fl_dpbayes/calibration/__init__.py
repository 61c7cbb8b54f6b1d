"""How well probabilities fit what happened, from sums that add up over sites.

What comes in: probabilities and labels, or other sites' sums. What goes out: measures with
intervals, recalibration maps, prediction sets.
"""

from fl_dpbayes.calibration.bins import (
    COUNT,
    FINE_BINS,
    REPORT_BINS,
    Floats,
    coarsen,
    in_fixed_pieces,
    on_grid,
)
from fl_dpbayes.calibration.check_sums import check_sums
from fl_dpbayes.calibration.conformal import (
    EXACT_BINS,
    NOISED_BINS,
    OVERSHOOT,
    private_threshold,
    set_counts,
    set_sensitivity,
)
from fl_dpbayes.calibration.curves import (
    Ends,
    Number,
    SummaryPart,
    Text,
)
from fl_dpbayes.calibration.federation.counts import (
    COUNT_ARRAYS,
    checked_counts,
    counts_warning,
    planned_multiplier,
)
from fl_dpbayes.calibration.federation.evaluation import Evaluation
from fl_dpbayes.calibration.intervals import student_interval, wilson_interval
from fl_dpbayes.calibration.metrics.errors import reliability_bins
from fl_dpbayes.calibration.metrics.ranking import exact_auroc, roc_points
from fl_dpbayes.calibration.metrics.smooth_curve import smooth_curve
from fl_dpbayes.calibration.noised_counts import (
    CODE,
    COUNT_BINS,
    INNER_EDGES,
    OUTCOMES,
    NoisedCounts,
    coded_counts,
    count_bin,
    release_counts,
)
from fl_dpbayes.calibration.prior_shift import estimated_prevalence, with_prevalence
from fl_dpbayes.calibration.recalibration.descent import (
    Stretch,
    bounded_map,
    noise_deviation,
    noise_warning,
    private_fit,
    share_bound,
)
from fl_dpbayes.calibration.recalibration.maps import describe, method_code, recalibrate
from fl_dpbayes.calibration.recalibration.median_map import far_off_maps, median_parameters
from fl_dpbayes.calibration.records import (
    METRICS,
    CalibrationRecord,
    CalibrationValues,
    ConformalRecord,
    Metric,
    ReliabilityRecord,
    ShiftDetectionRecord,
    SubgroupRecord,
    metrics_hidden_by_noise,
)
from fl_dpbayes.calibration.release import (
    SENT_COLUMNS,
    BoundedSum,
    NoisedTable,
    bounded_sum,
    noised,
)
from fl_dpbayes.calibration.statistics import (
    CalibrationStatistics,
    entropies,
    from_batch,
    table_shapes,
)
from fl_dpbayes.calibration.summarise import says_nothing
from fl_dpbayes.calibration.sums import Sums, SumsForm
from fl_dpbayes.calibration.verdict import (
    CLEARLY_OFF,
    MOST_SHOWN,
    TOLERATED_FACTOR,
    Verdict,
    recommended_predictor,
    telling_order,
    verdict,
)
