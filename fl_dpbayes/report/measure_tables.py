"""The tables of the page beyond calibration itself: subgroups, prediction sets, clinical measures, shift, truth."""

import math
from collections.abc import Sequence, Set
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from fl_dpbayes.calibration.intervals import wilson_interval
from fl_dpbayes.config.names import PREDICTORS
from fl_dpbayes.config.summary import (
    CalibrationRecord,
    ConformalRecord,
    ReliabilityRecord,
    Role,
    ShiftDetectionRecord,
    SubgroupRecord,
    Summary,
)
from fl_dpbayes.report.answer import headline_predictor
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, interval, points
from fl_dpbayes.report.page_tables import Cell, PageTable, error_cell, once, page_table, records
from fl_dpbayes.report.wording import POINT_PREDICTORS, ROLES, in_reading_order, place_name, pool_name, predictor_name

_two = partial(decimal, places=2)
WEIGHTS = {
    "none": "none",
    "label-shift": "prevalence from its labels",
    "label-shift-estimated": "prevalence from its predictions",
}


Row = TypeVar("Row", CalibrationRecord, SubgroupRecord, ConformalRecord)


def measure_tables(run: Summary) -> dict[str, PageTable | str]:
    """Gather the tables of everything that was measured beyond calibration, by the page's names.

    Returns what is read first and, as `further_...`, the rest: single sites, further predictors; a table without
    rows is not to be shown. `headline` is the predictor of subgroups and prediction sets that is read first,
    `level` the coverage that these were asked to have, `calibrated_on` what they were calibrated on,
    `reference_records` how many records of training sites the uncertainty of others is held against.
    """
    groups = [row for row in run.subgroups if row.n]
    clinical = [row for row in run.places if row.calibration_intercept is not None or row.calibration_slope is not None]
    known = [row for row in run.places if row.rms_true is not None or row.ece_true is not None]
    sets = {(row.calibrated_on, row.n_calibration) for row in run.conformal}
    compared = {row.n_reference for row in run.shift_detection if row.n_reference}
    headline = headline_predictor(run)
    tables: dict[str, PageTable | str] = {
        "headline": next((predictor_name(row) for row in run.places if row.predictor == headline), ""),
        "level": ", ".join(f"{100 * level:g}%" for level in sorted({row.level for row in run.conformal})),
        "calibrated_on": ", ".join(f"the {words} (n = {count(n)})" for words, n in sorted(sets, key=str)),
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
    sites = {role: {row.site for row in rows if row.role == role} - {f"pooled:{role}"} for role in pooled}
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
    of_each = (in_reading_order([row for row in rows if (row.attribute, row.value) == value]) for value in values)
    cells = [
        (
            f"{row.attribute}: {row.value}",
            place_name(row),
            predictor_name(row),
            records(row.n),
            error_cell(row),
            (points(row.ece), f"({points(row.ece_if_calibrated)})"),
            (points(row.accuracy), interval(row.intervals.get("accuracy"), points)),
        )
        for row in chain.from_iterable(of_each)
    ]
    columns = ("Subgroup", "Where", "Predictor", "n", "RMS debiased", "ECE (if calibrated)", "Accuracy, %")
    return _table(columns, cells, {0, 1, 2})


def _conformal_table(run: Summary, rows: Sequence[ConformalRecord]) -> PageTable:
    cells = [
        (
            pool_name(row.site),
            _predictor(run, row.predictor),
            WEIGHTS.get(row.weights, row.weights),
            (points(row.coverage), interval(row.interval, points)),
            _against_level(row),
            decimal(row.size, 2),
            records(row.n),
        )
        for row in sorted(rows, key=lambda row: _place_order(row.site, row.role))
    ]
    columns = ("Where", "Predictor", "Weights", "Coverage, %", "Against what was asked", "Mean size", "n")
    return _table(columns, cells, {0, 1, 2, 4})


def _clinical_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    cells = [
        (
            place_name(row),
            predictor_name(row),
            records(row.n),
            (_signed(row.calibration_intercept), interval(row.intervals.get("calibration_intercept"), _signed)),
            (decimal(row.calibration_slope, 2), interval(row.intervals.get("calibration_slope"), _two)),
            (decimal(row.auroc), interval(row.auroc_bounds, decimal)),
        )
        for row in in_reading_order(rows)
    ]
    columns = ("Where", "Predictor", "n", "Intercept (0 if calibrated)", "Slope (1 if calibrated)", "AUROC [bounds]")
    return _table(columns, cells, {0, 1})


def net_benefit_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show the net benefit per 100 patients at each threshold, a column per predictor of one place."""
    cells: list[tuple[str | Cell, ...]] = []
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
    cells: list[tuple[str | Cell, ...]] = []
    for site, measures in places.items():
        if all(row.auroc is None for row in measures.values()):
            continue
        areas = [
            (decimal(row.auroc, 2), f"{interval(row.interval, _two)}{_known_to(row)}") if row else (UNDEFINED, "")
            for row in (measures.get("epistemic"), measures.get("total"))
        ]
        shift = (sites[site].shift.replace("_", " ") or "none") if site in sites else ""
        cells.append((pool_name(site), shift, *areas, records(next(iter(measures.values())).n)))
    columns = ("Where", "Shift", "AUROC of epistemic", "AUROC of total", "n")
    return _table(columns, cells, {0, 1})


def _known_to(row: ShiftDetectionRecord) -> str:
    if row.auroc is None or row.low is None or row.high is None:
        return ""
    return f", bounds {interval((row.low, row.high), decimal)}"


def _truth_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    cells = [
        (
            place_name(row),
            predictor_name(row),
            records(row.n),
            error_cell(row),
            points(row.rms_true),
            _inside(row),
            points(row.ece),
            points(row.ece_true),
        )
        for row in in_reading_order(rows)
    ]
    columns = ("Where", "Predictor", "n", "RMS estimated", "RMS true", "In the interval", "ECE estimated", "ECE true")
    return _table(columns, cells, {0, 1, 5})


def operating_threshold(run: Summary) -> float:
    """Return the threshold of the table of decisions: the multiple of 5 % nearest to how often the event happens.

    It is counted among the training sites' test records; one half where their sums are noised or absent.
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
    cells: list[tuple[str | Cell, ...]] = []
    for row in in_reading_order(rows):
        point = next(point for point in row.net_benefit or () if math.isclose(point.threshold, threshold))
        found, false, missed, right = point.counts or (0, 0, 0, 0)
        values: list[Cell] = []
        for part, rest in ((found, missed), (right, false), (found, false), (right, missed)):
            share = part / (part + rest) if part + rest else None
            values.append((points(share), interval(wilson_interval(part, part + rest), points)))
        cells.append((place_name(row), predictor_name(row), records(row.n), *values))
    return _table(("Where", "Predictor", "n", "Sensitivity, %", "Specificity, %", "PPV, %", "NPV, %"), cells, {0, 1})


def _bin_columns(row: ReliabilityRecord) -> tuple[str, ...]:
    names = ("Risk %", "Mean risk %", "Observed %") if row.risk else ("Confidence %", "Mean confidence %", "Accuracy %")
    return names[0], "Records", *names[1:], "Band if calibrated"


def _bin_cells(row: ReliabilityRecord) -> list[tuple[str, ...]]:
    """Cells below `_bin_columns` of each bin of a reliability diagram that holds a record."""
    return [
        (
            f"{points(part.low)} to {points(part.high)}",
            count(part.n),
            points(part.confidence),
            points(part.accuracy),
            interval((part.band_low, part.band_high), points) or UNDEFINED,
        )
        for part in row.bins
        if part.n
    ]


def reliability_table(row: ReliabilityRecord) -> PageTable:
    """Show the bins of one reliability diagram."""
    return page_table(_bin_columns(row), _bin_cells(row))


def _table(columns: tuple[str, ...], cells: Sequence[tuple[str | Cell, ...]], words: Set[int]) -> PageTable:
    """Make a table without a first cell that repeats the one above it, and without a column of predictors all alike."""
    if "Predictor" in columns and len({row[columns.index("Predictor")] for row in cells}) == 1:
        out = columns.index("Predictor")
        columns, words = columns[:out] + columns[out + 1 :], {n - (n > out) for n in words if n != out}
        cells = [row[:out] + row[out + 1 :] for row in cells]
    return page_table(columns, once(cells), words)


def _predictor(run: Summary, predictor: str) -> str:
    single = any(row.predictor == predictor and row.samples == 1 for row in run.calibration)
    return (POINT_PREDICTORS if single else PREDICTORS).get(predictor, predictor)


def _place_order(site: str, role: Role) -> tuple[bool, int, str]:
    return (site != f"pooled:{role}", list(ROLES).index(role), site)


def _against_level(row: ConformalRecord) -> str:
    if row.interval is None or row.interval[0] is None or row.interval[1] is None:
        return ""
    if row.interval[1] < row.level:
        return "too low"
    return "above" if row.interval[0] > row.level else "no clear difference"


def _inside(row: CalibrationRecord) -> str:
    ends = row.intervals.get("rms_debiased")
    if ends is None or ends[0] is None or ends[1] is None or row.rms_true is None:
        return UNDEFINED
    return "yes" if ends[0] <= row.rms_true <= ends[1] else "no"


def _signed(value: float | None) -> str:
    return f"+{value:.2f}" if value is not None and value > 0 else decimal(value, 2)
