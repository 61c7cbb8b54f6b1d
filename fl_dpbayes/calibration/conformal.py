"""Split conformal prediction sets from histograms of p_label, merged or private: thresholds, coverage and size."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import COUNT, FINE_BINS, OUTCOME, Floats, bin_index, coarsen
from fl_dpbayes.calibration.intervals import Interval, wilson_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics

LEVEL = 0.9
ROUNDING = 1e-9
# Powers of two, so that an edge is the same float64 in every rule: counts that get noise, and exact ones.
NOISED_BINS, EXACT_BINS = 16, 1024
# The mean of |N(0, 1)|: noise carries a sum over a line by no more than this many standard deviations on average.
OVERSHOOT = math.sqrt(2 / math.pi)

FirstBins = npt.NDArray[np.int64]


def set_thresholds(calibration: CalibrationStatistics, level: float, weights: Floats | None = None) -> FirstBins:
    """Return the thresholds of prediction sets {c : p_c >= t_c} that hold the label with probability `level`.

    Score 1 - p_label. t_c is the lower edge of the fine bin in which the calibration records, sorted from the largest
    p_label down and weighing w_label each, first reach level (sum_i w_i + w_c); 0, the full set, where they never do.
    Without weights that is the record of rank ceil((n + 1) level). Rounding down to an edge makes sets larger by at
    most one bin, so the promise holds: coverage is at least `level` on average over calibration sets, for one new
    record from the same population (from the one that the weights describe).

    Source: Sadinle, Lei, Wasserman, JASA 114 (2019), 223-234 (score); Tibshirani et al., NeurIPS 2019, and Podkopaev
    and Ramdas, UAI 2021 (weights for label shift, the candidate's own mass at infinity). `level`: 1 - alpha, in (0, 1).
    `weights`: w, prevalence at the target over prevalence in the calibration records, shape (C,), >= 0; None for 1.
    Returns index of the first fine bin of p_c that is in the set, per class, shape (C,); t_c is that index / FINE_BINS.
    """
    mass = np.ones(calibration.classes) if weights is None else weights
    reached = np.cumsum((mass @ coarsen(calibration.class_wise, FINE_BINS)[..., OUTCOME])[::-1])
    wanted = level * (reached[-1] + mass)
    from_top = np.searchsorted(reached, wanted - ROUNDING * (1 + wanted))
    return np.maximum(FINE_BINS - 1 - from_top, 0)


class SetQuality(NamedTuple):
    """Share of records whose set holds the label, its 95 % Wilson interval, and mean number of classes in a set."""

    coverage: float
    interval: Interval | None
    size: float


def measure_sets(statistics: CalibrationStatistics, first: FirstBins) -> SetQuality | None:
    """Return coverage and mean size of sets from `set_thresholds`, exactly, as thresholds are edges of fine bins."""
    if statistics.count == 0:
        return None
    fine = coarsen(statistics.class_wise, FINE_BINS)
    tables = [table[start:] for table, start in zip(fine, first, strict=True)]
    covered = float(sum(table[:, OUTCOME].sum() for table in tables))
    members = float(sum(table[:, COUNT].sum() for table in tables))
    count = statistics.count
    return SetQuality(covered / count, wilson_interval(covered, count), members / count)


def counts_sensitivity(level: float) -> float:
    """Return sqrt(1 + (1 - level)^2), by which adding or removing a unit moves `set_counts` in L2."""
    return math.hypot(1.0, 1 - level)


def set_counts(of_label: Floats, units: FirstBins, bins: int, level: float) -> Floats:
    """Return a hospital's counts for `private_threshold`.

    A unit adds one to the bin of its lowest p_label, and takes 1 - level from the first cell: so nobody has to tell the
    number of units, which is private too. `of_label`: p_label, (N,). `units`: each record's unit, 0, 1, ..., without
    gaps, (N,). Returns shape (1 + bins,).
    """
    lowest = np.ones(units.max() + 1)
    np.minimum.at(lowest, units, of_label)
    counts = np.bincount(bin_index(lowest, bins), minlength=bins)
    return np.concatenate([[-(1 - level) * len(lowest)], counts])


def private_threshold(counts: Floats, noise_std: float, level: float) -> float:
    """Return t of prediction sets {c : p_c >= t} that hold every label of a new unit with probability `level`.

    The sum of counts is followed from the lowest p_label up, and t is the edge before the first at which

        N(p < t) - (1 - level) m + noise > (1 - level) - 1 - sqrt(2 / pi) noise_std.

    Coverage is at least `level` on average over the hospital's units, the noise and the new unit, if the m + 1 units
    are exchangeable, the noise of each cell is an independent N(0, noise_std^2), and m >= `least_units`. Proof:
    docs/proofs/private-sets.md. `counts`: of `set_counts`, with noise, or exact (noise_std 0): then t is that of rank
    ceil((m + 1) level), rounded down to an edge. Returns t in [0, 1]; 0 is the full set.
    """
    over = np.cumsum(counts) > -level - OVERSHOOT * noise_std + ROUNDING
    crossed = int(over.argmax()) if over.any() else len(counts)
    return max(crossed - 1, 0) / (len(counts) - 1)


def least_units(noise_std: float, level: float) -> float:
    """Return the number of units from which the guarantee of `private_threshold` holds."""
    return OVERSHOOT * noise_std / (1 - level) - 1
