"""The privacy loss of one step on a grid, never understated, and the grid for a composition.

docs/proofs/privacy-loss-distribution.md defines the directions `remove`, `add` and `replace`, and
has the proof ("connect the dots"). The grid is fine enough for epsilon, and long enough for what
wraps around it. Its tilt is an estimate of where on the loss axis a composition must be resolved:
it steers the grid and proves nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.fft import next_fast_len
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, ndtr

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import GaussianEvent, History, steps_of

Array = npt.NDArray[np.float64]
SMALLEST_BIN = 1e-290
# The grid is chosen so that discretisation adds about this share of epsilon.
RELATIVE_OVERSHOOT = 1e-5
# Below this epsilon the share of it is meant.
SMALL_EPSILON = 0.01
# Small grids cost nothing, and make up for an estimate of epsilon that is too high.
SMALLEST_GRID = 2**13
LARGEST_GRID = 2**21
# Grid points times kinds of step: bounds the time of a composition (a few seconds); beyond it the
# grid coarsens.
LARGEST_WORK = 2**27
# Enough for three digits of epsilon: the trapezoid rule on a normal density converges
# exponentially.
NODES = 81
# Three quarters of the best order often halve the window that rare large losses ask for.
ORDER_SHARES = (1.0, 0.75)
# Logarithms of the orders among which the best is sought.
LEAST_LOG_ORDER = -23.0
MOST_LOG_ORDER = 37.0
# The window ends where Chernoff's bound on the tail is exp(-ABOVE) delta, and starts where it is at
# least exp(BELOW) (1 + lambda) delta and no less than 1; what wraps around it adds up to
# exp(-WRAPPED) of the bound.
BELOW = 18.0
ABOVE = 16.0
WRAPPED = 18.0


@dataclass(frozen=True)
class LossMass:
    """A discrete privacy loss.

    Attributes:
        first: The least loss is `first` times the spacing h.
        mass: mass[i] stands at the loss (first + i) h.
        infinite: What was cut from the upper tail, at an infinite loss.
    """

    first: int
    mass: Array
    infinite: float


@dataclass(frozen=True)
class Tilt:
    """Where on the loss axis a composition must be resolved.

    Attributes:
        order: lambda of about the best Chernoff bound.
        epsilon: A rough one, from above.
        width: How long the window of the cyclic transform must be.
    """

    order: float
    epsilon: float
    width: float


def losses_at(x: Array, level: GaussianEvent, adjacency: Adjacency) -> Array:
    """Return the privacy loss log P(x)/Q(x) in the direction `remove` (or `replace`).

    Args:
        x: Outputs in units of the clip norm, of any shape.
        level: One kind of step.
        adjacency: What neighbouring data sets differ in.

    Returns:
        Losses of the same shape.
    """
    s = level.noise_multiplier
    q = level.sampling_rate
    log_absent = _log_absent(q)
    raised = np.logaddexp(log_absent, math.log(q) + (x - 0.5) / s**2)
    if adjacency == "replace_one":
        return raised - np.logaddexp(log_absent, math.log(q) - (x + 0.5) / s**2)
    return raised


def outputs_at(loss: Array, level: GaussianEvent, adjacency: Adjacency) -> Array:
    """Return the output x at which the privacy loss is L(x) = loss.

        remove   x = s^2 log((exp(loss) - 1 + q) / q) + 1/2
        replace  x = s^2 [loss / 2 + arsinh((1-q)/q exp(1 / (2 s^2)) sinh(loss / 2))]

    Args:
        loss: Of any shape.
        level: One kind of step.
        adjacency: What neighbouring data sets differ in.

    Returns:
        Outputs of the same shape, -infinity below the range of L; they rise as the losses do.
    """
    s = level.noise_multiplier
    q = level.sampling_rate
    log_absent = _log_absent(q)
    with np.errstate(divide="ignore", over="ignore"):
        if adjacency == "replace_one":
            half = np.abs(loss) / 2
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            t = log_absent - math.log(q) + 0.5 / s**2 + log_sinh
            return s**2 * (loss / 2 + np.sign(loss) * np.logaddexp(t, np.logaddexp(2 * t, 0.0) / 2))
        # max(., 0) turns what lies below log(1 - q) into log(0).
        log_share = np.log(np.maximum(-np.expm1(log_absent - loss), 0.0))
        return s**2 * (loss + log_share - math.log(q)) + 0.5


def discretise(
    level: GaussianEvent, adjacency: Adjacency, spacing: float, reach: float
) -> tuple[LossMass, ...]:
    """Put a step's loss on multiples of a spacing.

    Args:
        level: One kind of step.
        adjacency: What neighbouring data sets differ in.
        spacing: h > 0.
        reach: In deviations; tails beyond it count in full.

    Returns:
        The loss in the directions (remove, add) or (replace,).
    """
    s = level.noise_multiplier
    q = level.sampling_rate
    lowest, highest = _loss_range(level, adjacency, reach)
    first = math.floor(lowest / spacing)
    last = math.floor(highest / spacing) + 1
    loss = np.arange(first, last + 1, dtype=np.float64) * spacing
    x = outputs_at(loss, level, adjacency)
    centred = _bin_masses(x / s)
    raised = _bin_masses((x - 1) / s)
    p = (1 - q) * centred + q * raised
    if adjacency == "replace_one":
        r = (1 - q) * centred + q * _bin_masses((x + 1) / s)
        return (_split_bins(first, loss=loss, p=p, r=r, spacing=spacing),)
    remove = _split_bins(first, loss=loss, p=p, r=centred, spacing=spacing)
    add = _split_bins(-last, loss=-loss[::-1], p=centred[::-1], r=p[::-1], spacing=spacing)
    return remove, add


def _log_absent(q: float) -> float:
    """Return log(1 - q)."""
    return math.log1p(-q) if q < 1 else -math.inf


def _loss_range(level: GaussianEvent, adjacency: Adjacency, reach: float) -> tuple[float, float]:
    """Return the least and the largest loss of outputs within reach."""
    noise = reach * level.noise_multiplier
    lowest_output = -noise - (1.0 if adjacency == "replace_one" else 0.0)
    losses = losses_at(np.array([lowest_output, 1.0 + noise]), level, adjacency)
    return float(losses[0]), float(losses[1])


def _bin_masses(z: Array) -> Array:
    """Return N(0, 1) masses of (-inf, z_0], [z_0, z_1], ..., [z_N, inf), precise in both tails."""
    tails = ndtr(-np.abs(z))
    positive = z > 0
    inner = np.where(positive[:-1], tails[:-1] - tails[1:], tails[1:] - tails[:-1])
    crossing = positive[1:] & ~positive[:-1]
    inner[crossing] = (1.0 - tails[1:] - tails[:-1])[crossing]
    below = 1.0 - tails[0] if positive[0] else tails[0]
    above = tails[-1] if positive[-1] else 1.0 - tails[-1]
    return np.concatenate([[below], inner, [above]])


def _split_bins(first: int, loss: Array, p: Array, r: Array, spacing: float) -> LossMass:
    """Share each bin's P-mass out to its two ends so that the Q-mass r of the bin is met."""
    inner_p = p[1:-1]
    inner_r = r[1:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        upper = (inner_p - np.exp(loss[:-1]) * inner_r) / -math.expm1(-spacing)
    # Rounding may push the split outside its bin; where the Q-mass underflows, the whole bin goes
    # up.
    upper = np.where(inner_r > SMALLEST_BIN, np.clip(upper, 0.0, inner_p), inner_p)
    mass = np.zeros(loss.size)
    mass[:-1] = inner_p - upper
    mass[1:] += upper
    mass[0] += p[0]
    return LossMass(first=first, mass=mass, infinite=float(p[-1]))


@dataclass(frozen=True)
class Grid:
    """A cyclic grid of losses.

    Attributes:
        spacing: h > 0.
        size: How many points.
        order: lambda of the tilt.
        reach: In deviations, where a step's tails are cut.
    """

    spacing: float
    size: int
    order: float
    reach: float

    @classmethod
    def of(cls, levels: History, adjacency: Adjacency, delta: float) -> "Grid":
        """Choose a grid for a composition.

        Where it would grow too large it is coarser, and the bound looser.

        A bin of width h adds h^2/6 to the variance of a loss, hence T lambda (lambda + 1) h^2 / 12
        to K and T (lambda + 1) h^2 / 12 to epsilon. P(N(0, 1) > reach) <= exp(-reach^2 / 2) = delta
        / (1e6 T), so that what is cut costs 1e-6 delta.

        Args:
            levels: At least one, see `levels_of`.
            adjacency: What neighbouring data sets differ in.
            delta: In (0, 1).

        Returns:
            The grid.
        """
        steps = steps_of(levels)
        reach = math.sqrt(2 * (math.log(1e6) + math.log(steps) - math.log(delta)))
        tilt = best_tilt(levels, adjacency=adjacency, delta=delta, reach=reach)
        overshoot = RELATIVE_OVERSHOOT * max(tilt.epsilon, SMALL_EPSILON)
        wanted_spacing = min(
            math.sqrt(12 * overshoot / (steps * (tilt.order + 1))), tilt.width / SMALLEST_GRID
        )
        most_points = min(LARGEST_GRID, LARGEST_WORK // len(levels))
        longest_step = 0.0
        for level in levels:
            lowest, highest = _loss_range(level, adjacency, reach)
            longest_step = max(longest_step, highest - lowest)
        spacing = max(wanted_spacing, tilt.width / most_points, longest_step / LARGEST_GRID)
        size = next_fast_len(math.ceil(tilt.width / spacing), real=True)
        return cls(spacing=spacing, size=size, order=tilt.order, reach=reach)


def best_tilt(levels: History, adjacency: Adjacency, delta: float, reach: float) -> Tilt:
    """Find the tilt of about the best Chernoff bound.

        epsilon = min_lambda [K(lambda) + log(1/delta)
                              + lambda log(lambda) - (1 + lambda) log(1 + lambda)] / lambda

    with K(lambda) = sum_t log E exp(lambda L_t), in the direction `remove` (or `replace`), the
    costlier one.

    Args:
        levels: At least one, see `levels_of`.
        adjacency: What neighbouring data sets differ in.
        delta: In (0, 1).
        reach: In deviations, where a step's tails are cut.

    Returns:
        The tilt with the shortest window.

    Source:
        Canonne, Kamath and Steinke (2020), proposition 12, in the loss's own moment generating
        function.
    """
    cumulant = _LossCumulant(levels, adjacency, reach)

    def chernoff_epsilon(log_order: float) -> float:
        order = math.exp(log_order)
        # lambda log(lambda) - (1 + lambda) log(1 + lambda), without cancellation at large lambda
        correction = -order * math.log1p(1 / order) - math.log1p(order)
        return (cumulant.at(order) - math.log(delta) + correction) / order

    def tilt_at(log_order: float) -> Tilt:
        order = math.exp(log_order)
        cumulant_here = cumulant.at(order)

        def farthest_loss(log_excess: float) -> float:
            excess = math.exp(log_excess)
            return (cumulant.at(order + excess) - cumulant_here + WRAPPED) / excess

        # A loss that wraps from above weighs exp(lambda width) too much, one from below
        # exp(-lambda width) too little.
        log_excess = _argmin(farthest_loss, log_order - 7.0, log_order + 7.0)
        beyond = farthest_loss(log_excess) - epsilon
        resolved = (BELOW + ABOVE + math.log1p(order)) / order
        width = max(beyond, resolved, (WRAPPED - math.log(delta)) / order)
        return Tilt(order=order, epsilon=epsilon, width=width)

    best_log_order = _argmin(chernoff_epsilon, LEAST_LOG_ORDER, MOST_LOG_ORDER)
    epsilon = max(0.0, chernoff_epsilon(best_log_order))
    tilts = [tilt_at(best_log_order + math.log(share)) for share in ORDER_SHARES]
    return min(tilts, key=lambda tilt: tilt.width)


class _LossCumulant:
    """K(lambda) = sum_t log E exp(lambda L_t) of a composition, by quadrature on each level."""

    def __init__(self, levels: History, adjacency: Adjacency, reach: float) -> None:
        nodes = np.linspace(-reach, reach, NODES)
        log_weights = log_softmax(-np.square(nodes) / 2)
        losses = []
        log_masses = []
        for level in levels:
            s = level.noise_multiplier
            q = level.sampling_rate
            outputs = np.concatenate([s * nodes, 1 + s * nodes])
            losses.append(losses_at(outputs, level, adjacency))
            log_masses.append(
                np.concatenate([_log_absent(q) + log_weights, math.log(q) + log_weights])
            )
        self._steps = np.array([level.steps for level in levels], dtype=np.float64)
        self._losses = np.array(losses)
        self._log_masses = np.array(log_masses)

    def at(self, order: float) -> float:
        exponents = self._log_masses + order * self._losses
        largest = exponents.max(axis=1)
        log_means = np.log(np.exp(exponents - largest[:, None]).sum(axis=1)) + largest
        return float(np.dot(self._steps, log_means))


def _argmin(function: Callable[[float], float], low: float, high: float) -> float:
    result = minimize_scalar(
        function, bounds=(low, high), method="bounded", options={"xatol": 0.02}
    )
    return float(result.x)
