"""The tables of the page beyond calibration itself: subgroups, prediction sets, clinical measures, shift, truth."""

import math
from collections.abc import Sequence, Set
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from fl_dpbayes.calibration import wilson_interval
from fl_dpbayes.config import (
    PREDICTORS,
    CalibrationRecord,
    ConformalRecord,
    ShiftDetectionRecord,
    SubgroupRecord,
    Summary,
)
from fl_dpbayes.report.answer import headline_predictor
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, interval, known, points
from fl_dpbayes.report.page_tables import (
    Cell,
    Cells,
    PageTable,
    main_cells,
    once,
    page_table,
    records,
)
from fl_dpbayes.report.wording import (
    POINT_PREDICTORS,
    ROLES,
    in_reading_order,
    place_name,
    predictor_name,
)

_two = partial(decimal, places=2)
WEIGHTS = {
    "none": "as calibrated",
    "label-shift": "prevalence from its labels",
    "label-shift-estimated": "prevalence from its predictions",
}
Row = TypeVar("Row", CalibrationRecord, SubgroupRecord, ConformalRecord)


def measure_tables(run: Summary) -> dict[str, PageTable | str]:
    """Gather the tables of everything that was measured beyond calibration, by the page's names.

    Returns what is read first and, as `further_...`, the rest: single sites, further predictors; a
    table without rows is not to be shown. `headline` is the predictor of subgroups and prediction
    sets that is read first, `level` the coverage that these were asked to have, `calibrated_on`
    what they were calibrated on, `reference_records` how many records of training sites the
    uncertainty of others is held against.
    """
    groups = [row for row in run.subgroups if row.n]
    clinical = [
        row
        for row in run.places
        if row.calibration_intercept is not None or row.calibration_slope is not None
    ]
    known = [row for row in run.places if row.rms_true is not None or row.ece_true is not None]
    sets = {(row.calibrated_on, row.n_calibration) for row in run.conformal}
    compared = {row.n_reference for row in run.shift_detection if row.n_reference}
    headline = headline_predictor(run)
    tables: dict[str, PageTable | str] = {
        "headline": next(
            (predictor_name(row) for row in run.places if row.predictor == headline), ""
        ),
        "level": ", ".join(
            f"{100 * level:g}%" for level in sorted({row.level for row in run.conformal})
        ),
        "calibrated_on": ", ".join(
            f"the {words} (n = {count(n)})" for words, n in sorted(sets, key=str)
        ),
        "shift_detection": _shift_detection_table(run),
        "reference_records": ", ".join(count(n) for n in sorted(compared)),
    }
    decided = [row for row in run.places if row.net_benefit and row.net_benefit[0].counts]
    tables["threshold"] = f"{100 * operating_threshold(run):g}"
    made: Any = {
        "operating": (partial(_operating_table, run), decided, headline),
        "subgroups": (_subgroup_table, groups, headline),
        "clinical": (_clinical_table, clinical, None),
        "conformal": (partial(_conformal_table, run), run.conformal, headline),
        "truth": (_truth_table, known, None),
    }
    for name, (table, rows, predictor) in made.items():
        first, further = _split_rows(rows, predictor)
        tables |= {name: table(first), f"further_{name}": table(further)}
    return tables


def _split_rows(rows: Sequence[Row], predictor: str | None = None) -> tuple[list[Row], list[Row]]:
    """Tell the rows that are read first from the others."""
    pooled = {row.role for row in rows if row.site == f"pooled:{row.role}"}
    sites = {
        role: {row.site for row in rows if row.role == role} - {f"pooled:{role}"} for role in pooled
    }
    main, further = [], []
    for row in rows:
        single = row.role in pooled and row.site in sites[row.role]
        if not single and predictor in (None, row.predictor):
            main.append(row)
        elif not single or len(sites[row.role]) > 1:
            further.append(row)
    return main, further


def _subgroup_table(rows: Sequence[SubgroupRecord]) -> PageTable:
    values = sorted({(row.attribute, row.value) for row in rows})
    of_each = (
        in_reading_order([row for row in rows if (row.attribute, row.value) == value])
        for value in values
    )
    # Where, predictor, n, errors and accuracy stand first in every row of calibration.
    cells = [
        (f"{row.attribute}: {row.value}", *main_cells(row)[:6])
        for row in chain.from_iterable(of_each)
    ]
    columns = (
        "Subgroup",
        "Where",
        "Predictor",
        "n",
        "RMS debiased",
        "ECE (if calibrated)",
        "Accuracy, %",
    )
    return _table(columns, cells, {0, 1, 2})


def _conformal_table(run: Summary, rows: Sequence[ConformalRecord]) -> PageTable:
    single = {row.predictor for row in run.calibration if row.samples == 1}
    roles, cells = list(ROLES), []
    for row in sorted(
        rows, key=lambda row: (row.site != f"pooled:{row.role}", roles.index(row.role), row.site)
    ):
        names = POINT_PREDICTORS if row.predictor in single else PREDICTORS
        where = (
            place_name(row.site),
            names.get(row.predictor, row.predictor),
            WEIGHTS.get(row.weights, row.weights),
        )
        coverage = points(row.coverage), interval(row.interval, points)
        cells.append((*where, coverage, _against_level(row), decimal(row.size, 2), records(row.n)))
    columns = (
        "Where",
        "Predictor",
        "Weights",
        "Coverage, %",
        "Against what was asked",
        "Mean size",
        "n",
    )
    return _table(columns, cells, {0, 1, 2, 4})


def _clinical_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    cells = []
    for row in in_reading_order(rows):
        where, predictor, n, *_, area = main_cells(row)
        intercept, slope = (
            row.intervals.get(f"calibration_{name}") for name in ("intercept", "slope")
        )
        first = _signed(row.calibration_intercept), interval(intercept, _signed)
        cells.append(
            (where, predictor, n, first, (_two(row.calibration_slope), interval(slope, _two)), area)
        )
    columns = (
        "Where",
        "Predictor",
        "n",
        "Intercept (0 if calibrated)",
        "Slope (1 if calibrated)",
        "AUROC [bounds]",
    )
    return _table(columns, cells, {0, 1})


def net_benefit_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show the net benefit per 100 patients at each threshold, a column per predictor of one place."""
    cells: list[Cells] = []
    for number, point in enumerate(rows[0].net_benefit or ()):
        curves = [(row.net_benefit or ())[number] for row in rows]
        models = [(points(curve.model), interval(curve.interval, points)) for curve in curves]
        cells.append((points(point.threshold), *models, points(point.all), points(point.none)))
    names = (predictor_name(row) for row in rows)
    return _table(("Treat above, %", *names, "Treat all", "Treat none"), cells, set())


def _shift_detection_table(run: Summary) -> PageTable:
    """Show how well each uncertainty tells a place's records from the training sites', a row per place."""
    sites = {site.name: site for site in run.sites}
    places: dict[str, dict[str, ShiftDetectionRecord]] = {}
    for row in run.shift_detection:
        places.setdefault(row.site, {})[row.measure] = row
    cells: list[Cells] = []
    for site, measures in places.items():
        if any(row.auroc is not None for row in measures.values()):
            areas = map(_area, (measures.get("epistemic"), measures.get("total")))
            shift = (sites[site].shift.replace("_", " ") or "none") if site in sites else ""
            cells.append(
                (place_name(site), shift, *areas, records(next(iter(measures.values())).n))
            )
    columns = ("Where", "Shift", "AUROC of epistemic", "AUROC of total", "n")
    return _table(columns, cells, {0, 1})


def _area(row: ShiftDetectionRecord | None) -> Cell:
    if row is None or row.auroc is None:
        return UNDEFINED, interval(row.interval, _two) if row else ""
    bounds = interval((row.low, row.high), decimal)
    return _two(row.auroc), interval(row.interval, _two) + (f", bounds {bounds}" if bounds else "")


def _truth_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    cells = [
        (
            *main_cells(row)[:4],
            points(row.rms_true),
            _inside(row),
            points(row.ece),
            points(row.ece_true),
        )
        for row in in_reading_order(rows)
    ]
    columns = (
        "Where",
        "Predictor",
        "n",
        "RMS estimated",
        "RMS true",
        "In the interval",
        "ECE estimated",
        "ECE true",
    )
    return _table(columns, cells, {0, 1, 5})


def operating_threshold(run: Summary) -> float:
    """Return the threshold of the table of decisions: the multiple of 5 % nearest to how often the event happens.

    It is counted among the training sites' test records; one half where their sums are noised or
    absent.
    """
    rows = [row for row in run.calibration if row.site == "pooled:train" and row.net_benefit]
    counts = next((point.counts for row in rows for point in row.net_benefit or ()), None)
    if counts is None:
        return 0.5
    share = (counts[0] + counts[2]) / sum(counts)
    return min(0.95, max(0.05, round(20 * share) / 20))


def _operating_table(run: Summary, rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show at one threshold of risk how many of those with the event are found, and how many alarms are right."""
    threshold = operating_threshold(run)
    cells: list[Cells] = []
    for row in in_reading_order(rows):
        point = next(
            point for point in row.net_benefit or () if math.isclose(point.threshold, threshold)
        )
        found, false, missed, right = point.counts or (0, 0, 0, 0)
        values: list[Cell] = []
        for part, rest in ((found, missed), (right, false), (found, false), (right, missed)):
            share = part / (part + rest) if part + rest else None
            values.append((points(share), interval(wilson_interval(part, part + rest), points)))
        cells.append((*main_cells(row)[:3], *values))
    return _table(
        ("Where", "Predictor", "n", "Sensitivity, %", "Specificity, %", "PPV, %", "NPV, %"),
        cells,
        {0, 1},
    )


def _table(columns: tuple[str, ...], cells: Sequence[Cells], words: Set[int]) -> PageTable:
    """Make a table without a first cell that repeats the one above it, and without a column of predictors all alike."""
    if "Predictor" in columns and len({row[columns.index("Predictor")] for row in cells}) == 1:
        out = columns.index("Predictor")
        columns, words = (
            columns[:out] + columns[out + 1 :],
            {n - (n > out) for n in words if n != out},
        )
        cells = [row[:out] + row[out + 1 :] for row in cells]
    return page_table(columns, once(cells), words)


def _against_level(row: ConformalRecord) -> str:
    if (ends := known(row.interval)) is None:
        return ""
    return (
        "too low"
        if ends[1] < row.level
        else "above"
        if ends[0] > row.level
        else "no clear difference"
    )


def _inside(row: CalibrationRecord) -> str:
    ends = known(row.intervals.get("rms_debiased"))
    return (
        UNDEFINED
        if ends is None or row.rms_true is None
        else "yes"
        if ends[0] <= row.rms_true <= ends[1]
        else "no"
    )


def _signed(value: float | None) -> str:
    return f"+{value:.2f}" if value is not None and value > 0 else decimal(value, 2)
