"""Calibration errors from merged sums: how far confidence and frequency lie apart.

Functions of `table` read sums of 1, p and y per bin, shape (B, >= 3); functions of `statistics`
choose the table, and REPORT_BINS bins or ranges of it where no other divisor of FINE_BINS is set.
Without records every error is undefined, None; else it lies in [0, 1].
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrik

from fl_dpbayes.calibration.bins import (
    CONFIDENCE,
    COUNT,
    FINE_BINS,
    OUTCOME,
    REPORT_BINS,
    Floats,
    coarsen,
    equal_mass,
)
from fl_dpbayes.calibration.curves import ReliabilityBin
from fl_dpbayes.calibration.intervals import TAILS, Measured
from fl_dpbayes.calibration.rms_interval import debiased_mean_square_gap, rms_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics

# A diagram with fewer records a bin has wider ranges, of about so many records, up to so many.
PER_BIN = 100
PER_RANGE = 25
MOST_RANGES = 10


class Gaps(NamedTuple):
    """Of each bin that holds records.

    Attributes:
        gaps: Mean confidence minus frequency, shape (B,).
        shares: Share of the records, shape (B,).
    """

    gaps: Floats
    shares: Floats


def bin_gaps(table: Floats) -> Gaps:
    """Return the gap of each bin that holds records, and the bins' shares of the records."""
    filled = table[table[:, COUNT] > 0]
    count = filled[:, COUNT]
    return Gaps(
        gaps=(filled[:, CONFIDENCE] - filled[:, OUTCOME]) / count, shares=count / count.sum()
    )


def mean_absolute_gap(table: Floats) -> float | None:
    """Return sum_b (n_b / N) |p_b - y_b| over the bins of a table (Naeini et al. 2015)."""
    gaps, shares = bin_gaps(table)
    return float(shares @ np.abs(gaps)) if gaps.size else None


def ece(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the expected calibration error of the top label, sum_b (n_b / N) |conf_b - acc_b|.

    In equal-width bins. Biased upwards for small N: show `intervals.ece_if_calibrated` beside it.
    Source: Guo et al., "On calibration of modern neural networks", ICML 2017, equation 3.
    """
    return mean_absolute_gap(coarsen(statistics.top_label, bins))


ece_10 = partial(ece, bins=10)
ece_20 = partial(ece, bins=20)


def ece_equal_mass(statistics: CalibrationStatistics) -> float | None:
    """Return sum_r (n_r / N) |conf_r - acc_r| of the top label in ranges of about equal mass.

    Source: Nguyen and O'Connor, EMNLP 2015, section 4.
    """
    return mean_absolute_gap(equal_mass(statistics.top_label, REPORT_BINS))


def ece_binary(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return sum_b (n_b / N) |p_b - y_b| of p(y = 1), not the number of the top label.

    None but for 2 classes. Source: Naeini, Cooper, Hauskrecht, "Obtaining well calibrated
    probabilities using Bayesian binning", AAAI 2015.
    """
    if statistics.classes != 2:
        return None
    return mean_absolute_gap(coarsen(statistics.class_wise[1], bins))


def mce(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the largest gap |conf_b - acc_b| of the top label over equal-width bins.

    Source: Guo et al. 2017, equation 5.
    """
    gaps = bin_gaps(coarsen(statistics.top_label, bins)).gaps
    return float(np.abs(gaps).max()) if gaps.size else None


def rms_debiased(statistics: CalibrationStatistics) -> Measured | None:
    """Return sqrt(max(0, debiased_mean_square_gap)) of the top label, with its interval.

    In equal-width bins. The debiased square of a calibrated model is negative about half of the
    time, which is shown as 0.
    """
    if statistics.count == 0:
        return None
    table = coarsen(statistics.top_label, REPORT_BINS)
    mean_square_gap = float(debiased_mean_square_gap(table))
    return Measured(math.sqrt(max(0.0, mean_square_gap)), rms_interval(table))


def sce(statistics: CalibrationStatistics) -> float | None:
    """Return the static calibration error, (1 / C) sum_c sum_b (n_bc / N) |acc_bc - conf_bc|.

    In equal-width bins. Source: Nixon et al., "Measuring calibration in deep learning", CVPR
    workshops 2019, section 3.
    """
    tables = [coarsen(table, REPORT_BINS) for table in statistics.class_wise]
    return _mean_over_classes([mean_absolute_gap(table) for table in tables])


def ace(statistics: CalibrationStatistics) -> float | None:
    """Return the adaptive calibration error, (1 / C) sum_c sum_r (n_rc / N) |acc_rc - conf_rc|.

    In equal-mass ranges. That is Nixon's 1 / (C R) where masses are equal; ties and crowded cells
    make them unequal. Source: as of `sce`.
    """
    tables = [equal_mass(table, REPORT_BINS) for table in statistics.class_wise]
    return _mean_over_classes([mean_absolute_gap(table) for table in tables])


def ece_true(statistics: CalibrationStatistics) -> float | None:
    """Return `ece` without the chance in the labels: sum_b (n_b / N) |mean_b p - mean_b q|.

    q = p(y = top label | x). None unless the truth of every record is known.
    """
    return mean_absolute_gap(_with_truth(statistics))


def rms_true(statistics: CalibrationStatistics) -> float | None:
    """Return sqrt(sum_b (n_b / N) (mean_b p - mean_b q)^2), which `rms_debiased` estimates.

    q and None as for `ece_true`.
    """
    gaps, shares = bin_gaps(_with_truth(statistics))
    return math.sqrt(float(shares @ gaps**2)) if gaps.size else None


def _mean_over_classes(errors: list[float | None]) -> float | None:
    defined = [error for error in errors if error is not None]
    return float(np.mean(defined)) if defined else None


def _with_truth(statistics: CalibrationStatistics) -> Floats:
    """Put sums of true probabilities in the place of outcomes; no bins where one is unknown."""
    if statistics.truth_count < statistics.count:
        return np.zeros((0, OUTCOME + 1))
    columns = [
        statistics.top_label[:, COUNT],
        statistics.top_label[:, CONFIDENCE],
        statistics.truth,
    ]
    return coarsen(np.stack(columns, axis=1), REPORT_BINS)


def reliability_bins(
    statistics: CalibrationStatistics, bins: int = REPORT_BINS
) -> tuple[ReliabilityBin, ...]:
    """Return the bins of a reliability diagram with a pointwise 95 % consistency band.

    Of two classes they are of the risk p(y = 1), of more of the top label's confidence. With fewer
    than 100 records a bin, they are up to ten ranges of about equally many, at least 25 of 50. The
    band holds the 2.5 and 97.5 % quantiles of Binomial(n_b, conf_b) / n_b, which is not narrower
    than the law of the sum of outcomes with unequal confidences.

    Args:
        statistics: The sums.
        bins: Of equal width.

    Returns:
        The bins, empty ones included; `n` over all of them is the histogram.

    Source: Bröcker and Smith 2007.
    """
    table = statistics.top_label if statistics.risk is None else statistics.risk
    fine = coarsen(table, FINE_BINS)
    starts = _diagram_starts(fine[:, COUNT], statistics.count, bins)
    ends = [*starts[1:], FINE_BINS]
    sums = np.add.reduceat(fine, starts)
    count = sums[:, COUNT]
    divisor = np.maximum(count, 1)
    confidence = np.minimum(1.0, sums[:, CONFIDENCE] / divisor)
    accuracy = sums[:, OUTCOME] / divisor
    tails = np.array(TAILS)[:, None]
    band = _binomial_quantiles(tails=tails, n=divisor, p=confidence) / divisor
    diagram = []
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        low = start / FINE_BINS
        high = end / FINE_BINS
        if not count[k]:
            diagram.append(ReliabilityBin(low=low, high=high, n=0))
            continue
        diagram.append(
            ReliabilityBin(
                low=low,
                high=high,
                n=int(count[k]),
                confidence=float(confidence[k]),
                accuracy=float(accuracy[k]),
                band_low=float(band[0, k]),
                band_high=float(band[1, k]),
            )
        )
    return tuple(diagram)


def _binomial_quantiles(tails: Floats, n: Floats, p: Floats) -> Floats:
    """Return as scipy.stats.binom.ppf, whose package takes a third of a second to import."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    quantiles = np.ceil(np.maximum(bdtrik(tails, n, p), 0))
    below = np.maximum(quantiles - 1, 0)
    return np.where(bdtr(below, n.astype(np.int64), p) >= tails, below, quantiles)


def _diagram_starts(counts: Floats, total: float, bins: int) -> npt.NDArray[np.int64]:
    """Return the first fine bin of each bin of a diagram."""
    if not 0 < total < PER_BIN * bins:
        return np.arange(bins) * (FINE_BINS // bins)
    ranges = min(MOST_RANGES, max(2, int(total // PER_RANGE)))
    middle = np.cumsum(counts) - counts / 2
    firsts = np.searchsorted(ranges * middle / total, np.arange(1, ranges))
    # Where all are as sure as can be, a range would begin behind the last bin.
    return np.unique([0, *firsts[firsts < FINE_BINS]])
