"""The tables that a run prints at its end: those of its page, as far as the terminal is wide."""

from collections.abc import Sequence
from dataclasses import replace

from rich.table import Table

from fl_dpbayes.calibration import CalibrationRecord
from fl_dpbayes.report import page_tables
from fl_dpbayes.report.headline import median_rows
from fl_dpbayes.report.hospitals import hospital_verdicts, most_telling
from fl_dpbayes.report.numbers import probability, rounded_up
from fl_dpbayes.report.page_tables import (
    AUROC,
    ECE,
    PREDICTOR,
    RECORDS,
    WHERE,
    measure_columns,
    table_of,
)
from fl_dpbayes.report.summary import PrivacyRecord, Summary
from fl_dpbayes.report.terminal_table import printed_table, without_columns
from fl_dpbayes.report.verdicts import (
    NARROW_COLUMNS,
    verdict_counts,
)
from fl_dpbayes.report.wording import (
    NOISED_NOTE,
    NOT_PRIVATE,
    event,
    in_reading_order,
    neighbours,
    place_name,
    privacy_notes,
    unspent_budget,
)

WIDTH = 100
# Sites mostly spend the same: of more the highest cost stands for all.
MOST_COSTS = 4


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


def privacy_overview(run: Summary, width: int = WIDTH) -> Table:
    """Show what the run cost in short; of many sites those in trouble and the one that spent most.

    What stands nowhere here is in the page's table and in `privacy_table`.
    """
    rows = _telling_rows(run.privacy)
    title = "Privacy spent" if run.private else "Training without privacy"
    if len(rows) < len(run.privacy):
        title = f"{title}: of {len(run.privacy)} sites the one that spent most, and any not OK"
    content = page_tables.privacy_table(run.model_copy(update={"privacy": rows}))
    return printed_table(
        title=title,
        content=without_columns(content, ("Unit", "Steps", "μ", "Temperature")),
        width=width,
        expendable=("Units n", "δ"),
        caption=_privacy_caption(run),
    )


def _telling_rows(rows: Sequence[PrivacyRecord]) -> tuple[PrivacyRecord, ...]:
    """Return few rows as they are, of many those in trouble and the one that spent most."""
    if len(rows) <= MOST_COSTS:
        return tuple(rows)
    most = max(rows, key=lambda row: row.largest_epsilon or 0.0)
    return tuple(row for row in rows if row is most or row.status != "OK")


def _privacy_caption(run: Summary) -> str:
    """Say what the epsilons are, and whether a budget was left; the page says the rest."""
    if not run.private:
        return NOT_PRIVATE
    text = f"ε is for {neighbours(run)}, rounded up."
    small = run.small_delta
    if small is not None:
        epsilon = rounded_up(small.epsilon)
        text += f" At delta {probability(small.delta)} {small.site} has {epsilon}."
    if run.seeded:
        text += " Seeded: not private."
    return " ".join(filter(None, [text, unspent_budget(run)]))


def verdict_table(run: Summary, width: int = WIDTH) -> Table | None:
    """Show what was seen at each hospital; None where the outcome is not of two classes."""
    hospitals = hospital_verdicts(run)
    if not hospitals:
        return None
    shown = most_telling(hospitals)
    caption = (
        f"Of 100 patients: so many with {event(run)!r}. The words are read off 95% intervals, "
        "the page says how. This is no medical device."
    )
    if len(shown) < len(hospitals):
        caption = (
            f"{verdict_counts(hospitals)} Shown are the {len(shown)} first: those clearly off, "
            f"then those that took no part, then the farthest off. The page has all. {caption}"
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
