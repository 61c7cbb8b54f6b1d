"""A smooth calibration curve of two classes with its band, from sums over fine bins."""

from collections.abc import Mapping

import numpy as np
from scipy.special import expit, logit

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.curves import CurvePoint
from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE
from fl_dpbayes.calibration.metrics.logistic_fit import (
    GroupedRecords,
    fit_logistic,
    grouped_records,
)
from fl_dpbayes.calibration.statistics import CalibrationStatistics

# So many of the rarer outcome for each coefficient, and for a curve at all.
RARER_PER_COEFFICIENT = 10
LEAST_COEFFICIENTS = 2
# By number of knots; Harrell, Regression Modeling Strategies (2015), table 2.3.
KNOT_SHARES: Mapping[int, tuple[float, ...]] = {
    3: (0.1, 0.5, 0.9),
    4: (0.05, 0.35, 0.65, 0.95),
    5: (0.05, 0.275, 0.5, 0.725, 0.95),
}
# The curve is drawn where all but so many of the records lie.
TAIL = 0.01
POINTS = 25


def smooth_curve(statistics: CalibrationStatistics) -> tuple[CurvePoint, ...]:
    """Return how often the event happens at each predicted risk, with a pointwise 95 % band.

    It is logit P(y = 1) = s(logit p) with s a cubic spline that is straight beyond its outer knots:
    5, 4 or 3 knots where 50, 40 or 30 records have the rarer outcome, with fewer a line. The band
    is Wald's in log odds, of the larger of the usual and the robust variance.

    Args:
        statistics: The sums.

    Returns:
        Points from low to high risk; none for more than two classes, with fewer than 20 records of
        either outcome, or where no maximum was found.

    Source: Harrell, Regression Modeling Strategies (2015), section 2.4.5; Van Calster et al.,
    Journal of Clinical Epidemiology 74 (2016), 167-176.
    """
    if statistics.risk is None:
        return ()
    records = grouped_records(statistics.risk)
    events = records.y.sum()
    coefficients = int(min(events, records.n.sum() - events) // RARER_PER_COEFFICIENT)
    if coefficients < LEAST_COEFFICIENTS or not records.overlap:
        return ()
    knots = _knots(records, coefficients)
    design = _spline(records.score, knots)
    start = np.zeros(design.shape[1])
    start[1] = 1.0
    fit = fit_logistic(records, design, start)
    if fit is None:
        return ()
    low, high = expit(_quantiles(records, (TAIL, 1 - TAIL)))
    risks = np.linspace(low, high, POINTS)
    rows = _spline(logit(risks), knots)
    index = rows @ fit.coefficients
    half = NORMAL_QUANTILE * np.sqrt(fit.covariances.variance(rows))
    return tuple(
        CurvePoint(risk=risk, observed=observed, low=least, high=most)
        for risk, observed, least, most in zip(
            risks.tolist(),
            expit(index).tolist(),
            expit(index - half).tolist(),
            expit(index + half).tolist(),
            strict=True,
        )
    )


def _knots(records: GroupedRecords, coefficients: int) -> Floats:
    """Return the knots of a spline of at most so many coefficients; none of a line."""
    shares = KNOT_SHARES.get(min(coefficients, max(KNOT_SHARES)), ())
    knots = _quantiles(records, shares)
    return knots if np.all(np.diff(knots) > 0) else np.array([])


def _quantiles(records: GroupedRecords, shares: tuple[float, ...]) -> Floats:
    """Return the scores below which so large shares of the records lie."""
    below = np.cumsum(records.n) - records.n / 2
    return np.interp(np.array(shares) * records.n.sum(), below, records.score)


def _spline(score: Floats, knots: Floats) -> Floats:
    """Return the columns of a restricted cubic spline: 1, the score, and one less than the knots.

    Args:
        score: Log odds, shape (B,).
        knots: From low to high, shape (K,); none for a line.

    Returns:
        Shape (B, max(2, K)).
    """
    columns = [np.ones_like(score), score]
    if len(knots):
        before_last, last = knots[-2:]
        scale = (last - knots[0]) ** 2

        def cube(knot: float) -> Floats:
            return np.maximum(score - knot, 0.0) ** 3

        for knot in knots[:-2]:
            far = cube(before_last) * (last - knot) - cube(last) * (before_last - knot)
            columns.append((cube(knot) - far / (last - before_last)) / scale)
    return np.column_stack(columns)
