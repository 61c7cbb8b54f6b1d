"""Metrics of the order of records by confidence: area under the ROC curve, selective prediction.

Sums do not hold the order within a cell, so a value is its mean over all orders there, with its
least and largest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from fl_dpbayes.calibration.bins import COUNT, OUTCOME, Floats, coarsen
from fl_dpbayes.calibration.check_predictions import check_labels, check_probabilities
from fl_dpbayes.calibration.intervals import Interval, Measured, area_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics, rest_of

ROC_BINS = 192
ROC_DIGITS = 5


def auroc(statistics: CalibrationStatistics) -> Measured | None:
    """Return the area under the ROC curve: P(score of a positive > of a negative) + ties / 2.

    The score of a class is its log odds. Two classes: those of y = 1. More: one against the rest,
    averaged over the classes that have a positive and a negative; None where there is no such
    class. Pairs in one cell count as ties.
    """
    areas = [_area(table[:, OUTCOME], table[:, COUNT]) for table in statistics.class_wise]
    return _average(areas)


def exact_auroc(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Measured | None:
    """Return the area of `auroc` from the records themselves, so that only equal scores are ties.

    Args:
        probabilities: As of `from_batch`, which raises the same.
        labels: As of `from_batch`.

    Returns:
        The area, which its bounds equal; None where no class has both a positive and a negative.
    """
    probability = check_probabilities(probabilities)
    count, classes = probability.shape
    one_hot = np.eye(classes)[check_labels(labels, count, classes)]
    rest = rest_of(probability)
    areas = [_exact_area(probability[:, c], rest[:, c], one_hot[:, c]) for c in range(classes)]
    area = _average(areas)
    if area is None:
        return None
    return area._replace(bounds=Interval(area.value, area.value))


def roc_points(statistics: CalibrationStatistics) -> tuple[tuple[float, float], ...]:
    """Return (false, true) positive rates of two classes at falling thresholds.

    They run from (0, 0) to (1, 1). Between two neighbouring points, at most 1/192 of risk apart,
    the curve may take any rising way: through the upper left corner at best, the lower right at
    worst. Empty for more classes, or where one has no record.
    """
    if statistics.risk is None:
        return ()
    table = coarsen(statistics.risk, ROC_BINS)[::-1]
    positive = table[:, OUTCOME]
    negative = table[:, COUNT] - positive
    if not positive.sum() or not negative.sum():
        return ()
    filled = table[:, COUNT] > 0
    false_rates = np.cumsum(negative)[filled] / negative.sum()
    true_rates = np.cumsum(positive)[filled] / positive.sum()
    points = [
        (round(float(x), ROC_DIGITS), round(float(y), ROC_DIGITS))
        for x, y in zip(false_rates, true_rates, strict=True)
    ]
    return ((0.0, 0.0), *points)


@dataclass(frozen=True)
class _Area:
    """Area under a ROC curve.

    Attributes:
        area: The area, of ties half.
        half_ties: Half the share of tied pairs.
        interval: Its 95 % interval.
    """

    area: float
    half_ties: float
    interval: Interval


def _average(areas: Sequence[_Area | None]) -> Measured | None:
    """Average the areas of classes that have one; of two classes that of y = 1 stands for both.

    An average over classes has no interval: one record stands in the area of each.
    """
    relevant = areas[1:] if len(areas) == 2 else areas
    defined = [area for area in relevant if area is not None]
    if not defined:
        return None
    value = float(np.mean([area.area for area in defined]))
    half_ties = float(np.mean([area.half_ties for area in defined]))
    return Measured(
        value,
        interval=defined[0].interval if len(areas) == 2 else None,
        bounds=Interval(value - half_ties, value + half_ties),
    )


def _area(positive: Floats, count: Floats) -> _Area | None:
    """Return the area from positives and records by rising score."""
    negative = count - positive
    positives = positive.sum()
    negatives = negative.sum()
    pairs = positives * negatives
    if pairs == 0:
        return None
    below = np.cumsum(negative) - negative
    half_ties = positive @ negative / 2
    area = (positive @ below + half_ties) / pairs
    return _Area(
        area=area,
        half_ties=half_ties / pairs,
        interval=area_interval(area, positives=positives, negatives=negatives),
    )


def _exact_area(p: Floats, rest: Floats, positive: Floats) -> _Area | None:
    """Return the area of one class from its records' probabilities, 1 - p, and labels, (N,)."""
    # By p up to one half and by the rest above it: the order of log odds without their rounding.
    score = np.column_stack([p > 0.5, np.where(p > 0.5, -rest, p)])
    values, place = np.unique(score, axis=0, return_inverse=True)
    return _area(
        positive=np.bincount(place, positive, len(values)).astype(np.float64),
        count=np.bincount(place, np.ones(len(p)), len(values)).astype(np.float64),
    )


def aurc(statistics: CalibrationStatistics) -> Measured | None:
    """Return the area under the risk-coverage curve, in the mean form: (1/N) sum_i risk_i.

    risk_i is the share of errors among the i records of largest confidence. Not the trapezoid of
    the curve, nor the normalised form of some libraries. Bounds: in each cell all right answers
    first, or all errors first. Source: Geifman, Uziel, El-Yaniv, "Bias-reduced uncertainty
    estimation for deep neural classifiers", ICLR 2019, section 2.
    """
    table = statistics.top_label[::-1]
    filled = table[table[:, COUNT] > 0]
    count = filled[:, COUNT]
    errors = filled[:, COUNT] - filled[:, OUTCOME]
    total = count.sum()
    if total == 0:
        return None
    before = np.cumsum(count) - count
    wrong_before = np.cumsum(errors) - errors
    right = count - errors
    even = _risks(before=before, wrong_before=wrong_before, records=count, rate=errors / count)
    right_first = _risks(before=before, wrong_before=wrong_before, records=right, rate=0.0)
    then_errors = _risks(before=before + right, wrong_before=wrong_before, records=errors, rate=1.0)
    errors_first = _risks(before=before, wrong_before=wrong_before, records=errors, rate=1.0)
    then_right = _risks(
        before=before + errors, wrong_before=wrong_before + errors, records=right, rate=0.0
    )
    best = right_first + then_errors
    worst = errors_first + then_right
    return Measured(
        value=float(even.sum() / total),
        bounds=Interval(low=float(best.sum() / total), high=float(worst.sum() / total)),
    )


def aurc_excess(statistics: CalibrationStatistics) -> float | None:
    """Return the excess area E-AURC, 0 or more: `aurc` less that of the best ranking.

    The best ranking puts every error last. Source: Geifman et al., ICLR 2019, section 3, the best
    ranking's area exact in place of r + (1 - r) log(1 - r).
    """
    area = aurc(statistics)
    if area is None:
        return None
    right = np.array([statistics.correct])
    risks = _risks(
        before=right, wrong_before=np.zeros(1), records=statistics.count - right, rate=1.0
    )
    best = float(risks[0] / statistics.count)
    return max(0.0, area.value - best)


def _risks(before: Floats, wrong_before: Floats, records: Floats, rate: Floats | float) -> Floats:
    """Sum the risks of a run of records of which a share `rate` errs.

    sum_{j=1..m} (e + r j) / (n + j) = r m + (e - r n) (H_{n+m} - H_n), H the harmonic numbers.
    """
    harmonic = digamma(before + records + 1) - digamma(before + 1)
    return rate * records + (wrong_before - rate * before) * harmonic
