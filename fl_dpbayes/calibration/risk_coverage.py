"""Selective prediction from merged sums: what accuracy is left when the least confident records are set aside."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma

from fl_dpbayes.calibration.bins import COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.statistics import CalibrationStatistics

COVERAGES = (0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Ranked:
    """A value that depends on the order of records within a cell, which the sums do not hold.

    Attributes:
        value: its mean over all orders within the cells.
        low: its smallest value over those orders.
        high: its largest.
    """

    value: float
    low: float
    high: float


def aurc(statistics: CalibrationStatistics) -> Ranked | None:
    """Return the area under the risk-coverage curve, in the mean form: (1/N) sum_i risk_i.

    risk_i is the share of errors among the i records of largest confidence. Not the trapezoid of the curve, nor the
    normalised form of some libraries.

    Args:
        statistics: merged statistics.

    Returns:
        The area in [0, 1] with its hard bounds (in each cell all right answers first, or all errors first), or
        None without records.

    Source: Geifman, Uziel, El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers", ICLR 2019,
        section 2.
    """
    count, errors = _most_confident_first(statistics)
    total = count.sum()
    if total == 0:
        return None
    before, wrong_before, right = np.cumsum(count) - count, np.cumsum(errors) - errors, count - errors
    even = _risks(before, wrong_before, count, errors / count)
    best = _risks(before, wrong_before, right, 0.0) + _risks(before + right, wrong_before, errors, 1.0)
    worst = _risks(before, wrong_before, errors, 1.0) + _risks(before + errors, wrong_before + errors, right, 0.0)
    return Ranked(*(float(risks.sum() / total) for risks in (even, best, worst)))


def aurc_excess(statistics: CalibrationStatistics) -> Ranked | None:
    """Return the excess area E-AURC: `aurc` less that of a ranking that puts every error last.

    Args:
        statistics: merged statistics.

    Returns:
        A value of 0 or more with its hard bounds, or None without records.

    Source: Geifman, Uziel, El-Yaniv, ICLR 2019, section 3, with the exact area of the best ranking in place of its
        approximation r + (1 - r) log(1 - r).
    """
    area = aurc(statistics)
    if area is None:
        return None
    right = np.array([statistics.correct])
    best = float(_risks(right, np.zeros(1), statistics.count - right, 1.0)[0] / statistics.count)
    return Ranked(*(max(0.0, value - best) for value in (area.value, area.low, area.high)))


def accuracy_at_coverage(statistics: CalibrationStatistics, coverage: float) -> Ranked | None:
    """Return the accuracy on the ceil(coverage N) records of largest confidence.

    Args:
        statistics: merged statistics.
        coverage: share of the records that is kept, in (0, 1].

    Returns:
        The accuracy with its hard bounds (which records of the last cell are kept), or None without records.
    """
    count, errors = _most_confident_first(statistics)
    if not count.size:
        return None
    kept = max(1, math.ceil(round(coverage * statistics.count, 6)))  # .95 of 20 is 19, whatever the last digit
    last = int(np.searchsorted(np.cumsum(count), kept))
    sure, size, wrong = errors[:last].sum(), count[last], errors[last]
    taken = kept - count[:last].sum()
    fewest, most = max(0.0, taken - (size - wrong)), min(taken, wrong)
    return Ranked(*(float(1 - (sure + within) / kept) for within in (taken * wrong / size, most, fewest)))


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
