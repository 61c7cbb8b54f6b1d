"""Split conformal prediction sets from histograms of p_label, merged or private.

It gives their thresholds, coverage and size.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import COUNT, FINE_BINS, OUTCOME, Floats, bin_index, coarsen
from fl_dpbayes.calibration.intervals import Interval, wilson_interval
from fl_dpbayes.calibration.release import BoundedSum, bounded_sum
from fl_dpbayes.calibration.statistics import CalibrationStatistics

LEVEL = 0.9
ROUNDING = 1e-9
# Powers of two, so that an edge is the same float64 in every rule: counts that get noise, and exact
# ones.
NOISED_BINS = 16
EXACT_BINS = 1024
# The mean of |N(0, 1)|: noise carries a sum over a line by no more than this many standard
# deviations on average.
OVERSHOOT = math.sqrt(2 / math.pi)
# A share of the sensitivity: more than the rounding of alpha m for up to 2^22 units.
PRODUCT_ROUNDING = 2.0**-30

FirstBins = npt.NDArray[np.int64]


def set_thresholds(
    calibration: CalibrationStatistics, level: float, weights: Floats | None = None
) -> FirstBins:
    """Return the thresholds of prediction sets that hold the label with probability `level`.

    The sets are {c : p_c >= t_c}, the score 1 - p_label. t_c is the lower edge of the fine bin in
    which the calibration records, sorted from the largest p_label down and weighing w_label each,
    first reach level (sum_i w_i + w_c); 0, the full set, where they never do. Without weights that
    is the record of rank ceil((n + 1) level). Rounding down to an edge makes sets larger by at most
    one bin, so the promise holds: coverage is at least `level` on average over calibration sets,
    for one new record from the same population (from the one that the weights describe).

    Args:
        calibration: Sums over the calibration records.
        level: 1 - alpha, in (0, 1).
        weights: w, prevalence at the target over prevalence in the calibration records, shape (C,),
            >= 0; None for 1.

    Returns:
        Index of the first fine bin of p_c that is in the set, per class, shape (C,); t_c is that
        index / FINE_BINS.

    Source: Sadinle, Lei, Wasserman, JASA 114 (2019), 223-234 (score); Tibshirani et al., NeurIPS
    2019, and Podkopaev and Ramdas, UAI 2021 (weights for label shift, the candidate's own mass at
    infinity).
    """
    mass = np.ones(calibration.classes) if weights is None else weights
    labels = coarsen(calibration.class_wise, FINE_BINS)[..., OUTCOME]
    mass_above = np.cumsum((mass @ labels)[::-1])
    needed = level * (mass_above[-1] + mass)
    from_top = np.searchsorted(mass_above, needed - ROUNDING * (1 + needed))
    return np.maximum(FINE_BINS - 1 - from_top, 0)


class SetQuality(NamedTuple):
    """How prediction sets did on test records.

    Attributes:
        coverage: Share of records whose set holds the label.
        interval: Its 95 % Wilson interval.
        size: Mean number of classes in a set.
    """

    coverage: float
    interval: Interval | None
    size: float


def measure_sets(statistics: CalibrationStatistics, first: FirstBins) -> SetQuality:
    """Return coverage and mean size of sets, exactly, as thresholds are edges of fine bins.

    Args:
        statistics: Sums over one test record or more.
        first: What `set_thresholds` returned, shape (C,).

    Returns:
        The quality.
    """
    fine = coarsen(statistics.class_wise, FINE_BINS)
    tables = [table[start:] for table, start in zip(fine, first, strict=True)]
    covered = float(sum(table[:, OUTCOME].sum() for table in tables))
    members = float(sum(table[:, COUNT].sum() for table in tables))
    return SetQuality(
        coverage=covered / statistics.count,
        interval=wilson_interval(covered, statistics.count),
        size=members / statistics.count,
    )


def set_counts(of_label: Floats, units: FirstBins, bins: int, level: float) -> BoundedSum:
    """Return a hospital's counts for `private_threshold`.

    A unit adds one to the bin of its lowest p_label and takes 1 - level from the first cell, so
    nobody has to tell the number of units.

    Args:
        of_label: p_label, shape (N,); one that is not a number counts as 0.
        units: Each record's unit, 0, 1, ..., without gaps, shape (N,).
        bins: Number of bins.
        level: 1 - alpha, in (0, 1).

    Returns:
        The counts, shape (1 + bins,).
    """
    lowest = np.ones(units.max() + 1)
    np.minimum.at(lowest, units, np.nan_to_num(of_label))
    cells = bin_index(np.maximum(lowest, 0.0), bins)
    per_bin = bounded_sum(np.ones((len(lowest), 1)), 1.0, cells=cells, cell_count=bins)
    counts = np.append(-(1 - level) * len(lowest), per_bin.sums)
    return BoundedSum(counts, set_sensitivity(level))


def set_sensitivity(level: float) -> float:
    """Return by how much a unit moves `set_counts` of up to 2^22 units at most.

    It is sqrt(1 + alpha^2), and rounding.

    Args:
        level: 1 - alpha, in (0, 1).

    Returns:
        The sensitivity, in L2.
    """
    return math.hypot(1.0, 1 - level) * (1 + PRODUCT_ROUNDING)


def private_threshold(counts: Floats, noise_std: float, level: float) -> float:
    """Return the threshold of prediction sets {c : p_c >= t} from noisy `set_counts`.

    t is the edge before the first, from below, at which N(p < t) - (1 - level) m + noise > -level -
    kappa, where kappa = sqrt(2 / pi) noise_std. If m + 1 units are exchangeable, and m >= kappa /
    (1 - level) - 1, sets hold all labels of a new unit with probability `level` or more. Proof:
    docs/proofs/private-sets.md. Without noise t is the p_label of rank ceil((m + 1) level) from
    above, rounded down to an edge.

    Args:
        counts: `set_counts` with independent N(0, noise_std^2) on each, shape (1 + bins,).
        noise_std: 0 or more.
        level: 1 - alpha, in (0, 1).

    Returns:
        t in [0, 1].
    """
    crossed = np.cumsum(counts) > -level - OVERSHOOT * noise_std + ROUNDING
    first_crossed = int(np.append(crossed, True).argmax())
    return max(first_crossed - 1, 0) / (len(counts) - 1)
