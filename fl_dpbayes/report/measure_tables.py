"""The tables of the page beyond calibration itself.

Subgroups, prediction sets, clinical measures, shift, truth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from fl_dpbayes.calibration import (
    MOST_SHOWN,
    CalibrationRecord,
    ConformalRecord,
    ShiftDetectionRecord,
    SubgroupRecord,
    wilson_interval,
)
from fl_dpbayes.config import PREDICTORS, Role
from fl_dpbayes.report.headline import headline_predictor, headline_role
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, interval, known_ends, points
from fl_dpbayes.report.page_tables import (
    AUROC,
    PREDICTOR,
    RECORDS,
    WHERE,
    Cell,
    Column,
    PageTable,
    error_cell,
    measure_columns,
    metric_cell,
    rates_cell,
    records_cell,
    table_of,
)
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.wording import (
    POINT_PREDICTORS,
    ROLES,
    event,
    in_reading_order,
    place_name,
    predictor_name,
)

two_places = partial(decimal, places=2)
WEIGHTS = {
    "none": "as calibrated",
    "label-shift": "prevalence from its labels",
    "label-shift-estimated": "prevalence from its predictions",
}
# How many measures a table of subgroups shows.
MOST_OF_SUBGROUPS = 3
Row = TypeVar("Row", CalibrationRecord, SubgroupRecord, ConformalRecord)


def measure_tables(run: Summary) -> dict[str, PageTable | str]:
    """Gather the tables of everything that was measured beyond calibration.

    Returns:
        By the names that the page's template gives them: what is read first and, as
        `further_...`, single sites and further predictors. A table without rows is not to be
        shown. `headline` is the predictor of subgroups and prediction sets that is read first,
        `level` the coverage that the sets were asked to have, `calibrated_on` what they were
        calibrated on, `reference_records` how many records of training sites the uncertainty of
        others is held against, `threshold` that of the table of decisions in %.
    """
    headline = headline_predictor(run)
    threshold = operating_threshold(run)
    rows = in_reading_order(run.places)
    decided = [row for row in rows if row.net_benefit and row.net_benefit[0].counts]
    clinical = [
        row
        for row in rows
        if row.calibration_intercept is not None
        or row.calibration_slope is not None
        or "calibration_slope" in (row.cannot_tell or ())
    ]
    truth = [row for row in rows if row.rms_true is not None or row.ece_true is not None]
    return {
        "headline": _headline_name(run, headline),
        "level": ", ".join(
            f"{100 * level:g}%" for level in sorted({row.level for row in run.conformal})
        ),
        "calibrated_on": _calibrated_on(run),
        "shift_detection": _shift_detection_table(run),
        "reference_records": ", ".join(
            count(n)
            for n in sorted({row.n_reference for row in run.shift_detection if row.n_reference})
        ),
        "threshold": f"{100 * threshold:g}",
        "alarms": _alarms(_read_first(decided, headline).first, threshold),
        **_first_and_further("operating", _operating_columns(threshold), decided, headline),
        **_subgroup_tables(run),
        "clinical": table_of(CLINICAL_COLUMNS, clinical),
        **_first_and_further("conformal", _conformal_columns(run), _pooled_first(run), headline),
        **_first_and_further("truth", TRUTH_COLUMNS, truth),
    }


def _headline_name(run: Summary, headline: str) -> str:
    for row in run.places:
        if row.predictor == headline:
            return predictor_name(row)
    return ""


def _calibrated_on(run: Summary) -> str:
    sources = {(row.calibrated_on, row.n_calibration) for row in run.conformal}
    return ", ".join(f"the {words} (n = {count(n)})" for words, n in sorted(sources, key=str))


@dataclass(frozen=True)
class _Reading(Generic[Row]):
    """Rows that are read first, and the others."""

    first: list[Row] = field(default_factory=list)
    further: list[Row] = field(default_factory=list)


def _read_first(
    rows: Sequence[Row], predictor: str | None = None, role: Role | None = None
) -> _Reading[Row]:
    """Part the rows that are read first, at most twelve, from the others.

    Args:
        rows: In any order, which stays.
        predictor: The one that is read first; None for all of them.
        role: Of the sites that are read first; None for all of them.
    """
    pooled_roles = {row.role for row in rows if row.site == f"pooled:{row.role}"}
    sites = {
        role: {row.site for row in rows if row.role == role} - {f"pooled:{role}"}
        for role in pooled_roles
    }
    reading: _Reading[Row] = _Reading()
    for row in rows:
        single = row.role in pooled_roles and row.site in sites[row.role]
        is_first = not single and predictor in (None, row.predictor) and role in (None, row.role)
        if is_first and len(reading.first) < MOST_SHOWN:
            reading.first.append(row)
        elif not single or len(sites[row.role]) > 1:
            reading.further.append(row)
    return reading


def _first_and_further(
    name: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    predictor: str | None = None,
) -> dict[str, PageTable]:
    """Make the table of the rows that are read first, and that of the others."""
    reading = _read_first(rows, predictor)
    return {
        name: _without_lone_predictor(columns, reading.first),
        f"further_{name}": _without_lone_predictor(columns, reading.further),
    }


def _without_lone_predictor(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> PageTable:
    """Make a table, without the column of predictors where all rows have the same one."""
    shown = [
        column
        for column in columns
        if column.title != PREDICTOR.title or len({column.write(row) for row in rows}) != 1
    ]
    return table_of(shown, rows)


def _measured_subgroups(run: Summary) -> list[SubgroupRecord]:
    """Return the subgroups that hold a record, one after the other, each in reading order."""
    rows = in_reading_order([row for row in run.subgroups if row.n])
    return sorted(rows, key=lambda row: (row.attribute, row.value))


def _subgroup_tables(run: Summary) -> dict[str, PageTable]:
    """Show risks of subgroups of the answering role where they are known, folded every measure."""
    rows = _measured_subgroups(run)
    role = headline_role(run)
    reading = _read_first(
        rows, headline_predictor(run), role if any(row.role == role for row in rows) else None
    )
    what: tuple[Column[SubgroupRecord], ...] = (
        Column("Subgroup", lambda row: f"{row.attribute}: {row.value}", in_words=True),
        WHERE,
        PREDICTOR,
        RECORDS,
    )
    measures = measure_columns(run.measures.first[:MOST_OF_SUBGROUPS])
    has_risks = any(row.mean_risk is not None for row in reading.first)
    rates = Column[SubgroupRecord](f"Of 100 patients, {event(run)}", rates_cell, in_words=True)
    first: tuple[Column[SubgroupRecord], ...] = (*what, *measures)
    if has_risks:
        first = (*what, rates, AUROC)
    further = reading.first + reading.further if has_risks else reading.further
    return {
        "subgroups": _without_lone_predictor(first, reading.first),
        "further_subgroups": _without_lone_predictor((*what, *measures), further),
    }


def _pooled_first(run: Summary) -> list[ConformalRecord]:
    roles = list(ROLES)

    def order(row: ConformalRecord) -> tuple[bool, int, str]:
        return row.site != f"pooled:{row.role}", roles.index(row.role), row.site

    return sorted(run.conformal, key=order)


def _conformal_columns(run: Summary) -> tuple[Column[ConformalRecord], ...]:
    of_one_sample = {row.predictor for row in run.calibration if row.samples == 1}

    def predictor(row: ConformalRecord) -> str:
        names = POINT_PREDICTORS if row.predictor in of_one_sample else PREDICTORS
        return names.get(row.predictor, row.predictor)

    return (
        Column("Where", lambda row: place_name(row.site), in_words=True),
        Column("Predictor", predictor, in_words=True),
        Column("Weights", lambda row: WEIGHTS.get(row.weights, row.weights), in_words=True),
        Column("Coverage, %", lambda row: (points(row.coverage), interval(row.interval, points))),
        Column("Against what was asked", _against_level, in_words=True),
        Column("Mean size", lambda row: two_places(row.size)),
        Column("n", lambda row: records_cell(row.n)),
    )


def _against_level(row: ConformalRecord) -> str:
    ends = known_ends(row.interval)
    if ends is None:
        return ""
    low, high = ends
    if high < row.level:
        return "too low"
    if low > row.level:
        return "above"
    return "no clear difference"


def signed(value: float | None) -> str:
    """Write a value with two places and its sign."""
    return f"+{value:.2f}" if value is not None and value > 0 else two_places(value)


CLINICAL_COLUMNS: tuple[Column[CalibrationRecord], ...] = (
    WHERE,
    PREDICTOR,
    RECORDS,
    Column(
        "Intercept (0 if calibrated)",
        lambda row: metric_cell(row, "calibration_intercept", signed),
    ),
    Column(
        "Slope (1 if calibrated)", lambda row: metric_cell(row, "calibration_slope", two_places)
    ),
    AUROC,
)


def _shift_detection_table(run: Summary) -> PageTable:
    """Show how well each uncertainty tells a place's records from the training sites'."""
    shifts = {site.name: site.shift.replace("_", " ") or "none" for site in run.sites}
    by_place: dict[str, dict[str, ShiftDetectionRecord]] = {}
    for row in run.shift_detection:
        by_place.setdefault(row.site, {})[row.measure] = row
    places = [
        place
        for place, measures in by_place.items()
        if any(row.auroc is not None for row in measures.values())
    ]
    columns: tuple[Column[str], ...] = (
        Column("Where", place_name, in_words=True),
        Column("Shift", lambda place: shifts.get(place, ""), in_words=True),
        Column("AUROC of epistemic", lambda place: _auroc_cell(by_place[place].get("epistemic"))),
        Column("AUROC of total", lambda place: _auroc_cell(by_place[place].get("total"))),
        Column("n", lambda place: records_cell(next(iter(by_place[place].values())).n)),
    )
    return table_of(columns, places)


def _auroc_cell(row: ShiftDetectionRecord | None) -> Cell:
    if row is None:
        return UNDEFINED, ""
    ends = interval(row.interval, two_places)
    if row.auroc is None:
        return UNDEFINED, ends
    bounds = interval((row.low, row.high), decimal)
    return two_places(row.auroc), f"{ends}, bounds {bounds}" if bounds else ends


def _holds_truth(row: CalibrationRecord) -> str:
    ends = known_ends(row.intervals.get("rms_debiased"))
    if ends is None or row.rms_true is None:
        return UNDEFINED
    return "yes" if ends[0] <= row.rms_true <= ends[1] else "no"


TRUTH_COLUMNS: tuple[Column[CalibrationRecord], ...] = (
    WHERE,
    PREDICTOR,
    RECORDS,
    Column("RMS estimated", error_cell),
    Column("RMS true", lambda row: points(row.rms_true)),
    Column("In the interval", _holds_truth, in_words=True),
    Column("ECE estimated", lambda row: points(row.ece)),
    Column("ECE true", lambda row: points(row.ece_true)),
)


def operating_threshold(run: Summary) -> float:
    """Return the threshold of the table of decisions, in [.05, .95].

    It is the multiple of 5 % nearest to how often the event happens among the training sites' test
    records; one half where their sums are noised or absent.
    """
    rows = [row for row in run.calibration if row.site == "pooled:train"]
    all_counts = [point.counts for row in rows for point in row.net_benefit or ()]
    if not all_counts or all_counts[0] is None:
        return 0.5
    true_positive, _, false_negative, _ = all_counts[0]
    share = (true_positive + false_negative) / sum(all_counts[0])
    return min(0.95, max(0.05, round(20 * share) / 20))


def _alarms(rows: Sequence[CalibrationRecord], threshold: float) -> str:
    """Say of the first row how many had the event with an alarm, and how many without."""
    if not rows:
        return ""
    true_positive, false_positive, false_negative, true_negative = _counts(rows[0], threshold)
    parts = []
    for kind, events, whole in (
        ("with an alarm", true_positive, true_positive + false_positive),
        ("without an alarm", false_negative, false_negative + true_negative),
    ):
        if whole:
            parts.append(f"of 100 {kind}, {100 * events / whole:.0f} had the event")
    return f"At {place_name(rows[0].site)}: {'; '.join(parts)}."


def _counts(row: CalibrationRecord, threshold: float) -> tuple[int, int, int, int]:
    """Return true and false positives, then false and true negatives, at a threshold."""
    point = next(
        point for point in row.net_benefit or () if math.isclose(point.threshold, threshold)
    )
    return point.counts or (0, 0, 0, 0)


def _operating_columns(threshold: float) -> tuple[Column[CalibrationRecord], ...]:
    """Say at one threshold of risk how many events are found and how many alarms are right."""

    def share(part: int, beside: int) -> Callable[[CalibrationRecord], Cell]:
        """Write the share of one of the four counts in itself and another."""

        def write(row: CalibrationRecord) -> Cell:
            counts = _counts(row, threshold)
            whole = counts[part] + counts[beside]
            value = counts[part] / whole if whole else None
            return points(value), interval(wilson_interval(counts[part], whole), points)

        return write

    true_positive, false_positive, false_negative, true_negative = range(4)
    return (
        WHERE,
        PREDICTOR,
        RECORDS,
        Column("Sensitivity, %", share(true_positive, false_negative)),
        Column("Specificity, %", share(true_negative, false_positive)),
        Column("PPV, %", share(true_positive, false_positive)),
        Column("NPV, %", share(true_negative, false_negative)),
    )
