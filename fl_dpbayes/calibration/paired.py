"""The difference between two methods over the seeds they share."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.intervals import LEVEL, Interval


class PairedDifference(NamedTuple):
    """Mean of `a - b` over pairs, its 95 % interval, and how many pairs there were."""

    mean: float
    interval: Interval
    pairs: int


def paired_difference(
    values_a: Sequence[float] | Floats, values_b: Sequence[float] | Floats
) -> PairedDifference | None:
    """Return mean(d) +- t_{pairs - 1} s_d / sqrt(pairs) of d = a - b, by Student's t over pairs.

    A pair is one seed, which gives both methods the same split, start and shift. The interval speaks of the mean over
    seeds like these on the same data, not over other hospitals. Few pairs make it wide: t is 12.7 for two of them, and
    equal differences give one of no width.

    Args:
        values_a: figures of one method, one per pair, finite.
        values_b: those of the baseline, in the same order.

    Returns:
        The difference, or None for fewer than two pairs.

    Raises:
        ValueError: The lengths differ, or a value is not finite.

    Source: Student, Biometrika 6 (1908), 1-25.
    """
    differences = np.subtract(*_checked(values_a, values_b))
    pairs = len(differences)
    if pairs < 2:
        return None
    mean = float(differences.mean())
    half = float(student.ppf((1 + LEVEL) / 2, pairs - 1) * differences.std(ddof=1) / math.sqrt(pairs))
    return PairedDifference(mean, Interval(mean - half, mean + half), pairs)


def _checked(values_a: Sequence[float] | Floats, values_b: Sequence[float] | Floats) -> tuple[Floats, Floats]:
    a, b = np.asarray(values_a, dtype=np.float64), np.asarray(values_b, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"pairs need two lists of equal length, not shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("pairs need finite values: leave out the pairs where a figure is undefined")
    return a, b
