"""What clinical prediction studies report: calibration intercept and slope, decision curves.

The intervals of intercept and slope are Wald's at 95 %, with the larger of two variances: the usual
one supposes that the fitted line is the truth, and where it was not, covered 92 % of the time; the
robust (sandwich) one is too small where errors are rare and none was seen.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, FINE_BINS, OUTCOME, coarsen
from fl_dpbayes.calibration.curves import NetBenefitRecord
from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE, Interval, Measured, wilson_interval
from fl_dpbayes.calibration.metrics.logistic_fit import (
    covariances,
    fit_logistic,
    grouped_records,
)
from fl_dpbayes.calibration.statistics import CalibrationStatistics

THRESHOLDS = tuple(step / 20 for step in range(1, 20))  # each an edge of fine bins
PRIOR_COUNT = 4 / 3


def event_rate(statistics: CalibrationStatistics) -> Measured | None:
    """Return the share of records of class 1; None for more than two classes, or no record."""
    if statistics.risk is None or statistics.count == 0:
        return None
    events = float(statistics.risk[:, OUTCOME].sum())
    return Measured(events / statistics.count, wilson_interval(events, statistics.count))


def mean_risk(statistics: CalibrationStatistics) -> float | None:
    """Return the mean probability of class 1; None for more than two classes, or no record."""
    if statistics.risk is None or statistics.count == 0:
        return None
    return float(statistics.risk[:, CONFIDENCE].sum() / statistics.count)


def calibration_intercept(statistics: CalibrationStatistics) -> Measured | None:
    """Return the calibration intercept (calibration in the large).

    It is a in logit P(y = 1) = a + logit p. 0 is calibrated; above 0 events are more frequent than
    predicted. Records of a fine bin count at the bin's mean p, so logits beyond +-6.9 are known by
    their mean only. None for more than two classes or labels of one class only. Source: Cox,
    Biometrika 45 (1958), 562-565; Van Calster et al., BMC Medicine 17 (2019), 230.
    """
    if statistics.risk is None:
        return None
    records = grouped_records(statistics.risk)
    n = records.n
    events = records.y.sum()
    if not 0 < events < n.sum():
        return None
    base = logit(events / n.sum())
    # Below the first every predicted probability is below the observed frequency, above the second
    # above it.
    first = base - records.score.max() - 1
    last = base - records.score.min() + 1

    def excess(intercept: float) -> float:
        return float(n @ expit(intercept + records.score) - events)

    value = brentq(excess, first, last, xtol=1e-12)
    ones = np.ones((n.size, 1))
    (variance,) = covariances(records, ones, index=value + records.score).variance(ones[:1])
    return _wald(value, float(variance))


def calibration_slope(statistics: CalibrationStatistics) -> Measured | None:
    """Return the calibration slope: b in logit P(y = 1) = a + b logit p, with a free.

    1 is calibrated; below 1 predictions are too extreme, above 1 too modest. Records of a fine bin
    count at the bin's mean p, as in `calibration_intercept`. None for more than two classes, with
    labels of one class, one value of p, or where some threshold separates the classes, or so nearly
    that no maximum was found. Source: Cox, Biometrika 45 (1958), 562-565; Van Calster et al., BMC
    Medicine 17 (2019), 230.
    """
    if statistics.risk is None:
        return None
    records = grouped_records(statistics.risk)
    if not records.overlap:
        return None
    design = np.column_stack([np.ones_like(records.score), records.score])
    fit = fit_logistic(records, design, start=np.array([0.0, 1.0]))
    if fit is None:
        return None
    (variance,) = fit.covariances.variance(np.array([[0.0, 1.0]]))
    return _wald(float(fit.coefficients[1]), float(variance))


def _wald(value: float, variance: float) -> Measured:
    half = NORMAL_QUANTILE * variance**0.5
    return Measured(value, Interval(value - half, value + half))


def net_benefit(statistics: CalibrationStatistics, threshold: float) -> NetBenefitRecord | None:
    """Return TP / N - FP / N t / (1 - t) of treating where p >= t, beside treating all and none.

    Per record, in units of a true positive. The interval is mean +- z s / sqrt(N) of the terms 1
    (true positive), -t / (1 - t) (false positive) and 0 (not treated), after 4/3 of each are added:
    without them it would have no width where none is treated.

    Args:
        statistics: The sums.
        threshold: t, an inner edge of the fine bins.

    Returns:
        The net benefit; None for more than two classes or without records.

    Source: Vickers and Elkin, Medical Decision Making 26 (2006), 565-574; the added counts after
    Agresti and Coull, The American Statistician 52 (1998), 119-126.
    """
    if statistics.risk is None or statistics.count == 0:
        return None
    first_treated = round(threshold * FINE_BINS)
    table = coarsen(statistics.risk, FINE_BINS)
    count = statistics.count
    treated = table[first_treated:, COUNT].sum()
    true_positive = table[first_treated:, OUTCOME].sum()
    events = table[:, OUTCOME].sum()
    false_positive = treated - true_positive
    missed = events - true_positive
    harm = first_treated / (FINE_BINS - first_treated)
    of_model = float(true_positive - false_positive * harm) / count
    of_treating_all = float(events - (count - events) * harm) / count

    size = count + 3 * PRIOR_COUNT
    gained = (true_positive + PRIOR_COUNT) / size
    harmed = (false_positive + PRIOR_COUNT) / size
    middle = gained - harm * harmed
    half = NORMAL_QUANTILE * math.sqrt((gained + harm**2 * harmed - middle**2) / size)
    return NetBenefitRecord(
        threshold=threshold,
        counts=(
            int(true_positive),
            int(false_positive),
            int(missed),
            int(count - treated - missed),
        ),
        model=of_model,
        interval=(min(of_model, float(middle - half)), max(of_model, float(middle + half))),
        all=of_treating_all,
        none=0.0,
    )


def decision_curve(statistics: CalibrationStatistics) -> list[NetBenefitRecord] | None:
    """Return the net benefit at THRESHOLDS, or None for more than two classes or no records."""
    points = [net_benefit(statistics, threshold) for threshold in THRESHOLDS]
    defined = [point for point in points if point is not None]
    return defined or None
