"""The page of `fl-dpbayes evaluate`: one predictor on one set of labelled records."""

from pathlib import Path

from fl_dpbayes.calibration import CalibrationRecord
from fl_dpbayes.errors import UserError
from fl_dpbayes.report import wording
from fl_dpbayes.report.answer import off_by
from fl_dpbayes.report.figures import draw_figures
from fl_dpbayes.report.page import write_page
from fl_dpbayes.report.page_tables import all_metrics_table, facts, risk_gap
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.template import BEGIN, END, FACTS
from fl_dpbayes.report.verdicts import verdicts

EVALUATION = (
    BEGIN
    + """\
<header class="answer">
<h1>{{ title }}</h1>
<p class="lead">On {{ row.n }} records {{ off_by | unbroken }}.</p>
{% if verdicts %}{{ table(verdicts.shown, "What was seen") }}
<p class="note">{{ words.SMALL_PRINT }}</p>{% endif %}
<p><strong>{{ words.FOR_RESEARCH }}</strong></p>
<p>Measured on this machine alone: nothing left it, and no privacy was spent. This page tells of \
these records.</p>
</header>
<h2 id="figures">Calibration</h2>
{% for item in (panels or reliability) + other_figures %}{{ figure(item) }}{% endfor %}
<h2 id="measures">All measures</h2>
{{ table(metrics, "All measures: accuracy and calibration errors in percentage points") }}
"""
    + FACTS
    + END
)


def write_evaluation(folder: Path, run: Summary) -> Path:
    """Write `report.html` and its figures to a new folder.

    Args:
        folder: Must not exist, for nothing is overwritten.
        run: One site of role `held_out`, alone and pooled.

    Raises:
        UserError: If the folder exists or cannot be written to.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"--out {folder} cannot be made ({error.strerror}): give the name of a new folder"
        ) from None
    row = run.calibration[-1]
    return write_page(
        folder,
        EVALUATION,
        title=f"{run.scenario} on {row.site}",
        row=row,
        off_by=_off_by(row),
        verdicts=verdicts(run),
        words=wording,
        metrics=all_metrics_table([row], run.measures),
        facts=facts(run),
        **draw_figures(folder, run, curves=()),
    )


def _off_by(row: CalibrationRecord) -> str:
    """Say how far risks of an event are off, or else the probabilities."""
    gap = risk_gap(row)
    if gap is None:
        return off_by(row)
    return f"risks differ from what happened by {gap} of 100 patients"
