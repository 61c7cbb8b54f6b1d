"""Means over records: accuracy, log score, Brier score, uncertainty; with intervals.

Terms of the log and Brier scores are skewed: rare wrong answers make up most of the sum. The
central-limit interval mean +- z s / sqrt(n) covered 65 to 80 % on 50 records of confident models:
without a wrong answer among them it is far too short. How often the intervals here cover is
measured, not proven: `fl-dpbayes reproduce interval-coverage`.
"""

import math
from collections.abc import Callable

import numpy as np

from fl_dpbayes.calibration.bins import (
    CONFIDENCE,
    COUNT,
    FINE_BINS,
    OUTCOME,
    PRODUCT,
    SQUARE,
    Floats,
    coarsen,
)
from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE, Interval, Measured, wilson_interval
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR, CalibrationStatistics

PSEUDO_RECORDS = 4.0  # as in Agresti and Coull's interval of a proportion: about z^2
# At z itself a few models of 50 to 200 records were covered at 91 to 92 %.
QUANTILE = 1.05 * NORMAL_QUANTILE
# At .7 a U-shaped model of 200 records that is .05 too confident was covered at 88 %.
LARGEST_STEP = 0.6
# With more classes a bin's mean hides how small the least probabilities are: at .6 ten-class
# predictions from Dirichlet(.1), 5 % of whose labels were noise, were covered at 87 % on 100
# records.
LARGEST_STEP_MANY_CLASSES = 0.4


def accuracy(statistics: CalibrationStatistics) -> Measured | None:
    """Return the share of records whose top label is right, or None without records."""
    if statistics.count == 0:
        return None
    interval = wilson_interval(statistics.correct, statistics.count)
    return Measured(statistics.correct / statistics.count, interval)


def nll(statistics: CalibrationStatistics) -> Measured | None:
    """Return the mean of -log max(p_label, PROBABILITY_FLOOR) in nats, or None without records."""
    if statistics.count == 0:
        return None
    return Measured(statistics.nll / statistics.count, nll_interval(statistics))


def brier(statistics: CalibrationStatistics) -> Measured | None:
    """Return the mean multiclass Brier score sum_c (p_c - 1{c = label})^2, in [0, 2].

    For two classes it is twice the score of p(y = 1) alone. None without records.
    """
    if statistics.count == 0:
        return None
    return Measured(statistics.brier / statistics.count, brier_interval(statistics))


def epistemic(statistics: CalibrationStatistics) -> float | None:
    """Return the mean mutual information of label and parameters in nats; None without records."""
    return statistics.epistemic / statistics.count if statistics.count else None


def aleatoric(statistics: CalibrationStatistics) -> float | None:
    """Return the mean expected entropy in nats, or None without records."""
    return statistics.aleatoric / statistics.count if statistics.count else None


def nll_interval(statistics: CalibrationStatistics) -> Interval | None:
    """Return a 95 % interval of the mean NLL.

    None where one more wrong answer could change too much: where -log(p0) / n, by which one more
    answer of the smallest probabilities p0 would move the mean (p0 averaged over the lowest of 960
    bins that is not empty), exceeds LARGEST_STEP (two classes; LARGEST_STEP_MANY_CLASSES for more)
    of the half width z s / sqrt(n) that the model's own probabilities lead to expect. Only the
    probabilities decide, no label: which test sets show an interval says nothing of their luck.
    None for fewer than two records too.
    """
    count = statistics.count
    if count < 2:
        return None
    first, second, _ = _moments(
        statistics=statistics, weight=CONFIDENCE, weighted=SQUARE, loss=_nll
    )
    half = NORMAL_QUANTILE * math.sqrt(max(0.0, second - first**2) / count)
    table = coarsen(statistics.class_wise.sum(axis=0), FINE_BINS)
    lowest = table[int(np.flatnonzero(table[:, COUNT])[0])]
    step = float(_nll(lowest[CONFIDENCE] / lowest[COUNT])) / count
    largest_step = LARGEST_STEP_MANY_CLASSES if statistics.risk is None else LARGEST_STEP
    if step > largest_step * half:
        return None
    return _score_interval(
        statistics=statistics,
        total=statistics.nll,
        total_of_squares=statistics.nll_squared,
        loss=_nll,
    )


def brier_interval(statistics: CalibrationStatistics) -> Interval | None:
    """Return a 95 % interval of the mean Brier score; None for fewer than two records."""
    if statistics.count < 2:
        return None
    return _score_interval(
        statistics=statistics,
        total=statistics.brier,
        total_of_squares=statistics.brier_squared,
        loss=_brier,
    )


def _score_interval(
    statistics: CalibrationStatistics,
    total: float,
    total_of_squares: float,
    loss: Callable[[Floats], Floats],
) -> Interval:
    """Invert the score test of a mean whose variance grows with it as the skewness tells.

    The means m with n (m - mean)^2 <= z^2 [v + w (m - mean)], w = k3 / k2 the ratio of the third
    cumulant to the variance: in a natural exponential family dV/dm = k3 / k2, and for right or
    wrong answers this is Wilson's interval up to a share of z^2 / n. Variance and cumulants are
    those of the records and PSEUDO_RECORDS more with labels drawn from the model's own
    probabilities, so that a test set without a wrong answer still has a tail.

    Source: Morris, Annals of Statistics 10 (1982), 65-80; Wilson, JASA 22 (1927), 209-212; Agresti
    and Coull 1998.
    """
    n = statistics.count
    z2 = QUANTILE**2
    # As each class c is the label with its probability p_c, and as the labels are.
    expected = _moments(statistics=statistics, weight=CONFIDENCE, weighted=SQUARE, loss=loss)
    observed = _moments(statistics=statistics, weight=OUTCOME, weighted=PRODUCT, loss=loss)
    first, second, third = (n * observed + PSEUDO_RECORDS * expected) / (n + PSEUDO_RECORDS)
    second_cumulant = second - first**2
    third_cumulant = third - 3 * first * second + 2 * first**3
    skew = max(0.0, third_cumulant / second_cumulant) if second_cumulant > 0 else 0.0
    mean = total / n
    pooled_mean = (total + PSEUDO_RECORDS * expected[0]) / (n + PSEUDO_RECORDS)
    pooled_square = (total_of_squares + PSEUDO_RECORDS * expected[1]) / (n + PSEUDO_RECORDS)
    variance = max(0.0, pooled_square - pooled_mean**2)
    shift = z2 * skew / (2 * n)
    half = math.sqrt(shift**2 + z2 * variance / n)
    return Interval(max(0.0, mean + shift - half), mean + shift + half)


def _moments(
    statistics: CalibrationStatistics, weight: int, weighted: int, loss: Callable[[Floats], Floats]
) -> Floats:
    """Return the means of the loss, its square and its cube, over bins of the label's probability.

    `weight` and `weighted` are the columns of the sums of weights, and of weights times the
    probability.
    """
    table = coarsen(statistics.class_wise.sum(axis=0), FINE_BINS)
    filled = table[:, weight] > 0
    weights = table[filled, weight]
    probabilities = table[filled, weighted] / weights
    values = loss(np.clip(probabilities, 0, 1))
    return np.stack([values, values**2, values**3]) @ weights / weights.sum()


def _nll(p: Floats) -> Floats:
    return -np.log(np.maximum(p, PROBABILITY_FLOOR))


def _brier(p: Floats) -> Floats:
    """Return the Brier term of a label's probability; of more than two classes, the most it is."""
    return 2 * (1 - p) ** 2
