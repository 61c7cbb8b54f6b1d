"""Calibration errors from merged sums: how far confidence and frequency lie apart.

Functions of `table` read one table of bins, shape (B, >= 3) with the sums of 1, p and y per bin; functions of
`statistics` choose table and bins. Without records every error is undefined, None.
"""

import math

import numpy as np

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, REPORT_BINS, Floats, coarsen, equal_mass
from fl_dpbayes.calibration.statistics import CalibrationStatistics


def bin_gaps(table: Floats) -> tuple[Floats, Floats]:
    """Return mean confidence minus frequency of each bin that holds records, and the bins' shares of the records.

    Args:
        table: sums of 1, p, y per bin, shape (B, >= 3).

    Returns:
        Gaps in [-1, 1] and shares that sum to 1, both of the length of the non-empty bins.
    """
    filled = table[table[:, COUNT] > 0]
    return (filled[:, CONFIDENCE] - filled[:, OUTCOME]) / filled[:, COUNT], filled[:, COUNT] / filled[:, COUNT].sum()


def mean_absolute_gap(table: Floats) -> float | None:
    """Return sum_b (n_b / N) |p_b - y_b| over the bins of a table (Naeini et al. 2015), or None without records."""
    gaps, shares = bin_gaps(table)
    return float(shares @ np.abs(gaps)) if gaps.size else None


def mean_square_gap(table: Floats) -> float | None:
    """Return sum_b (n_b / N) (p_b - y_b)^2 over the bins of a table, biased upwards; None without records."""
    gaps, shares = bin_gaps(table)
    return float(shares @ gaps**2) if gaps.size else None


def debiased_mean_square_gap(table: Floats, noise_std: Floats | float = 0.0) -> Floats:
    """Return the mean square gap less the part that chance alone puts into it; it may be negative.

    sum_b (n_b / N) [(p_b - y_b)^2 - 2 s_b^2 / n_b^2 - y_b (1 - y_b) / (n_b - 1)] over bins with n_b >= 2.

    Args:
        table: sums of 1, p, y per bin, shape (..., B, >= 3), with at least one record.
        noise_std: s_b, standard deviation of independent Gaussian noise on the sums, one value or shape (B,); 0 for
            exact sums.

    Returns:
        The estimate, shape (...). Bins of one record count in N and contribute nothing.

    Source: Kumar, Liang, Ma, "Verified uncertainty calibration", NeurIPS 2019, definition 5.2 (s = 0).
    """
    n = np.maximum(table[..., COUNT], 2.0)
    y = np.clip(table[..., OUTCOME] / n, 0, 1)
    gap = (table[..., CONFIDENCE] - table[..., OUTCOME]) / n
    excess = gap**2 - 2 * (noise_std / n) ** 2 - y * (1 - y) / (n - 1)
    return np.where(table[..., COUNT] >= 2, n * excess, 0.0).sum(axis=-1) / table[..., COUNT].sum(axis=-1)


def ece(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the expected calibration error of the top label in equal-width bins.

    sum_b (n_b / N) |conf_b - acc_b|. Biased upwards for small N: show `intervals.ece_if_calibrated` beside it.

    Args:
        statistics: merged statistics.
        bins: number of bins, a divisor of FINE_BINS.

    Returns:
        A value in [0, 1], or None without records.

    Source: Guo et al., "On calibration of modern neural networks", ICML 2017, equation 3.
    """
    return mean_absolute_gap(coarsen(statistics.top_label, bins))


def ece_equal_mass(statistics: CalibrationStatistics, ranges: int = REPORT_BINS) -> float | None:
    """Return the expected calibration error of the top label in ranges of about equally many records.

    sum_r (n_r / N) |conf_r - acc_r|, ranges being unions of cells of the merged histogram.

    Args:
        statistics: merged statistics.
        ranges: number of ranges R.

    Returns:
        A value in [0, 1], or None without records.

    Source: Nguyen and O'Connor, "Posterior calibration and exploratory analysis for natural language processing
        models", EMNLP 2015, section 4.
    """
    return mean_absolute_gap(equal_mass(statistics.top_label, ranges))


def ece_binary(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the expected calibration error of p(y = 1) against y, another number than that of the top label.

    sum_b (n_b / N) |p_b - y_b|, bins over all of [0, 1].

    Args:
        statistics: merged statistics.
        bins: number of bins, a divisor of FINE_BINS.

    Returns:
        A value in [0, 1], or None for more than two classes or without records.

    Source: Naeini, Cooper, Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015.
    """
    return mean_absolute_gap(coarsen(statistics.class_wise[1], bins)) if statistics.classes == 2 else None


def mce(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the largest gap |conf_b - acc_b| of the top label over equal-width bins (Guo et al. 2017, equation 5).

    Args:
        statistics: merged statistics.
        bins: number of bins, a divisor of FINE_BINS.

    Returns:
        A value in [0, 1], or None without records.
    """
    gaps, _ = bin_gaps(coarsen(statistics.top_label, bins))
    return float(np.abs(gaps).max()) if gaps.size else None


def rms(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the root-mean-square gap of the top label over equal-width bins, biased upwards.

    Args:
        statistics: merged statistics.
        bins: number of bins, a divisor of FINE_BINS.

    Returns:
        sqrt(sum_b (n_b / N) (conf_b - acc_b)^2) in [0, 1], or None without records.
    """
    square = mean_square_gap(coarsen(statistics.top_label, bins))
    return None if square is None else math.sqrt(square)


def rms_debiased(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the debiased root-mean-square gap of the top label over equal-width bins.

    sqrt(max(0, debiased_mean_square_gap)): the debiased square of a calibrated model is negative about half of the
    time, which is shown as 0.

    Args:
        statistics: merged statistics.
        bins: number of bins, a divisor of FINE_BINS.

    Returns:
        A value in [0, 1], or None without records.
    """
    if statistics.count == 0:
        return None
    return math.sqrt(max(0.0, float(debiased_mean_square_gap(coarsen(statistics.top_label, bins)))))


def sce(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the static calibration error: every class's probability in equal-width bins, averaged over all classes.

    (1 / C) sum_c sum_b (n_bc / N) |acc_bc - conf_bc|.

    Args:
        statistics: merged statistics.
        bins: number of bins, a divisor of FINE_BINS.

    Returns:
        A value in [0, 1], or None without records.

    Source: Nixon et al., "Measuring calibration in deep learning", CVPR workshops 2019, section 3.
    """
    if statistics.count == 0:
        return None
    return float(np.mean([mean_absolute_gap(coarsen(table, bins)) for table in statistics.class_wise]))


def ace(statistics: CalibrationStatistics, ranges: int = REPORT_BINS) -> float | None:
    """Return the adaptive calibration error: every class's probability in equal-mass ranges, averaged over classes.

    (1 / C) sum_c sum_r (n_rc / N) |acc_rc - conf_rc|, which is Nixon's 1 / (C R) where masses are equal. The ranges
    are unions of cells of the merged histogram, so ties and crowded cells make them unequal; hence the weights.

    Args:
        statistics: merged statistics.
        ranges: number of ranges R.

    Returns:
        A value in [0, 1], or None without records.

    Source: Nixon et al., "Measuring calibration in deep learning", CVPR workshops 2019, section 3.
    """
    if statistics.count == 0:
        return None
    return float(np.mean([mean_absolute_gap(equal_mass(table, ranges)) for table in statistics.class_wise]))
