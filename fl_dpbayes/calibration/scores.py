"""Scores from merged sums: accuracy, log score, Brier score with its decomposition, area under the ROC curve."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import (
    CONFIDENCE,
    CONFIDENCE_OUTCOME,
    CONFIDENCE_SQUARED,
    COUNT,
    OUTCOME,
    REPORT_BINS,
    Floats,
    coarsen,
)
from fl_dpbayes.calibration.check import check_labels, check_probabilities
from fl_dpbayes.calibration.statistics import CalibrationStatistics, rest_of


def accuracy(statistics: CalibrationStatistics) -> float | None:
    """Return the share of records whose top label is right, or None without records."""
    return statistics.correct / statistics.count if statistics.count else None


def nll(statistics: CalibrationStatistics) -> float | None:
    """Return the mean of -log max(p_label, PROBABILITY_FLOOR) in nats, or None without records."""
    return statistics.nll / statistics.count if statistics.count else None


def brier(statistics: CalibrationStatistics) -> float | None:
    """Return the mean multiclass Brier score sum_c (p_c - 1{c = label})^2 in [0, 2], or None without records.

    For two classes it is twice the score of p(y = 1) alone.
    """
    return statistics.brier / statistics.count if statistics.count else None


@dataclass(frozen=True)
class BrierDecomposition:
    """Five terms: Brier = reliability - resolution + uncertainty + within_variance - within_covariance."""

    reliability: float
    resolution: float
    uncertainty: float
    within_variance: float
    within_covariance: float

    @property
    def brier(self) -> float:
        """The score that the terms add up to."""
        return self.reliability - self.resolution + self.uncertainty + self.within_variance - self.within_covariance


def decompose_table(table: Floats) -> BrierDecomposition:
    """Decompose the Brier score of one event into five terms, exactly.

    REL = sum_b (n_b/N) (p_b - y_b)^2, RES = sum_b (n_b/N) (y_b - y)^2, UNC = y (1 - y), within-bin variance
    sum_bi (p_bi - p_b)^2 / N and covariance 2 sum_bi (p_bi - p_b)(y_bi - y_b) / N.

    Args:
        table: sums of 1, p, y, p^2, p y per bin, shape (B, 5), with at least one record.

    Returns:
        The five terms.

    Source: Stephenson, Coelho, Jolliffe, "Two extra components in the Brier score decomposition", Weather and
        Forecasting 23 (2008), 752-757.
    """
    filled = table[table[:, COUNT] > 0]
    n, total = filled[:, COUNT], filled[:, COUNT].sum()
    p, y = filled[:, CONFIDENCE] / n, filled[:, OUTCOME] / n
    base = filled[:, OUTCOME].sum() / total
    return BrierDecomposition(
        reliability=float(n @ (p - y) ** 2 / total),
        resolution=float(n @ (y - base) ** 2 / total),
        uncertainty=float(base * (1 - base)),
        within_variance=float((filled[:, CONFIDENCE_SQUARED] - n * p**2).sum() / total),
        within_covariance=float(2 * (filled[:, CONFIDENCE_OUTCOME] - n * p * y).sum() / total),
    )


def decompose_brier(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> BrierDecomposition | None:
    """Decompose the multiclass Brier score: the terms of `decompose_table` summed over classes.

    Args:
        statistics: merged statistics.
        bins: number of equal-width bins of each class's probability, a divisor of FINE_BINS.

    Returns:
        Five terms that add up to `brier`, or None without records.
    """
    if statistics.count == 0:
        return None
    terms = [decompose_table(coarsen(table, bins)) for table in statistics.class_wise]
    return BrierDecomposition(
        reliability=sum(term.reliability for term in terms),
        resolution=sum(term.resolution for term in terms),
        uncertainty=sum(term.uncertainty for term in terms),
        within_variance=sum(term.within_variance for term in terms),
        within_covariance=sum(term.within_covariance for term in terms),
    )


@dataclass(frozen=True)
class Auroc:
    """An area under the ROC curve whose records are known by cell only.

    Attributes:
        value: the area with pairs in the same cell counted as ties (one half).
        low: the area if each such pair is ordered wrongly.
        high: the area if each is ordered rightly.
    """

    value: float
    low: float
    high: float


def auroc(statistics: CalibrationStatistics) -> Auroc | None:
    """Return the area under the ROC curve: P(score of a positive > score of a negative) + ties / 2.

    The score of a class is its log odds. Two classes: those of y = 1. More: one against the rest, averaged over the
    classes that have a positive and a negative.

    Args:
        statistics: merged statistics.

    Returns:
        The area with hard bounds, which hold that of the records, or None where no class has both a positive and a
        negative.
    """
    found = [_area(table[:, OUTCOME], table[:, COUNT]) for table in statistics.class_wise]
    return _average(found[1:] if statistics.classes == 2 else found)


def exact_auroc(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Auroc | None:
    """Return the area of `auroc` from the records themselves, so that only equal scores are ties.

    Args:
        probabilities: class probabilities, shape (N, C), rows that sum to 1 within 1e-6.
        labels: true classes, shape (N,), integers 0 .. C - 1.

    Returns:
        The area, bounds equal to it, or None where no class has both a positive and a negative.

    Raises:
        ValueError: as `from_batch`.
    """
    probability = check_probabilities(probabilities)
    count, classes = probability.shape
    one_hot = np.eye(classes)[check_labels(labels, count, classes)]
    found = []
    for p, rest, positive in zip(probability.T, rest_of(probability).T, one_hot.T, strict=True):
        # By p up to one half and by the rest above it: the order of log odds without their rounding.
        score = np.column_stack([p > 0.5, np.where(p > 0.5, -rest, p)])
        values, place = np.unique(score, axis=0, return_inverse=True)
        sums = [np.bincount(place, weight, len(values)).astype(np.float64) for weight in (positive, np.ones(count))]
        found.append(_area(*sums))
    area = _average(found[1:] if classes == 2 else found)
    return None if area is None else Auroc(area.value, area.value, area.value)


def _average(areas: Sequence[tuple[float, float] | None]) -> Auroc | None:
    defined = [area for area in areas if area is not None]
    if not defined:
        return None
    value, half_ties = np.mean(defined, axis=0)
    return Auroc(float(value), float(value - half_ties), float(value + half_ties))


def _area(positive: Floats, count: Floats) -> tuple[float, float] | None:
    """Area and half the share of tied pairs, from positives and records by rising score."""
    negative = count - positive
    pairs = positive.sum() * negative.sum()
    if pairs == 0:
        return None
    below = np.cumsum(negative) - negative
    half_ties = positive @ negative / 2
    return (positive @ below + half_ties) / pairs, half_ties / pairs
