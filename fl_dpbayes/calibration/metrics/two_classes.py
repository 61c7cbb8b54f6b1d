"""What clinical prediction studies report of a two-class predictor: calibration intercept and slope, decision curves.

The intervals of intercept and slope are Wald's at 95 %, with the larger of two variances: the usual
one supposes that the fitted line is the truth, and where it was not, covered 92 % of the time; the
robust (sandwich) one is too small where errors are rare and none was seen.
"""

import math

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, FINE_BINS, OUTCOME, Floats, coarsen
from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE, Interval, Measured
from fl_dpbayes.calibration.records import NetBenefitRecord
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR, CalibrationStatistics

NEWTON_STEPS = 20
STANDARD_ERRORS = 1e-5
THRESHOLDS = tuple(step / 20 for step in range(1, 20))  # each an edge of fine bins
PRIOR_COUNT = 4 / 3


def calibration_intercept(statistics: CalibrationStatistics) -> Measured | None:
    """Return the calibration intercept (calibration in the large): a in logit P(y = 1) = a + logit p.

    0 is calibrated; above 0 events are more frequent than predicted. Records of a fine bin count at
    the bin's mean p, so logits beyond +-6.9 are known by their mean only. None for more than two
    classes or labels of one class only. Source: Cox, Biometrika 45 (1958), 562-565; Van Calster et
    al., BMC Medicine 17 (2019), 230.
    """
    if statistics.classes != 2:
        return None
    n, y, score = _logits(statistics)
    if not 0 < y.sum() < n.sum():
        return None
    base = logit(y.sum() / n.sum())
    # Beyond these ends every predicted probability is below, or above, the observed frequency.
    ends = base - score.max() - 1, base - score.min() + 1
    value = brentq(
        lambda intercept: float(n @ expit(intercept + score) - y.sum()), *ends, xtol=1e-12
    )
    return _wald(value, _variance(n, y, np.ones((n.size, 1)), value + score))


def calibration_slope(statistics: CalibrationStatistics) -> Measured | None:
    """Return the calibration slope: b in logit P(y = 1) = a + b logit p, with a free.

    1 is calibrated; below 1 predictions are too extreme, above 1 too modest. Records of a fine bin
    count at the bin's mean p, as in `calibration_intercept`. None for more than two classes, with
    labels of one class, one value of p, or where some threshold separates the classes, or so nearly
    that no maximum was found. Source: Cox, Biometrika 45 (1958), 562-565; Van Calster et al., BMC
    Medicine 17 (2019), 230.
    """
    if statistics.classes != 2:
        return None
    n, y, score = _logits(statistics)
    positive, negative = score[y > 0], score[y < n]
    if not positive.size or not negative.size or np.ptp(score) == 0:
        return None
    if positive.min() >= negative.max() or negative.min() >= positive.max():
        return None
    total, design = n.sum(), np.column_stack([np.ones_like(score), score])

    def loss(line: Floats) -> float:
        index = design @ line
        return float(n @ np.logaddexp(0, index) - y @ index) / total

    def gradient(line: Floats) -> Floats:
        return (n * expit(design @ line) - y) @ design / total

    def information(line: Floats) -> Floats:
        law = expit(design @ line)
        return (design * (n * law * (1 - law))[:, None]).T @ design / total

    line = minimize(
        loss,
        [0.0, 1.0],
        method="trust-exact",
        jac=gradient,
        hess=information,
        options={"gtol": 1e-7},
    ).x
    try:
        # Where few of many records overlap a small mean gradient is no sign of the maximum; a step
        # this small is.
        for _ in range(NEWTON_STEPS):
            descent = gradient(line)
            step = np.linalg.solve(information(line), descent)
            line = line - step
            if total * descent @ step < STANDARD_ERRORS**2:
                return _wald(float(line[1]), _variance(n, y, design, design @ line))
    except np.linalg.LinAlgError:
        pass
    return None


def _logits(statistics: CalibrationStatistics) -> tuple[Floats, Floats, Floats]:
    """Counts, outcomes and logit of the mean p(y = 1) of the fine bins that hold records."""
    table = coarsen(statistics.class_wise[1], FINE_BINS)
    filled = table[table[:, COUNT] > 0]
    mean = np.clip(
        filled[:, CONFIDENCE] / filled[:, COUNT], PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR
    )
    return filled[:, COUNT], filled[:, OUTCOME], logit(mean)


def _variance(n: Floats, y: Floats, design: Floats, index: Floats) -> float:
    """Variance of the last coefficient, the larger of A^-1 and N / (N - k) A^-1 B A^-1 (White 1980).

    A = sum_i x_i x_i' s_i (1 - s_i) and B = sum_i x_i x_i' (y_i - s_i)^2 over records, s =
    sigmoid(index).
    """
    law = expit(index)
    usual = np.linalg.inv((design * (n * law * (1 - law))[:, None]).T @ design)
    squares = (design * (y * (1 - law) ** 2 + (n - y) * law**2)[:, None]).T @ design
    robust = usual @ squares @ usual * n.sum() / max(1.0, n.sum() - design.shape[1])
    return float(max(usual[-1, -1], robust[-1, -1]))


def _wald(value: float, variance: float) -> Measured:
    half = NORMAL_QUANTILE * variance**0.5
    return Measured(value, Interval(value - half, value + half))


def net_benefit(statistics: CalibrationStatistics, threshold: float) -> NetBenefitRecord | None:
    """Return TP / N - FP / N t / (1 - t) of treating where p >= t, beside treating all and none.

    Per record, in units of a true positive. The interval is mean +- z s / sqrt(N) of the terms 1
    (true positive), -t / (1 - t) (false positive) and 0 (not treated), after 4/3 of each are added:
    without them it would have no width where none is treated. None for more than two classes or
    without records. Source: Vickers and Elkin, Medical Decision Making 26 (2006), 565-574; the
    added counts after Agresti and Coull, The American Statistician 52 (1998), 119-126. `threshold`:
    t, an inner edge of the fine bins.
    """
    first = round(threshold * FINE_BINS)
    if statistics.classes != 2 or statistics.count == 0:
        return None
    table, count = coarsen(statistics.class_wise[1], FINE_BINS), statistics.count
    harm = first / (FINE_BINS - first)
    treated, true_positive, events = (
        table[first:, COUNT].sum(),
        table[first:, OUTCOME].sum(),
        table[:, OUTCOME].sum(),
    )
    false_positive = treated - true_positive
    model = float(true_positive - false_positive * harm) / count

    size = count + 3 * PRIOR_COUNT
    gained, harmed = (true_positive + PRIOR_COUNT) / size, (false_positive + PRIOR_COUNT) / size
    middle = gained - harm * harmed
    half = NORMAL_QUANTILE * math.sqrt((gained + harm**2 * harmed - middle**2) / size)
    interval = min(model, float(middle - half)), max(model, float(middle + half))
    everybody = float(events - (count - events) * harm) / count
    missed = events - true_positive
    counts = tuple(map(int, (true_positive, false_positive, missed, count - treated - missed)))
    values = {
        "threshold": threshold,
        "counts": counts,
        "model": model,
        "interval": interval,
        "all": everybody,
    }
    return NetBenefitRecord.model_validate(values | {"none": 0.0})


def decision_curve(statistics: CalibrationStatistics) -> list[NetBenefitRecord] | None:
    """Return the net benefit at THRESHOLDS, or None for more than two classes or without records."""
    points = [point for threshold in THRESHOLDS if (point := net_benefit(statistics, threshold))]
    return points or None
