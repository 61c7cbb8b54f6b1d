"""Metrics of the order of records by confidence: area under the ROC curve, and selective prediction.

Sums do not hold the order within a cell, so a value is its mean over all orders there, with its
least and largest.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from fl_dpbayes.calibration.bins import COUNT, OUTCOME, Floats, coarsen
from fl_dpbayes.calibration.check import check_labels, check_probabilities
from fl_dpbayes.calibration.intervals import Interval, Measured
from fl_dpbayes.calibration.statistics import CalibrationStatistics, rest_of

ROC_BINS = 192


def auroc(statistics: CalibrationStatistics) -> Measured | None:
    """Return the area under the ROC curve: P(score of a positive > score of a negative) + ties / 2.

    The score of a class is its log odds. Two classes: those of y = 1. More: one against the rest,
    averaged over the classes that have a positive and a negative; None where there is no such
    class. Pairs in one cell count as ties.
    """
    found = [_area(table[:, OUTCOME], table[:, COUNT]) for table in statistics.class_wise]
    return _average(found[1:] if statistics.classes == 2 else found)


def exact_auroc(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Measured | None:
    """Return the area of `auroc` from the records themselves, so that only equal scores are ties.

    `probabilities` and `labels`: as of `from_batch`, which raises the same. The bounds equal the
    area; None where no class has both a positive and a negative.
    """
    probability = check_probabilities(probabilities)
    count, classes = probability.shape
    one_hot = np.eye(classes)[check_labels(labels, count, classes)]
    found = []
    for p, rest, positive in zip(probability.T, rest_of(probability).T, one_hot.T, strict=True):
        # By p up to one half and by the rest above it: the order of log odds without their
        # rounding.
        score = np.column_stack([p > 0.5, np.where(p > 0.5, -rest, p)])
        values, place = np.unique(score, axis=0, return_inverse=True)
        sums = [
            np.bincount(place, weight, len(values)).astype(np.float64)
            for weight in (positive, np.ones(count))
        ]
        found.append(_area(*sums))
    area = _average(found[1:] if classes == 2 else found)
    return None if area is None else Measured(area.value, bounds=Interval(area.value, area.value))


def roc_points(statistics: CalibrationStatistics) -> tuple[tuple[float, float], ...]:
    """Return (false, true) positive rates of two classes at falling thresholds, from (0, 0) to (1, 1).

    Between two neighbouring points, at most 1/192 of risk apart, the curve may take any rising way:
    through the upper left corner at best, the lower right at worst. Empty for more classes, or
    where one has no record.
    """
    table = coarsen(statistics.class_wise[1], ROC_BINS)[::-1]
    positive = table[:, OUTCOME]
    negative = table[:, COUNT] - positive
    if statistics.classes != 2 or not positive.sum() or not negative.sum():
        return ()
    rates = (np.cumsum(part)[table[:, COUNT] > 0] / part.sum() for part in (negative, positive))
    points = zip(*(map(float, rate) for rate in rates), strict=True)
    return ((0.0, 0.0), *((round(x, 5), round(y, 5)) for x, y in points))


def _average(areas: Sequence[tuple[float, float] | None]) -> Measured | None:
    defined = [area for area in areas if area is not None]
    if not defined:
        return None
    value, half_ties = np.mean(defined, axis=0)
    return Measured(
        float(value), bounds=Interval(float(value - half_ties), float(value + half_ties))
    )


def _area(positive: Floats, count: Floats) -> tuple[float, float] | None:
    """Area and half the share of tied pairs, from positives and records by rising score."""
    negative = count - positive
    pairs = positive.sum() * negative.sum()
    if pairs == 0:
        return None
    below = np.cumsum(negative) - negative
    half_ties = positive @ negative / 2
    return (positive @ below + half_ties) / pairs, half_ties / pairs


def aurc(statistics: CalibrationStatistics) -> Measured | None:
    """Return the area under the risk-coverage curve, in the mean form: (1/N) sum_i risk_i.

    risk_i is the share of errors among the i records of largest confidence. Not the trapezoid of
    the curve, nor the normalised form of some libraries. Bounds: in each cell all right answers
    first, or all errors first. Source: Geifman, Uziel, El-Yaniv, "Bias-reduced uncertainty
    estimation for deep neural classifiers", ICLR 2019, section 2.
    """
    count, errors = _most_confident_first(statistics)
    total = count.sum()
    if total == 0:
        return None
    before, wrong_before, right = (
        np.cumsum(count) - count,
        np.cumsum(errors) - errors,
        count - errors,
    )
    even = _risks(before, wrong_before, count, errors / count)
    best = _risks(before, wrong_before, right, 0.0) + _risks(
        before + right, wrong_before, errors, 1.0
    )
    worst = _risks(before, wrong_before, errors, 1.0) + _risks(
        before + errors, wrong_before + errors, right, 0.0
    )
    value, low, high = (float(risks.sum() / total) for risks in (even, best, worst))
    return Measured(value, bounds=Interval(low, high))


def aurc_excess(statistics: CalibrationStatistics) -> float | None:
    """Return the excess area E-AURC, 0 or more: `aurc` less that of a ranking that puts every error last.

    Source: Geifman et al., ICLR 2019, section 3, the best ranking's area exact in place of r + (1 -
    r) log(1 - r).
    """
    area = aurc(statistics)
    if area is None:
        return None
    right = np.array([statistics.correct])
    best = float(_risks(right, np.zeros(1), statistics.count - right, 1.0)[0] / statistics.count)
    return max(0.0, area.value - best)


def _most_confident_first(statistics: CalibrationStatistics) -> tuple[Floats, Floats]:
    """Counts and errors of the cells that hold records."""
    table = statistics.top_label[::-1]
    filled = table[table[:, COUNT] > 0]
    return filled[:, COUNT], filled[:, COUNT] - filled[:, OUTCOME]


def _risks(before: Floats, wrong_before: Floats, records: Floats, rate: Floats | float) -> Floats:
    """Sum the risks of a run of records of which a share `rate` errs.

    sum_{j=1..m} (e + r j) / (n + j) = r m + (e - r n) (H_{n+m} - H_n), H the harmonic numbers.
    """
    harmonic = digamma(before + records + 1) - digamma(before + 1)
    return rate * records + (wrong_before - rate * before) * harmonic
