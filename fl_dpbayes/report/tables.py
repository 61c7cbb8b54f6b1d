"""The tables that a run prints at its end: those of its page, as far as the terminal is wide."""

from dataclasses import replace

from rich.table import Table

from fl_dpbayes.calibration import CalibrationRecord
from fl_dpbayes.report import page_tables
from fl_dpbayes.report.headline import median_rows
from fl_dpbayes.report.page_tables import (
    AUROC,
    ECE,
    PREDICTOR,
    RECORDS,
    WHERE,
    measure_columns,
    table_of,
)
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.terminal_table import printed_table
from fl_dpbayes.report.verdicts import (
    NARROW_COLUMNS,
    hospital_verdicts,
    most_telling,
    verdict_counts,
)
from fl_dpbayes.report.wording import (
    NOISED_NOTE,
    VERDICT_NOTE,
    event,
    in_reading_order,
    place_name,
    privacy_notes,
)

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


def verdict_table(run: Summary, width: int = WIDTH) -> Table | None:
    """Show what was seen at each hospital; None where the outcome is not of two classes."""
    hospitals = hospital_verdicts(run)
    if not hospitals:
        return None
    shown = most_telling(hospitals)
    caption = f"Of 100 patients: so many with {event(run)!r}. {VERDICT_NOTE}"
    if len(shown) < len(hospitals):
        caption = (
            f"{verdict_counts(hospitals)} Shown are the {len(shown)} that are clearly or "
            f"farthest off, the others on the page. {caption}"
        )
    return printed_table(
        title="What was seen at each hospital, those that took no part first",
        content=table_of(NARROW_COLUMNS, shown),
        width=width,
        with_quiet=("AUROC",),
        caption=caption,
    )


def calibration_table(run: Summary, width: int = WIDTH) -> Table:
    """Show how well predictions are calibrated, predictors of one place beneath each other."""
    medians = median_rows(run)
    rows = in_reading_order([*medians, *run.calibration])
    measures = measure_columns(run.measures.first)
    caption = run.measures.note
    if medians:
        caption += (
            " A median is taken of the sites' own rows: one site cannot move it beyond the others."
        )
    if any(row.noised for row in rows):
        caption += f" {NOISED_NOTE}"
    short_place = replace(WHERE, write=_short_place)
    return printed_table(
        title="Calibration",
        content=table_of((short_place, PREDICTOR, RECORDS, *measures), rows),
        width=width,
        with_quiet=[column.title for column in (measures[0], ECE, AUROC)],
        expendable=[column.title for column in (*reversed(measures[3:]), RECORDS, *measures[1:3])],
        caption=caption,
    )


def _short_place(row: CalibrationRecord) -> str:
    place = place_name(row.site).removesuffix(" sites")
    return f"{place}, noised" if row.noised else place
