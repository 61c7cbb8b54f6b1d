"""What clinical prediction studies report: calibration intercept and slope, decision curves.

The intervals of intercept and slope are Wald's at 95 %, with the larger of two variances: the usual
one supposes that the fitted line is the truth, and where it was not, covered 92 % of the time; the
robust (sandwich) one is too small where errors are rare and none was seen.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, FINE_BINS, OUTCOME, Floats, coarsen
from fl_dpbayes.calibration.curves import NetBenefitRecord
from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE, Interval, Measured, wilson_interval
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR, CalibrationStatistics

NEWTON_STEPS = 20
STANDARD_ERRORS = 1e-5
THRESHOLDS = tuple(step / 20 for step in range(1, 20))  # each an edge of fine bins
PRIOR_COUNT = 4 / 3


@dataclass(frozen=True)
class _GroupedRecords:
    """Records of two classes in the fine bins that hold some, (B,).

    Attributes:
        n: Records.
        y: Of which class 1.
        score: Logit of their mean p(y = 1).
    """

    n: Floats
    y: Floats
    score: Floats


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
    records = _grouped(statistics.risk)
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
    variance = _variance(records=records, design=np.ones((n.size, 1)), index=value + records.score)
    return _wald(value, variance)


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
    records = _grouped(statistics.risk)
    if not _overlap(records):
        return None
    n = records.n
    y = records.y
    total = n.sum()
    design = np.column_stack([np.ones_like(records.score), records.score])

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
        # Where few of many records overlap, a small mean gradient is no sign of the maximum; a step
        # this small is.
        for _ in range(NEWTON_STEPS):
            descent = gradient(line)
            step = np.linalg.solve(information(line), descent)
            line = line - step
            if total * descent @ step < STANDARD_ERRORS**2:
                variance = _variance(records=records, design=design, index=design @ line)
                return _wald(float(line[1]), variance)
    except np.linalg.LinAlgError:
        pass
    return None


def _grouped(risk: Floats) -> _GroupedRecords:
    table = coarsen(risk, FINE_BINS)
    filled = table[table[:, COUNT] > 0]
    mean = np.clip(
        filled[:, CONFIDENCE] / filled[:, COUNT], PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR
    )
    return _GroupedRecords(n=filled[:, COUNT], y=filled[:, OUTCOME], score=logit(mean))


def _overlap(records: _GroupedRecords) -> bool:
    """Say whether no threshold of the score separates the classes, and both have records."""
    positive = records.score[records.y > 0]
    negative = records.score[records.y < records.n]
    if not positive.size or not negative.size or np.ptp(records.score) == 0:
        return False
    return bool(positive.min() < negative.max() and negative.min() < positive.max())


def _variance(records: _GroupedRecords, design: Floats, index: Floats) -> float:
    """Return the last coefficient's variance: of A^-1 and N / (N - k) A^-1 B A^-1 the larger.

    A = sum_i x_i x_i' s_i (1 - s_i) and B = sum_i x_i x_i' (y_i - s_i)^2 over records, s =
    sigmoid(index). Source: White 1980.
    """
    n = records.n
    y = records.y
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
