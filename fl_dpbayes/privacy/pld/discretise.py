"""The privacy loss of one step on a grid, never understated: connect the dots.

docs/proofs/privacy-loss-distribution.md defines the directions `remove`, `add` and `replace`, and has the proof.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.events import GaussianEvent

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


def discretise(level: GaussianEvent, adjacency: Adjacency, spacing: float, reach: float) -> tuple[LossMass, ...]:
    """Put the loss of one step on the grid of multiples of `spacing`, for each direction.

    The tails of the noise are cut `reach` standard deviations out; what is cut is counted in full.

    Returns (remove, add), or (replace,), which is its own mirror image.
    """
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


def loss_span(level: GaussianEvent, adjacency: Adjacency, reach: float) -> float:
    """Return the length of the interval of one step's losses for noise within `reach` standard deviations."""
    lowest, highest = _ends(level, adjacency, reach)
    return highest - lowest


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
    # Rounding may push the split outside its bin; where the Q-mass underflows, the whole bin goes up.
    upper = np.where(r[1:-1] > SMALLEST_BIN, np.clip(upper, 0.0, inner_p), inner_p)
    mass = np.zeros(loss.size)
    mass[:-1] = inner_p - upper
    mass[1:] += upper
    mass[0] += p[0]
    return LossMass(first, mass, float(p[-1]))
