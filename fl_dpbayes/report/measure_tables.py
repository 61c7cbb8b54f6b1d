"""The tables of the page beyond calibration itself.

Subgroups, prediction sets, clinical measures, shift, truth.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from fl_dpbayes.calibration import (
    CalibrationRecord,
    ConformalRecord,
    ShiftDetectionRecord,
    SubgroupRecord,
    wilson_interval,
)
from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.report.headline import headline_predictor
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, interval, known_ends, points
from fl_dpbayes.report.page_tables import (
    Cell,
    Cells,
    PageTable,
    main_cells,
    page_table,
    records_cell,
    without_repeats,
)
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.wording import (
    POINT_PREDICTORS,
    ROLES,
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
PREDICTOR_COLUMN = "Predictor"
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
    decided = _read_first(
        [row for row in run.places if row.net_benefit and row.net_benefit[0].counts], headline
    )
    groups = _read_first([row for row in run.subgroups if row.n], headline)
    clinical = _read_first(
        [
            row
            for row in run.places
            if row.calibration_intercept is not None or row.calibration_slope is not None
        ]
    )
    sets = _read_first(run.conformal, headline)
    truth = _read_first(
        [row for row in run.places if row.rms_true is not None or row.ece_true is not None]
    )
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
        "threshold": f"{100 * operating_threshold(run):g}",
        "operating": _operating_table(run, decided.first),
        "further_operating": _operating_table(run, decided.further),
        "subgroups": _subgroup_table(groups.first),
        "further_subgroups": _subgroup_table(groups.further),
        "clinical": _clinical_table(clinical.first),
        "further_clinical": _clinical_table(clinical.further),
        "conformal": _conformal_table(run, sets.first),
        "further_conformal": _conformal_table(run, sets.further),
        "truth": _truth_table(truth.first),
        "further_truth": _truth_table(truth.further),
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


def _read_first(rows: Sequence[Row], predictor: str | None = None) -> _Reading[Row]:
    """Part the rows that are read first from the others.

    Args:
        rows: In any order, which stays.
        predictor: The one that is read first; None for all of them.
    """
    pooled_roles = {row.role for row in rows if row.site == f"pooled:{row.role}"}
    sites = {
        role: {row.site for row in rows if row.role == role} - {f"pooled:{role}"}
        for role in pooled_roles
    }
    reading: _Reading[Row] = _Reading()
    for row in rows:
        single = row.role in pooled_roles and row.site in sites[row.role]
        if not single and predictor in (None, row.predictor):
            reading.first.append(row)
        elif not single or len(sites[row.role]) > 1:
            reading.further.append(row)
    return reading


def _subgroup_table(rows: Sequence[SubgroupRecord]) -> PageTable:
    by_group: dict[tuple[str, str], list[SubgroupRecord]] = {}
    for row in rows:
        by_group.setdefault((row.attribute, row.value), []).append(row)
    # Where, predictor, n, errors and accuracy stand first in every row of calibration.
    cells = [
        (f"{attribute}: {value}", *main_cells(row)[:6])
        for (attribute, value), members in sorted(by_group.items(), key=lambda item: item[0])
        for row in in_reading_order(members)
    ]
    columns = (
        "Subgroup",
        "Where",
        PREDICTOR_COLUMN,
        "n",
        "RMS debiased",
        "ECE (if calibrated)",
        "Accuracy, %",
    )
    return _table(columns, cells, text_columns={0, 1, 2})


def _conformal_table(run: Summary, rows: Sequence[ConformalRecord]) -> PageTable:
    of_one_sample = {row.predictor for row in run.calibration if row.samples == 1}
    roles = list(ROLES)

    def pooled_first(row: ConformalRecord) -> tuple[bool, int, str]:
        return row.site != f"pooled:{row.role}", roles.index(row.role), row.site

    cells: list[Cells] = []
    for row in sorted(rows, key=pooled_first):
        names = POINT_PREDICTORS if row.predictor in of_one_sample else PREDICTORS
        cells.append(
            (
                place_name(row.site),
                names.get(row.predictor, row.predictor),
                WEIGHTS.get(row.weights, row.weights),
                (points(row.coverage), interval(row.interval, points)),
                _against_level(row),
                two_places(row.size),
                records_cell(row.n),
            )
        )
    columns = (
        "Where",
        PREDICTOR_COLUMN,
        "Weights",
        "Coverage, %",
        "Against what was asked",
        "Mean size",
        "n",
    )
    return _table(columns, cells, text_columns={0, 1, 2, 4})


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


def _clinical_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    cells: list[Cells] = []
    for row in in_reading_order(rows):
        place, predictor, n, *_, auroc = main_cells(row)
        intercept_ends = row.intervals.get("calibration_intercept")
        slope_ends = row.intervals.get("calibration_slope")
        cells.append(
            (
                place,
                predictor,
                n,
                (_signed(row.calibration_intercept), interval(intercept_ends, _signed)),
                (two_places(row.calibration_slope), interval(slope_ends, two_places)),
                auroc,
            )
        )
    columns = (
        "Where",
        PREDICTOR_COLUMN,
        "n",
        "Intercept (0 if calibrated)",
        "Slope (1 if calibrated)",
        "AUROC [bounds]",
    )
    return _table(columns, cells, text_columns={0, 1})


def _signed(value: float | None) -> str:
    return f"+{value:.2f}" if value is not None and value > 0 else two_places(value)


def net_benefit_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show the net benefit per 100 patients at each threshold.

    Args:
        rows: One for each predictor of one place, which becomes a column.
    """
    cells: list[Cells] = []
    for number, point in enumerate(rows[0].net_benefit or ()):
        curves = [(row.net_benefit or ())[number] for row in rows]
        models = [(points(curve.model), interval(curve.interval, points)) for curve in curves]
        cells.append((points(point.threshold), *models, points(point.all), points(point.none)))
    names = [predictor_name(row) for row in rows]
    columns = ("Treat above, %", *names, "Treat all", "Treat none")
    return _table(columns, cells, text_columns=set())


def _shift_detection_table(run: Summary) -> PageTable:
    """Show how well each uncertainty tells a place's records from the training sites'."""
    sites = {site.name: site for site in run.sites}
    by_place: dict[str, dict[str, ShiftDetectionRecord]] = {}
    for row in run.shift_detection:
        by_place.setdefault(row.site, {})[row.measure] = row
    cells: list[Cells] = []
    for place, measures in by_place.items():
        if all(row.auroc is None for row in measures.values()):
            continue
        shift = ""
        if place in sites:
            shift = sites[place].shift.replace("_", " ") or "none"
        first = next(iter(measures.values()))
        cells.append(
            (
                place_name(place),
                shift,
                _auroc_cell(measures.get("epistemic")),
                _auroc_cell(measures.get("total")),
                records_cell(first.n),
            )
        )
    columns = ("Where", "Shift", "AUROC of epistemic", "AUROC of total", "n")
    return _table(columns, cells, text_columns={0, 1})


def _auroc_cell(row: ShiftDetectionRecord | None) -> Cell:
    if row is None:
        return UNDEFINED, ""
    ends = interval(row.interval, two_places)
    if row.auroc is None:
        return UNDEFINED, ends
    bounds = interval((row.low, row.high), decimal)
    return two_places(row.auroc), f"{ends}, bounds {bounds}" if bounds else ends


def _truth_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    cells = [
        (
            *main_cells(row)[:4],
            points(row.rms_true),
            _holds_truth(row),
            points(row.ece),
            points(row.ece_true),
        )
        for row in in_reading_order(rows)
    ]
    columns = (
        "Where",
        PREDICTOR_COLUMN,
        "n",
        "RMS estimated",
        "RMS true",
        "In the interval",
        "ECE estimated",
        "ECE true",
    )
    return _table(columns, cells, text_columns={0, 1, 5})


def _holds_truth(row: CalibrationRecord) -> str:
    ends = known_ends(row.intervals.get("rms_debiased"))
    if ends is None or row.rms_true is None:
        return UNDEFINED
    return "yes" if ends[0] <= row.rms_true <= ends[1] else "no"


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


def _operating_table(run: Summary, rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show at one threshold of risk how many events are found and how many alarms are right."""
    threshold = operating_threshold(run)
    cells: list[Cells] = []
    for row in in_reading_order(rows):
        point = next(
            point for point in row.net_benefit or () if math.isclose(point.threshold, threshold)
        )
        true_positive, false_positive, false_negative, true_negative = point.counts or (0, 0, 0, 0)
        cells.append(
            (
                *main_cells(row)[:3],
                _share_cell(true_positive, true_positive + false_negative),
                _share_cell(true_negative, true_negative + false_positive),
                _share_cell(true_positive, true_positive + false_positive),
                _share_cell(true_negative, true_negative + false_negative),
            )
        )
    columns = (
        "Where",
        PREDICTOR_COLUMN,
        "n",
        "Sensitivity, %",
        "Specificity, %",
        "PPV, %",
        "NPV, %",
    )
    return _table(columns, cells, text_columns={0, 1})


def _share_cell(part: int, whole: int) -> Cell:
    share = part / whole if whole else None
    return points(share), interval(wilson_interval(part, whole), points)


def _table(columns: tuple[str, ...], cells: Sequence[Cells], text_columns: Set[int]) -> PageTable:
    """Make a table without repeated first cells, and without predictors that are all alike."""
    if PREDICTOR_COLUMN in columns:
        position = columns.index(PREDICTOR_COLUMN)
        if len({row[position] for row in cells}) == 1:
            columns = columns[:position] + columns[position + 1 :]
            cells = [row[:position] + row[position + 1 :] for row in cells]
            text_columns = {
                number - 1 if number > position else number
                for number in text_columns
                if number != position
            }
    return page_table(columns, rows=without_repeats(cells), text_columns=text_columns)
