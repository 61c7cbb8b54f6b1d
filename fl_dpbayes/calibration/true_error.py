"""Calibration errors by known truth: what the estimates of `errors` estimate, where records are made up."""

import math

import numpy as np

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, REPORT_BINS, Floats, coarsen
from fl_dpbayes.calibration.errors import mean_absolute_gap, mean_square_gap
from fl_dpbayes.calibration.statistics import CalibrationStatistics


def true_ece(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the mean absolute gap between confidence and true probability of the top label, on these records.

    sum_b (n_b / N) |mean_b p - mean_b q|, q = p(y = top label | x): `ece` with its outcomes replaced by their
    expectations, so free of the chance in the labels.

    Args:
        statistics: merged statistics.
        bins: number of equal-width bins, a divisor of FINE_BINS.

    Returns:
        A value in [0, 1], or None unless the truth of every record is known.
    """
    table = _with_truth(statistics, bins)
    return None if table is None else mean_absolute_gap(table)


def true_rms(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> float | None:
    """Return the root-mean-square gap between confidence and true probability: what `rms_debiased` estimates.

    sqrt(sum_b (n_b / N) (mean_b p - mean_b q)^2), q = p(y = top label | x).

    Args:
        statistics: merged statistics.
        bins: number of equal-width bins, a divisor of FINE_BINS.

    Returns:
        A value in [0, 1], or None unless the truth of every record is known.
    """
    table = _with_truth(statistics, bins)
    square = None if table is None else mean_square_gap(table)
    return None if square is None else math.sqrt(square)


def _with_truth(statistics: CalibrationStatistics, bins: int) -> Floats | None:
    """Put sums of true probabilities in the place of those of outcomes."""
    if statistics.truth_count < statistics.count:
        return None
    columns = [statistics.top_label[:, COUNT], statistics.top_label[:, CONFIDENCE], statistics.truth]
    return coarsen(np.stack(columns, axis=1), bins)
