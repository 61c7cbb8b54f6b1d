"""What a study prints at its end: tables of its page."""

from dataclasses import replace

from rich.console import Console

from fl_dpbayes.report.study.quantities import quantity
from fl_dpbayes.report.study.results import StudyResults
from fl_dpbayes.report.study.tables import paper_table, settings_table
from fl_dpbayes.report.terminal_table import printed_table

MOST_ROWS = 60
OVER_SEEDS = "Mean over seeds, interval by Student's t over them."


def show_study(study: StudyResults, console: Console) -> None:
    """Print the first metric by axes, and what a paper prints beside what was measured."""
    if study.record.question:
        console.print(study.record.question, style="bold", markup=False)
    said, where, found = (
        quantity(study.metric),
        study.record.where,
        settings_table(study, [study.metric]),
    )
    if not found.rows or study.metric not in study.headline:
        console.print(f"nothing was measured by {study.metric} at {where}", markup=False)
    else:
        rest = len(found.rows) - MOST_ROWS
        more = f" {rest} more rows are in results.csv." if rest > 0 else ""
        title = f"{said.metric.name}{', percentage points,' if said.share else ''} at {where}"
        shown, size = replace(found, rows=found.rows[:MOST_ROWS]), console.width
        quiet, caption = (said.metric.name,), f"{OVER_SEEDS}{more}"
        console.print(
            printed_table(title, shown, size, quiet=quiet, expendable=("Seeds",), caption=caption)
        )
    if (beside := paper_table(study)).rows:
        caption = " ".join(
            (*study.record.notes[:1], OVER_SEEDS, "Epsilon: the largest of a site, by PLD.")
        )
        expendable = ("95% interval", "At", "Seeds")
        title = "Beside the paper"
        console.print(
            printed_table(title, beside, console.width, expendable=expendable, caption=caption)
        )
