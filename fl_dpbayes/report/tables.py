"""The tables that a run prints at its end: those of its page, as far as the terminal is wide enough."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.table import Table

from fl_dpbayes.config.summary import Summary
from fl_dpbayes.report import page_tables
from fl_dpbayes.report.answer import median_rows
from fl_dpbayes.report.terminal_table import TerminalColumn, fitted_table, folded, name_width
from fl_dpbayes.report.wording import account_notes, in_reading_order, neighbours, temperature_notes

WIDTH, HEADER_WIDTH = 100, 10


def privacy_table(run: Summary, width: int = WIDTH) -> Table:
    """Show what the run cost each site that trained, and each site that released noised test results."""
    content, title = page_tables.privacy_table(run), "Privacy spent" if run.private else "Training without privacy"
    expendable = ("Unit", "μ", "Temperature", "Units n", "Steps")
    return _printed(title, content, width, ("μ",), expendable, " ".join(_privacy_notes(run)))


def calibration_table(run: Summary, width: int = WIDTH) -> Table:
    """Show how well predictions are calibrated: pooled rows first, predictors of one place beneath each other."""
    medians = median_rows(run)
    cells = [page_tables.main_cells(row) for row in in_reading_order([*medians, *run.calibration])]
    cells = [(str(where).removesuffix(" sites"), *others) for where, *others in cells]
    content = page_tables.page_table(page_tables.MAIN, page_tables.once(cells), (0, 1))
    caption = (
        "Accuracy in %, calibration errors in percentage points, [95% interval]; in parentheses the ECE that a "
        "perfectly calibrated model would show at that n."
        + (" A median is taken of the sites' own rows: one site cannot move it beyond the others." if medians else "")
    )
    *_, rms, ece, accuracy, nll, area = page_tables.MAIN
    return _printed("Calibration", content, width, (rms, ece, area), (area, nll, "n", ece, accuracy), caption)


def _printed(
    title: str, content: page_tables.PageTable, width: int, quiet: Sequence[str], expendable: Sequence[str],
    caption: str,
) -> Table:  # fmt: skip
    """Print a table of the page, of the columns `quiet` also what stands behind a value.

    Columns `expendable` are left out of a narrow terminal, the first one first.
    """
    columns = []
    for at, name in enumerate(content.columns):
        cells, words = [" ".join(row[at] if name in quiet else row[at][:1]) for row in content.rows], False
        if at in content.text_columns:
            cells, words = [folded(cell, width * 7 // 20 if at else name_width(width)) for cell in cells], True
        order = expendable.index(name) + 1 if name in expendable else 0
        header = "\n".join(textwrap.wrap(name, HEADER_WIDTH, break_long_words=False))
        columns.append(TerminalColumn(header, cells, number=not words, expendable=order))
    return fitted_table(title, columns, width, caption=caption)


def _privacy_notes(run: Summary) -> Iterator[str]:
    if run.private:
        yield f"Neighbours differ by {neighbours(run)}."
        if methods := sorted({row.epsilon_method for row in run.privacy if row.epsilon_method}):
            yield f"ε by {', '.join(methods)}."
        yield account_notes(run)
        if any(row.mu_kind == "clt" for row in run.privacy):
            yield "μ (clt) is an approximation, not an upper bound."
        if run.chains > 1:
            yield f"{run.chains} chains per site: their costs add up to this one account."
    else:
        yield "Not private: epsilon is infinite."
    if run.evaluation_privacy:
        yield "Rows of status evaluation: what noised test results cost, on other units."
    if notes := temperature_notes(run):
        yield f"Temperature: {'; '.join(notes)}."
    if run.seeded:
        yield "seeded: not private."
