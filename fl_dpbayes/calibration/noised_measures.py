"""What noised counts tell, with intervals that hold their noise and the sampling of patients.

Every measure is the value at which an estimate, linear in the counts, is expected to be 0. So its
interval holds the values at which the estimate is within z standard deviations of 0, of noise and
sampling together: no ratio of noisy numbers is linearised, and none that is clipped is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy.special import expit, logit, ndtr

from fl_dpbayes.calibration.bins import FINE_BINS, Floats
from fl_dpbayes.calibration.curves import NetBenefitRecord
from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE, Interval, Measured
from fl_dpbayes.calibration.metrics.scores import QUANTILE
from fl_dpbayes.calibration.noised_counts import (
    COUNT_BINS,
    INNER_EDGES,
    MIDDLES,
    OUTCOMES,
    UNIT_COVARIANCE,
    NoisedCounts,
)

# Probabilities beyond count as these in the log loss: what a rare record far out adds is bounded.
LOSS_FLOOR = 1 / 96
THRESHOLDS = tuple(float(edge) / FINE_BINS for edge in INNER_EDGES if 20 * edge % FINE_BINS == 0)
INTERCEPTS = np.linspace(-8.0, 8.0, 641)
SLOPES = np.linspace(-1.0, 4.0, 126)
# Between the two of these beside the best one.
NEAR_SLOPES = 41
# Standard deviations of noise that a count must exceed before a ratio over it means anything.
CLEAR = 5.0
BISECTIONS = 50
FIT_STEPS = 3
# Of the log odds, in one step of the fit.
LARGEST_STEP = 2.0
SMALLEST_CURVATURE = 1e-12
# Below this share of the records a bin's mean log odds are its middle.
SMALLEST_SHARE = 1e-9
SCORES = np.asarray(logit(MIDDLES))
SCORE_EDGES = np.concatenate([[-np.inf], logit(INNER_EDGES / FINE_BINS), [np.inf]])
# [i, j]: what a record without the event in bin i and one with it in bin j add to the pairs in
# their right order.
ORDERED = np.triu(np.ones((COUNT_BINS, COUNT_BINS)), 1) + np.eye(COUNT_BINS) / 2
ALL_RECORDS = np.ones((COUNT_BINS, OUTCOMES))


@dataclass(frozen=True)
class _Moments:
    """Variances and covariance of a numerator and a denominator."""

    numerator: float
    denominator: float
    both: float


def mean_of(
    table: NoisedCounts, values: Floats, quantile: float = NORMAL_QUANTILE
) -> Measured | None:
    """Return the mean of a value over the records, None where the noise hides all of them.

    Args:
        table: The counts.
        values: Of a record of each bin and outcome, shape (COUNT_BINS, 2).
        quantile: z of the interval.
    """
    return _ratio(
        numerator=float((values * table.counts).sum()),
        denominator=table.records,
        moments=_Moments(
            numerator=_covariance(table, values, values),
            denominator=_covariance(table, ALL_RECORDS, ALL_RECORDS),
            both=_covariance(table, values, ALL_RECORDS),
        ),
        quantile=quantile,
    )


def accuracy(table: NoisedCounts) -> Measured | None:
    """Return the share of records whose top label is right."""
    right = np.sum([part.right for part in _confidence_bins(table.classes)], axis=0)
    return _within(mean_of(table, right), Interval(0.0, 1.0))


@dataclass(frozen=True)
class _ConfidenceBin:
    """What a record of each bin and outcome, shape (COUNT_BINS, 2), adds to a bin of confidence.

    Attributes:
        records: 1 where it belongs to it.
        right: 1 where also its top label is right.
        confidence: Its top probability where it belongs to it.
    """

    records: Floats
    right: Floats
    confidence: Floats

    def plus(self, other: "_ConfidenceBin") -> "_ConfidenceBin":
        """Join two bins."""
        return _ConfidenceBin(
            records=self.records + other.records,
            right=self.right + other.right,
            confidence=self.confidence + other.confidence,
        )

    def of(self, table: NoisedCounts) -> Floats:
        """Return the sums of 1, p and y."""
        weights = np.stack([self.records, self.confidence, self.right])
        return np.einsum("kby,by->k", weights, table.counts)

    def is_clear(self, table: NoisedCounts) -> bool:
        """Say whether the records stand clear of their noise."""
        records, confidence, _ = self.of(table)
        deviation = _noise(table, self.records, self.records) ** 0.5
        return bool(records > max(1.0, CLEAR * deviation) and confidence > 0)


@cache
def _confidence_bins(classes: int) -> tuple[_ConfidenceBin, ...]:
    """Return the bins of the top label's probability, rising; of two classes a bin and its mirror.

    Bins have mirrored edges, so that the top probability is the same in both.
    """
    parts = []
    for number in range(COUNT_BINS):
        records = np.zeros_like(ALL_RECORDS)
        records[number] = 1
        right = np.zeros_like(ALL_RECORDS)
        right[number, 1] = 1
        if classes == OUTCOMES:
            mirror = COUNT_BINS - 1 - number
            if number < mirror:
                continue
            records[mirror] = 1
            right[mirror, 0] = 1
        parts.append(
            _ConfidenceBin(records=records, right=right, confidence=records * MIDDLES[number])
        )
    return tuple(parts)


@dataclass(frozen=True)
class JoinedBins:
    """Bins of confidence that were joined until each stands clear of its noise.

    Attributes:
        sums: Sums of 1, p and y, shape (J, 3).
        noise_std: Standard deviation of the noise on the gap of each, over sqrt(2), shape (J,).
        members: 1 where a record of a bin and outcome belongs to it, shape (J, COUNT_BINS, 2).
    """

    sums: Floats
    noise_std: Floats
    members: Floats


def joined_bins(table: NoisedCounts) -> JoinedBins:
    """Join neighbouring bins of confidence until each count is CLEAR of its noise.

    It reads released numbers only; none are left where all is mostly noise.
    """
    joined: list[_ConfidenceBin] = []
    for part in _confidence_bins(table.classes):
        if joined and not joined[-1].is_clear(table):
            joined[-1] = joined[-1].plus(part)
        else:
            joined.append(part)
    while len(joined) > 1 and not joined[-1].is_clear(table):
        last = joined.pop()
        joined[-1] = joined[-1].plus(last)
    clear = [part for part in joined if part.is_clear(table)]
    gaps = [part.confidence - part.right for part in clear]
    return JoinedBins(
        sums=np.array([part.of(table) for part in clear]).reshape(-1, 3),
        noise_std=np.array([(_noise(table, gap, gap) / 2) ** 0.5 for gap in gaps]),
        members=np.array([part.records for part in clear]).reshape(-1, *ALL_RECORDS.shape),
    )


def log_loss(table: NoisedCounts) -> Measured | None:
    """Return the mean of -log p_label in nats, p between LOSS_FLOOR and 1 - LOSS_FLOOR."""
    p = np.clip(MIDDLES, LOSS_FLOOR, 1 - LOSS_FLOOR)
    losses = -np.log(np.column_stack([1 - p, p]))
    return _within(
        mean_of(table, losses, QUANTILE), Interval(float(losses.min()), float(losses.max()))
    )


def brier(table: NoisedCounts) -> Measured | None:
    """Return the mean Brier score of both classes, 2 (p - y)^2."""
    losses = 2 * np.column_stack([MIDDLES**2, (1 - MIDDLES) ** 2])
    return _within(mean_of(table, losses, QUANTILE), Interval(0.0, 2.0))


def event_rate(table: NoisedCounts) -> Measured | None:
    """Return the share of records with the event."""
    with_event = np.zeros_like(ALL_RECORDS)
    with_event[:, 1] = 1
    return _within(mean_of(table, with_event), Interval(0.0, 1.0))


def mean_risk(table: NoisedCounts) -> Measured | None:
    """Return the mean risk, that of each bin its middle."""
    return _within(mean_of(table, ALL_RECORDS * MIDDLES[:, None]), Interval(0.0, 1.0))


def auroc(table: NoisedCounts) -> Measured | None:
    """Return the area under the ROC curve, records of one bin as ties.

    Pairs in their right order, and all pairs, are products of the counts of one outcome with those
    of the other, whose noises are independent: both are unbiased.
    """
    without, event = table.counts.T
    products = {"ordered": ORDERED, "all": np.ones_like(ORDERED)}
    values = {name: float(without @ matrix @ event) for name, matrix in products.items()}
    near = table.possible
    gradients = {
        name: np.column_stack([matrix @ near[:, 1], matrix.T @ near[:, 0]])
        for name, matrix in products.items()
    }

    def covariance(first: str, second: str) -> float:
        # Of a product of two noises, beyond what the gradients hold.
        product = np.trace(products[first] @ UNIT_COVARIANCE @ products[second].T @ UNIT_COVARIANCE)
        linear = _covariance(table, gradients[first], gradients[second])
        return linear + table.noise_std**4 * float(product)

    area = _ratio(
        numerator=values["ordered"],
        denominator=values["all"],
        moments=_Moments(
            numerator=covariance("ordered", "ordered"),
            denominator=covariance("all", "all"),
            both=covariance("ordered", "all"),
        ),
    )
    return _within(area, Interval(0.0, 1.0))


def calibration_intercept(table: NoisedCounts) -> Measured | None:
    """Return a of logit P(y = 1) = a + logit p: where events expected equal events counted."""
    expected = expit(INTERCEPTS[:, None] + SCORES)
    weights = np.stack([-expected, 1 - expected], axis=-1)
    return _root(INTERCEPTS, table, weights)


@dataclass(frozen=True)
class _NormalScores:
    """How log odds of the records would lie in the bins if they were normal.

    With the mean and deviation that the counts tell: unlike the counts themselves this holds next
    to nothing of the noise in a bin, so that what is made of it does not follow it.

    Attributes:
        shares: Of all records, in each bin, shape (COUNT_BINS,).
        means: Mean log odds in each bin, shape (COUNT_BINS,). They lie nearer to the mean of all
            than the middles do, from which slopes would come out too small.
    """

    shares: Floats
    means: Floats

    @classmethod
    def of(cls, table: NoisedCounts) -> "_NormalScores":
        """Fit the normal law to counts, one of which is above 0."""
        records = table.possible.sum(axis=1)
        mean = records @ SCORES / records.sum()
        deviation = max(0.2, (records @ (SCORES - mean) ** 2 / records.sum()) ** 0.5)
        edges = (SCORE_EDGES - mean) / deviation
        shares = np.diff(ndtr(edges))
        density = np.exp(-(edges**2) / 2) / np.sqrt(2 * np.pi)
        means = mean - deviation * np.diff(density) / np.maximum(shares, SMALLEST_SHARE)
        # In a far tail the quotient is all rounding.
        within = np.clip(means, SCORE_EDGES[:-1], SCORE_EDGES[1:])
        return cls(shares=shares, means=np.where(shares > SMALLEST_SHARE, within, SCORES))


def calibration_slope(table: NoisedCounts) -> Measured | None:
    """Return b of logit P(y = 1) = a + b logit p, a free.

    What is expected to be 0 at the true line are the events counted less the events expected, bin
    by bin. They are weighted as noise and sampling are known to act on them, once for a and once
    for b. The interval holds the b at which both are 0 within what is expected, whatever a is (the
    least chi-square over a, against one degree of freedom). The weights suppose log odds of the
    patients that are normal; where they are not the interval still holds, and is wider.
    """
    if not (table.possible.sum(axis=0) > 0).all():
        return None
    normal = _NormalScores.of(table)
    weights = _line_weights(table, normal)
    least_chi_squares = partial(
        _least_chi_squares, table=table, weights=weights, scores=normal.means
    )
    try:
        coarse = least_chi_squares(SLOPES)
        best = int(coarse.argmin())
        if best in (0, len(SLOPES) - 1):
            return None
        # Of many patients the whole interval lies between two slopes of the coarse grid.
        near_best = np.linspace(SLOPES[best - 1], SLOPES[best + 1], NEAR_SLOPES)
        fine = least_chi_squares(near_best)
    except np.linalg.LinAlgError:
        # Exact counts that lie in a single bin tell no slope.
        return None
    outside = np.delete(np.arange(len(SLOPES)), slice(best - 1, best + 2))
    slopes = np.concatenate([SLOPES[outside], near_best])
    chi_squares = np.concatenate([coarse[outside], fine])
    order = slopes.argsort()
    return _slope_within(slopes[order], chi_squares[order])


def _least_chi_squares(
    slopes: Floats, table: NoisedCounts, weights: Floats, scores: Floats
) -> Floats:
    """Return at each b, shape (G,), the least chi-square over a of what is expected to be 0.

    Args:
        slopes: b, shape (G,).
        table: The counts.
        weights: Of the bins' gaps, shape (COUNT_BINS, 2).
        scores: Log odds of a record in each bin, shape (COUNT_BINS,).

    Raises:
        LinAlgError: If the counts cannot tell a from b.
    """
    near = table.possible
    intercepts = _fitted_intercepts(near, slopes, scores)
    chi_squares = np.full(len(slopes), np.inf)
    for _ in range(FIT_STEPS):
        law = expit(intercepts[:, None] + slopes[:, None] * scores)
        gaps = (table.counts[:, 1] - table.counts.sum(axis=1) * law) @ weights
        per_outcome = np.stack([-law, 1 - law], axis=-1)
        weighted = per_outcome[:, :, :, None] * weights[:, None, :]
        noise = np.einsum("gbyk,bc->gcyk", weighted, table.covariance, optimize=True)
        variance = np.einsum("gcyk,gcyl->gkl", noise, weighted, optimize=True)
        variance += np.einsum("gbyk,gbyl,by->gkl", weighted, weighted, near, optimize=True)
        falls = (law * (1 - law) * near.sum(axis=1)) @ weights
        solved = np.linalg.solve(variance, np.stack([gaps, falls], axis=-1))
        chi_squares = np.minimum(chi_squares, (gaps * solved[..., 0]).sum(axis=1))
        curvature = np.maximum((falls * solved[..., 1]).sum(axis=1), SMALLEST_CURVATURE)
        steps = (gaps * solved[..., 1]).sum(axis=1) / curvature
        intercepts = intercepts + np.clip(steps, -LARGEST_STEP, LARGEST_STEP)
    return chi_squares


def _slope_within(slopes: Floats, chi_squares: Floats) -> Measured:
    """Return the slope of the least chi-square, and those between which it is below its level.

    The roots of chi-squares of one degree of freedom are nearly linear in the slope: between two
    points of the grid they are interpolated, signed.

    Args:
        slopes: Rising, shape (G,).
        chi_squares: Shape (G,), the least not at an end.
    """
    best = int(chi_squares.argmin())
    roots = np.sqrt(np.maximum(chi_squares, 0.0))
    share = roots[best - 1] / max(roots[best - 1] + roots[best + 1], SMALLEST_CURVATURE)
    value = float(slopes[best - 1] + share * (slopes[best + 1] - slopes[best - 1]))
    if roots[best] > NORMAL_QUANTILE:
        return Measured(value)
    falling = np.where(slopes < value, roots, -roots)
    low = _crossing(slopes, falling, NORMAL_QUANTILE)
    high = _crossing(slopes[::-1], -falling[::-1], NORMAL_QUANTILE)
    if low is None or high is None:
        return Measured(value)
    return Measured(value, Interval(low, high))


def _line_weights(table: NoisedCounts, normal: _NormalScores) -> Floats:
    """Return the weights of the bins' gaps that tell a and b best, shape (COUNT_BINS, 2).

    V^-1 dE/d(a, b), V the variance of the gaps at a calibrated model.
    """
    records = table.possible.sum() * normal.shares
    law = MIDDLES
    variance = np.diag(records * law * (1 - law))
    for share in (law, 1 - law):
        variance += share[:, None] * table.covariance * share
    slopes = (records * law * (1 - law))[:, None] * np.column_stack([np.ones_like(law), SCORES])
    # Of exact counts a bin without records has no variance, and no weight.
    return np.asarray(np.linalg.lstsq(variance, slopes, rcond=1e-9)[0])


def _fitted_intercepts(near: Floats, slopes: Floats, scores: Floats) -> Floats:
    """Return the a at which as many events are expected as counted, for each b, shape (G,)."""
    records = near.sum(axis=1)
    low = np.full(len(slopes), -60.0)
    high = np.full(len(slopes), 60.0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        expected = expit(middle[:, None] + slopes[:, None] * scores) @ records
        low = np.where(expected < near[:, 1].sum(), middle, low)
        high = np.where(expected < near[:, 1].sum(), high, middle)
    return low


def net_benefit(table: NoisedCounts, threshold: float) -> NetBenefitRecord | None:
    """Return the net benefit of treating where p >= t, per record, beside treating all.

    Args:
        table: The counts.
        threshold: t, one of THRESHOLDS.
    """
    harm = threshold / (1 - threshold)
    treated = (threshold <= MIDDLES).astype(np.float64)
    gain = np.array([-harm, 1.0])
    of_model = mean_of(table, treated[:, None] * gain)
    of_all = mean_of(table, np.broadcast_to(gain, ALL_RECORDS.shape))
    if of_model is None or of_all is None:
        return None
    return NetBenefitRecord(
        threshold=threshold,
        model=of_model.value,
        interval=of_model.interval,
        all=of_all.value,
        none=0.0,
    )


def decision_curve(table: NoisedCounts) -> list[NetBenefitRecord] | None:
    """Return the net benefit at THRESHOLDS, or None where the noise hides the records."""
    points = [net_benefit(table, threshold) for threshold in THRESHOLDS]
    defined = [point for point in points if point is not None]
    return defined or None


def _covariance(table: NoisedCounts, first: Floats, second: Floats) -> float:
    """Return the covariance of two weighted sums of the counts, from noise and sampling."""
    return _noise(table, first, second) + float((table.possible * first * second).sum())


def _noise(table: NoisedCounts, first: Floats, second: Floats) -> float:
    """Return the covariance of two weighted sums of the counts that noise alone gives."""
    return float((first * (table.covariance @ second)).sum())


def _ratio(
    numerator: float,
    denominator: float,
    moments: _Moments,
    quantile: float = NORMAL_QUANTILE,
) -> Measured | None:
    """Return a ratio, and the r with (a - r d)^2 <= z^2 var(a - r d); none where they have no end.

    Source: Fieller, JRSS B 16 (1954), 175-185.
    """
    z2 = quantile**2
    if denominator <= 0:
        return None
    ratio = numerator / denominator
    quadratic = denominator**2 - z2 * moments.denominator
    if quadratic <= 0:
        return Measured(ratio)
    linear = numerator * denominator - z2 * moments.both
    constant = numerator**2 - z2 * moments.numerator
    root = max(0.0, linear**2 - quadratic * constant) ** 0.5
    return Measured(ratio, Interval((linear - root) / quadratic, (linear + root) / quadratic))


def _root(grid: Floats, table: NoisedCounts, weights: Floats) -> Measured | None:
    """Return where a falling estimate is 0, and between where it is z and -z deviations off.

    Args:
        grid: Values of the parameter, rising, shape (G,).
        table: The counts.
        weights: Of a record of each bin and outcome at each value, shape (G, COUNT_BINS, 2).

    Returns:
        The value; without an interval where an end lies outside of the grid, None where it does.
    """
    estimates = np.einsum("gby,by->g", weights, table.counts)
    decoded = np.einsum("gby,bc->gcy", weights, table.covariance, optimize=True)
    variances = (decoded * weights).sum(axis=(1, 2))
    variances += np.einsum("gby,by->g", weights**2, table.possible)
    deviations = estimates / np.sqrt(np.maximum(variances, 1e-300))
    value = _crossing(grid, deviations, 0.0)
    if value is None:
        return None
    low = _crossing(grid, deviations, NORMAL_QUANTILE)
    high = _crossing(grid[::-1], -deviations[::-1], NORMAL_QUANTILE)
    if low is None or high is None:
        return Measured(value)
    return Measured(value, Interval(min(low, value), max(high, value)))


def _crossing(grid: Floats, falling: Floats, level: float) -> float | None:
    """Return where values first fall through a level, between two points of the grid."""
    below = np.flatnonzero(falling <= level)
    if not below.size or below[0] == 0:
        return None
    after = int(below[0])
    drop = falling[after - 1] - falling[after]
    way = (falling[after - 1] - level) / drop
    return float(grid[after - 1] + way * (grid[after] - grid[after - 1]))


def _within(measured: Measured | None, limits: Interval) -> Measured | None:
    """Cut a value and its interval to what the measure can be."""
    if measured is None:
        return None

    def cut(number: float) -> float:
        return min(limits.high, max(limits.low, number))

    interval = measured.interval
    if interval is not None:
        interval = Interval(cut(interval.low), cut(interval.high))
    return Measured(cut(measured.value), interval)


Measure = Callable[[NoisedCounts], Measured | None]
# Of two classes; of more the table tells the top label alone.
TWO_CLASS_MEASURES: dict[str, Measure] = {
    "nll": log_loss,
    "brier": brier,
    "auroc": auroc,
    "event_rate": event_rate,
    "mean_risk": mean_risk,
    "calibration_intercept": calibration_intercept,
    "calibration_slope": calibration_slope,
}
