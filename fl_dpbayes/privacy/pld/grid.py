"""The privacy loss of one step on a grid, never understated (connect the dots), and the grid for a composition.

docs/proofs/privacy-loss-distribution.md defines the directions `remove`, `add` and `replace`, and
has the proof. The grid is fine enough for epsilon, long enough for what wraps around it.

Its tilt is an estimate of where on the loss axis a composition must be resolved: it steers the grid
and proves nothing.
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
from fl_dpbayes.privacy.events import GaussianEvent, History

Array = npt.NDArray[np.float64]
SMALLEST_BIN = 1e-290


@dataclass(frozen=True)
class LossMass:
    """A discrete privacy loss: mass[i] at the loss (first + i) h, and what was cut from the upper tail at infinity."""

    first: int
    mass: Array
    infinite: float


def losses_at(x: Array, level: GaussianEvent, adjacency: Adjacency) -> Array:
    """Return log P(x)/Q(x) in the direction `remove` (or `replace`), x in units of the clip norm, of any shape."""
    s, q = level.noise_multiplier, level.sampling_rate
    keep = math.log1p(-q) if q < 1 else -math.inf
    raised = np.logaddexp(keep, math.log(q) + (x - 0.5) / s**2)
    if adjacency == "replace_one":
        return raised - np.logaddexp(keep, math.log(q) - (x + 0.5) / s**2)
    return raised


def outputs_at(loss: Array, level: GaussianEvent, adjacency: Adjacency) -> Array:
    """Return x with L(x) = loss, -infinity below the range of L; rising as the losses do.

    remove   x = s^2 log((exp(loss) - 1 + q) / q) + 1/2
    replace  x = s^2 [loss / 2 + arsinh((1-q)/q exp(1 / (2 s^2)) sinh(loss / 2))]
    """
    s, q = level.noise_multiplier, level.sampling_rate
    keep = math.log1p(-q) if q < 1 else -math.inf
    with np.errstate(divide="ignore", over="ignore"):
        if adjacency == "replace_one":
            half = np.abs(loss) / 2
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            t = keep - math.log(q) + 0.5 / s**2 + log_sinh
            return s**2 * (loss / 2 + np.sign(loss) * np.logaddexp(t, np.logaddexp(2 * t, 0.0) / 2))
        # max(., 0) turns what lies below log(1 - q) into log(0).
        return s**2 * (loss + np.log(np.maximum(-np.expm1(keep - loss), 0.0)) - math.log(q)) + 0.5


def discretise(
    level: GaussianEvent, adjacency: Adjacency, spacing: float, reach: float
) -> tuple[LossMass, ...]:
    """Put a step's loss, tails beyond `reach` deviations counted in full, on multiples of `spacing`, by direction."""
    s, q = level.noise_multiplier, level.sampling_rate
    lowest, highest = _ends(level, adjacency, reach)
    first, last = math.floor(lowest / spacing), math.floor(highest / spacing) + 1
    loss = np.arange(first, last + 1, dtype=np.float64) * spacing
    x = outputs_at(loss, level, adjacency)
    centred = _bins(x / s)
    raised = _bins((x - 1) / s)
    p = (1 - q) * centred + q * raised
    if adjacency == "replace_one":
        r = (1 - q) * centred + q * _bins((x + 1) / s)
        return (_split(first, loss, p, r, spacing),)
    backwards = _split(-last, -loss[::-1], centred[::-1], p[::-1], spacing)
    return _split(first, loss, p, centred, spacing), backwards


def _ends(level: GaussianEvent, adjacency: Adjacency, reach: float) -> tuple[float, float]:
    noise = reach * level.noise_multiplier
    lowest = -noise - (1.0 if adjacency == "replace_one" else 0.0)
    ends = losses_at(np.array([lowest, 1.0 + noise]), level, adjacency)
    return float(ends[0]), float(ends[1])


def _bins(z: Array) -> Array:
    """Return the N(0, 1) masses of (-inf, z_0], [z_0, z_1], ..., [z_N, inf), precise in both tails."""
    tails = ndtr(-np.abs(z))
    positive = z > 0
    inner = np.where(positive[:-1], tails[:-1] - tails[1:], tails[1:] - tails[:-1])
    crossing = positive[1:] & ~positive[:-1]
    inner[crossing] = (1.0 - tails[1:] - tails[:-1])[crossing]
    below = 1.0 - tails[0] if positive[0] else tails[0]
    above = tails[-1] if positive[-1] else 1.0 - tails[-1]
    return np.concatenate([[below], inner, [above]])


def _split(first: int, loss: Array, p: Array, r: Array, spacing: float) -> LossMass:
    inner_p = p[1:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        upper = (inner_p - np.exp(loss[:-1]) * r[1:-1]) / -math.expm1(-spacing)
    # Rounding may push the split outside its bin; where the Q-mass underflows, the whole bin goes
    # up.
    upper = np.where(r[1:-1] > SMALLEST_BIN, np.clip(upper, 0.0, inner_p), inner_p)
    mass = np.zeros(loss.size)
    mass[:-1] = inner_p - upper
    mass[1:] += upper
    mass[0] += p[0]
    return LossMass(first, mass, float(p[-1]))


# The grid is chosen so that discretisation adds about this share of epsilon.
RELATIVE_OVERSHOOT = 1e-5
# Below this epsilon the share of it is meant.
SMALL_EPSILON = 0.01
# Small grids cost nothing, and make up for an estimate of epsilon that is too high.
SMALLEST_GRID, LARGEST_GRID = 2**13, 2**21
# Grid points times kinds of step: bounds the time of a composition (a few seconds); beyond it the
# grid coarsens.
LARGEST_WORK = 2**27
# Enough for three digits of epsilon: the trapezoid rule on a normal density converges
# exponentially.
NODES = 81
# Three quarters of the best order often halve the window that rare large losses ask for.
SHARES = (1.0, 0.75)
SEARCHED = (-23.0, 37.0)
# The window ends where Chernoff's bound on the tail is exp(-ABOVE) delta, and starts where it is at
# least exp(BELOW) (1 + lambda) delta and no less than 1; what wraps around it adds up to
# exp(-WRAPPED) of the bound.
BELOW, ABOVE, WRAPPED = 18.0, 16.0, 18.0


@dataclass(frozen=True)
class Grid:
    """A cyclic grid of losses: spacing h, points, order lambda of the tilt, and reach, where a step's tails are cut."""

    spacing: float
    size: int
    order: float
    reach: float

    @classmethod
    def of(cls, levels: History, adjacency: Adjacency, delta: float) -> "Grid":
        """Choose a grid for at least one level.

        Where it would grow too large it is coarser, and the bound looser.

        A bin of width h adds h^2/6 to the variance of a loss, hence T lambda (lambda + 1) h^2 / 12
        to K and T (lambda + 1) h^2 / 12 to epsilon. P(N(0, 1) > reach) <= exp(-reach^2 / 2) = delta
        / (1e6 T), so that what is cut costs 1e-6 delta.
        """
        steps = sum(level.steps for level in levels)
        reach = math.sqrt(2 * (math.log(1e6) + math.log(steps) - math.log(delta)))
        order, epsilon, width = best_tilt(levels, adjacency, delta, reach)
        overshoot = RELATIVE_OVERSHOOT * max(epsilon, SMALL_EPSILON)
        wanted = min(math.sqrt(12 * overshoot / (steps * (order + 1))), width / SMALLEST_GRID)
        # Of one step's losses, for noise within reach.
        longest = max(
            highest - lowest
            for lowest, highest in (_ends(level, adjacency, reach) for level in levels)
        )
        spacing = max(
            wanted, width / min(LARGEST_GRID, LARGEST_WORK // len(levels)), longest / LARGEST_GRID
        )
        return cls(spacing, next_fast_len(math.ceil(width / spacing), real=True), order, reach)


def best_tilt(
    levels: History, adjacency: Adjacency, delta: float, reach: float
) -> tuple[float, float, float]:
    """Find the tilt of about the best Chernoff bound in the direction `remove` (or `replace`), the costlier one.

        epsilon = min_lambda [K(lambda) + log(1/delta) + lambda log(lambda) - (1 + lambda) log(1 + lambda)] / lambda

    with K(lambda) = sum_t log E exp(lambda L_t). Source: Canonne, Kamath and Steinke (2020),
    proposition 12, in the loss's own moment generating function.

    Returns lambda, a rough epsilon from above, and how long the window of the cyclic transform must
    be.
    """
    nodes = np.linspace(-reach, reach, NODES)
    log_weights = log_softmax(-np.square(nodes) / 2)
    steps = np.array([level.steps for level in levels], dtype=np.float64)
    losses, log_masses = [], []
    for level in levels:
        s, q = level.noise_multiplier, level.sampling_rate
        losses.append(losses_at(np.concatenate([s * nodes, 1 + s * nodes]), level, adjacency))
        stay = math.log1p(-q) if q < 1 else -math.inf
        log_masses.append(np.concatenate([stay + log_weights, math.log(q) + log_weights]))
    loss, log_mass = np.array(losses), np.array(log_masses)

    def cumulant(order: float) -> float:
        exponents = log_mass + order * loss
        largest = exponents.max(axis=1)
        return float(
            np.dot(steps, np.log(np.exp(exponents - largest[:, None]).sum(axis=1)) + largest)
        )

    def chernoff(log_order: float) -> float:
        order = math.exp(log_order)
        # lambda log(lambda) - (1 + lambda) log(1 + lambda), without cancellation at large lambda
        correction = -order * math.log1p(1 / order) - math.log1p(order)
        return (cumulant(order) - math.log(delta) + correction) / order

    best = _minimum(chernoff, *SEARCHED)
    epsilon = max(0.0, chernoff(best))

    def tilt(log_order: float) -> tuple[float, float, float]:
        order = math.exp(log_order)
        here = cumulant(order)

        def farthest(log_more: float) -> float:
            more = math.exp(log_more)
            return (cumulant(order + more) - here + WRAPPED) / more

        # A loss that wraps from above weighs exp(lambda width) too much, one from below exp(-lambda
        # width) too little.
        beyond = farthest(_minimum(farthest, log_order - 7.0, log_order + 7.0)) - epsilon
        resolved = (BELOW + ABOVE + math.log1p(order)) / order
        return order, epsilon, max(beyond, resolved, (WRAPPED - math.log(delta)) / order)

    return min((tilt(best + math.log(share)) for share in SHARES), key=lambda found: found[2])


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    return float(
        minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 0.02}).x
    )
