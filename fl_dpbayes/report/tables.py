"""The tables that a run prints at its end: those of its page, as far as the terminal is wide."""

from rich.table import Table

from fl_dpbayes.report import page_tables
from fl_dpbayes.report.headline import median_rows
from fl_dpbayes.report.page_tables import MAIN_COLUMNS, Cells, main_cells, without_repeats
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.terminal_table import printed_table
from fl_dpbayes.report.wording import in_reading_order, privacy_notes

WIDTH = 100


def privacy_table(run: Summary, width: int = WIDTH) -> Table:
    """Show what the run cost each site that trained or released noised test results."""
    return printed_table(
        title="Privacy spent" if run.private else "Training without privacy",
        content=page_tables.privacy_table(run),
        width=width,
        with_quiet=("μ",),
        expendable=("Unit", "μ", "Temperature", "Units n", "Steps"),
        caption=" ".join(privacy_notes(run)),
    )


def calibration_table(run: Summary, width: int = WIDTH) -> Table:
    """Show how well predictions are calibrated, predictors of one place beneath each other."""
    medians = median_rows(run)
    cells: list[Cells] = []
    for row in in_reading_order([*medians, *run.calibration]):
        place, *values = main_cells(row)
        cells.append((str(place).removesuffix(" sites"), *values))
    caption = (
        "Accuracy in %, calibration errors in percentage points, [95% interval]; in "
        "parentheses the ECE that a "
        "perfectly calibrated model would show at that n."
    )
    if medians:
        caption += (
            " A median is taken of the sites' own rows: one site cannot move it beyond the others."
        )
    *_, rms, ece, accuracy, nll, auroc = MAIN_COLUMNS
    return printed_table(
        title="Calibration",
        content=page_tables.page_table(
            MAIN_COLUMNS, rows=without_repeats(cells), text_columns=(0, 1)
        ),
        width=width,
        with_quiet=(rms, ece, auroc),
        expendable=(auroc, nll, "n", ece, accuracy),
        caption=caption,
    )
