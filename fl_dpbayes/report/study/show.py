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
    _show_metric(study, console)
    _show_paper(study, console)


def _show_metric(study: StudyResults, console: Console) -> None:
    measured = quantity(study.metric)
    where = study.record.where
    table = settings_table(study, [study.metric])
    if not table.rows or study.metric not in study.headline:
        console.print(f"nothing was measured by {study.metric} at {where}", markup=False)
        return
    caption = OVER_SEEDS
    if len(table.rows) > MOST_ROWS:
        caption += f" {len(table.rows) - MOST_ROWS} more rows are in results.csv."
    unit = ", percentage points," if measured.share else ""
    console.print(
        printed_table(
            title=f"{measured.metric.name}{unit} at {where}",
            content=replace(table, rows=table.rows[:MOST_ROWS]),
            width=console.width,
            with_quiet=(measured.metric.name,),
            expendable=("Seeds",),
            caption=caption,
        )
    )


def _show_paper(study: StudyResults, console: Console) -> None:
    table = paper_table(study)
    if not table.rows:
        return
    notes = (*study.record.notes[:1], OVER_SEEDS, "Epsilon: the largest of a site, by PLD.")
    console.print(
        printed_table(
            title="Beside the paper",
            content=table,
            width=console.width,
            expendable=("95% interval", "At", "Seeds"),
            caption=" ".join(notes),
        )
    )
