"""Intervals that cover, from merged sums alone; level 95 % throughout.

The raw ECE has none here: percentile and basic bootstrap intervals of it miss a calibrated model's
value nearly always. It is shown with the value that a calibrated model would reach at that n.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtrit

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, FINE_BINS, REPORT_BINS, Floats, coarsen
from fl_dpbayes.calibration.statistics import CalibrationStatistics

LEVEL = 0.95
NORMAL_QUANTILE = 1.959963984540054  # of (1 + LEVEL) / 2
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
REPLICATES = 1000
_INSIDE = 1e-9


class Interval(NamedTuple):
    """Two ends, low <= high."""

    low: float
    high: float


class Measured(NamedTuple):
    """A metric's value.

    Attributes:
        value: The value.
        interval: Its 95 % interval, if it has one.
        bounds: What holds for every order of records that sums do not keep.
    """

    value: float
    interval: Interval | None = None
    bounds: Interval | None = None


def wilson_interval(successes: float, count: float, noise_variance: float = 0.0) -> Interval | None:
    """Return the score interval of a proportion, also where both sums carry noise.

    The proportions a with (y - a n)^2 <= z^2 [a (1 - a) n + v (1 + a^2)].

    Args:
        successes: y.
        count: n.
        noise_variance: v, of independent Gaussian noise on y and on n; 0 for exact sums.

    Returns:
        The interval within [0, 1]; [0, 1] where the noise hides n; None of no records.

    Source: Wilson, JASA 22 (1927), 209-212; Fieller's argument for the noisy denominator.
    """
    if count <= 0 and noise_variance == 0:
        return None
    z2 = NORMAL_QUANTILE**2
    quadratic = count**2 + z2 * (count - noise_variance)
    linear = successes * count + z2 * count / 2
    if count <= 0 or quadratic <= 0:
        return Interval(0.0, 1.0)
    # linear^2 - quadratic * constant, without the terms that cancel: among 10^8 records they would
    # hide the rest.
    inner = successes * count * (count - successes) + z2 * count**2 / 4
    inner += noise_variance * (count**2 + successes**2 + z2 * (count - noise_variance))
    root = math.sqrt(max(0.0, z2 * inner))
    low = (linear - root) / quadratic
    high = (linear + root) / quadratic
    # At 0 or all of n an end is the share itself, but for rounding.
    share = min(1.0, max(0.0, successes / count))
    return Interval(low=min(share, max(0.0, low)), high=max(share, min(1.0, high)))


def area_interval(area: float, positives: float, negatives: float) -> Interval:
    """Return the interval of an area under a ROC curve, also where no pair is in the wrong order.

    The areas a with |area - a| <= z V(a)^.5, N = (m + n) / 2 - 1 and

        V(a) = a (1 - a) [1 + N (1 - a) / (2 - a) + N a / (1 + a)] / (m n)

    Args:
        area: In [0, 1], of equal scores half.
        positives: m >= 1.
        negatives: n >= 1.

    Returns:
        The interval within [0, 1].

    Source: Newcombe, Statistics in Medicine 25 (2006), 559-573, method 5; the variance is Hanley
    and McNeil's.
    """
    records = (positives + negatives) / 2 - 1

    def excess(other: float) -> float:
        """Return the squared distance less z^2 times the variance, which rises outwards."""
        spread = 1 + records * ((1 - other) / (2 - other) + other / (1 + other))
        variance = other * (1 - other) * spread / (positives * negatives)
        return (area - other) ** 2 - NORMAL_QUANTILE**2 * variance

    # At 0 and at 1 the variance is 0, and so would be the squared distance.
    low = brentq(excess, 0.0, min(area, 1 - _INSIDE)) if area > 0 else 0.0
    high = brentq(excess, max(area, _INSIDE), 1.0) if area < 1 else 1.0
    return Interval(low=float(low), high=float(high))


class CalibratedEce(NamedTuple):
    """The ECE that a calibrated model would show.

    Attributes:
        mean: Its mean over draws of the outcomes.
        high: Its 95 % quantile.
    """

    mean: float
    high: float


def ece_if_calibrated(
    statistics: CalibrationStatistics, generator: np.random.Generator
) -> CalibratedEce:
    """Return the ECE that a calibrated model of the same confidences would show at this n.

    The outcomes of each fine bin are drawn with its mean confidence as their probability.

    Args:
        statistics: The sums over one record or more.
        generator: Source of the draws.

    Returns:
        Mean and 95 % quantile over draws.
    """
    fine = coarsen(statistics.top_label, FINE_BINS)
    bin_of_fine = np.arange(FINE_BINS) * REPORT_BINS // FINE_BINS
    filled = fine[:, COUNT] > 0
    outcomes = draw_calibrated(fine[filled], generator)
    starts = np.flatnonzero(np.diff(bin_of_fine[filled], prepend=-1))
    gaps = np.add.reduceat(fine[filled, CONFIDENCE] - outcomes, starts, axis=1)
    values = np.abs(gaps).sum(axis=1) / statistics.count
    return CalibratedEce(mean=float(values.mean()), high=float(np.quantile(values, LEVEL)))


def draw_calibrated(filled: Floats, generator: np.random.Generator) -> Floats:
    """Draw sums of outcomes as if each bin's mean confidence were the truth.

    Args:
        filled: Sums of 1 and p of bins that are not empty, shape (B, >= 2).
        generator: Source of the draws.

    Returns:
        Shape (REPLICATES, B).
    """
    counts = filled[:, COUNT]
    probabilities = np.clip(filled[:, CONFIDENCE] / counts, 0, 1)
    outcomes = generator.binomial(counts.astype(np.int64), probabilities, (REPLICATES, counts.size))
    return outcomes.astype(np.float64)


def student_interval(values: Sequence[float] | Floats) -> Interval:
    """Return mean +- t_{n - 1} s / sqrt(n), by Student's t over seeds.

    It speaks of seeds like these on the same data, not of other hospitals: t is 12.7 for two.

    Args:
        values: Two finite values or more, one per seed; of differences between methods, a seed
            gives both the same split, start and shift.

    Returns:
        The interval.

    Source: Student, Biometrika 6 (1908), 1-25.
    """
    mean = float(np.mean(values))
    count = len(values)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / math.sqrt(count))
    return Interval(mean - half, mean + half)
