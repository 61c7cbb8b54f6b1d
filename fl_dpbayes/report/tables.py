"""The tables that a run prints at its end: those of its page, as far as the terminal is wide enough."""

from rich.table import Table

from fl_dpbayes.config import Summary
from fl_dpbayes.report import page_tables
from fl_dpbayes.report.answer import median_rows
from fl_dpbayes.report.terminal_table import printed_table
from fl_dpbayes.report.wording import in_reading_order, privacy_notes

WIDTH = 100


def privacy_table(run: Summary, width: int = WIDTH) -> Table:
    """Show what the run cost each site that trained, and each site that released noised test results."""
    content, title = (
        page_tables.privacy_table(run),
        "Privacy spent" if run.private else "Training without privacy",
    )
    expendable = ("Unit", "μ", "Temperature", "Units n", "Steps")
    notes = " ".join(privacy_notes(run))
    return printed_table(title, content, width, quiet=("μ",), expendable=expendable, caption=notes)


def calibration_table(run: Summary, width: int = WIDTH) -> Table:
    """Show how well predictions are calibrated: pooled rows first, predictors of one place beneath each other."""
    medians = median_rows(run)
    cells = [page_tables.main_cells(row) for row in in_reading_order([*medians, *run.calibration])]
    cells = [(str(where).removesuffix(" sites"), *others) for where, *others in cells]
    content = page_tables.page_table(page_tables.MAIN, page_tables.once(cells), (0, 1))
    caption = (
        "Accuracy in %, calibration errors in percentage points, [95% interval]; in "
        "parentheses the ECE that a "
        "perfectly calibrated model would show at that n."
        + (
            " A median is taken of the sites' own rows: one site cannot move it beyond the others."
            if medians
            else ""
        )
    )
    *_, rms, ece, accuracy, nll, area = page_tables.MAIN
    quiet, expendable = (rms, ece, area), (area, nll, "n", ece, accuracy)
    return printed_table(
        "Calibration", content, width, quiet=quiet, expendable=expendable, caption=caption
    )
