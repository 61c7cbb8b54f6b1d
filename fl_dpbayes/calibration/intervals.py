"""Intervals that cover, from merged sums alone; level 95 % throughout.

The raw ECE has none here: percentile and basic bootstrap intervals of it miss a calibrated model's
value nearly always. It is shown with the value that a calibrated model would reach at that n.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, FINE_BINS, REPORT_BINS, Floats, coarsen
from fl_dpbayes.calibration.statistics import CalibrationStatistics

LEVEL = 0.95
NORMAL_QUANTILE = 1.959963984540054  # of (1 + LEVEL) / 2
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
REPLICATES = 1000


class Interval(NamedTuple):
    """Two ends, low <= high."""

    low: float
    high: float


class Measured(NamedTuple):
    """A metric's value with its 95 % interval, or bounds that hold for every order of records that sums do not keep."""

    value: float
    interval: Interval | None = None
    bounds: Interval | None = None


def wilson_interval(successes: float, count: float, noise_variance: float = 0.0) -> Interval | None:
    """Return the score interval of a proportion, also where both sums carry noise of known variance.

    The proportions a with (y - a n)^2 <= z^2 [a (1 - a) n + v (1 + a^2)]. Source: Wilson, JASA 22
    (1927), 209-212; Fieller's argument for the noisy denominator. `noise_variance`: v, of
    independent Gaussian noise on y and on n; 0 for exact sums. Returns the interval within [0, 1];
    [0, 1] where the noise hides n; None of no records.
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
    low, high = (linear - root) / quadratic, (linear + root) / quadratic
    share = min(
        1.0, max(0.0, successes / count)
    )  # at 0 or all of n an end is the share itself but for rounding
    return Interval(min(share, max(0.0, low)), max(share, min(1.0, high)))


def ece_if_calibrated(
    statistics: CalibrationStatistics, generator: np.random.Generator, bins: int = REPORT_BINS
) -> tuple[float, float] | None:
    """Return mean and 95 % quantile of the ECE that a calibrated model of the same confidences would show at this n.

    The outcomes of each fine bin are drawn with its mean confidence as their probability. None
    without records.
    """
    if statistics.count == 0:
        return None
    fine = coarsen(statistics.top_label, FINE_BINS)
    wide = np.arange(len(fine)) * bins // len(fine)
    filled = fine[:, COUNT] > 0
    drawn = draw_calibrated(fine[filled], generator)
    starts = np.flatnonzero(np.diff(wide[filled], prepend=-1))
    gaps = np.add.reduceat(fine[filled, CONFIDENCE] - drawn, starts, axis=1)
    values = np.abs(gaps).sum(axis=1) / statistics.count
    return float(values.mean()), float(np.quantile(values, LEVEL))


def draw_calibrated(filled: Floats, generator: np.random.Generator) -> Floats:
    """Draw sums of outcomes (REPLICATES, B) of B non-empty bins as if the mean confidence of each were the truth."""
    n = filled[:, COUNT]
    law = np.clip(filled[:, CONFIDENCE] / n, 0, 1)
    return generator.binomial(n.astype(np.int64), law, (REPLICATES, n.size)).astype(np.float64)


def student_interval(values: Sequence[float] | Floats) -> Interval:
    """Return mean +- t_{n - 1} s / sqrt(n) of two finite values or more, one per seed, by Student's t over seeds.

    Of differences between methods a seed gives both the same split, start and shift. It speaks of
    seeds like these on the same data, not of other hospitals: t is 12.7 for two. Source: Student,
    Biometrika 6 (1908), 1-25.
    """
    mean, count = float(np.mean(values)), len(values)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / math.sqrt(count))
    return Interval(mean - half, mean + half)
