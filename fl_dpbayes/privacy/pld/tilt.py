"""Where on the loss axis a composition must be resolved: an estimate that steers the grid and proves nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.pld.discretise import losses_at
from fl_dpbayes.privacy.pld.levels import Level

Array = npt.NDArray[np.float64]
# Enough for three digits of epsilon: the trapezoid rule on a normal density converges exponentially.
NODES = 81
# Three quarters of the best order often halve the window that rare large losses ask for.
SHARES = (1.0, 0.75)
SEARCHED = (-23.0, 37.0)
# The window ends where Chernoff's bound on the tail is exp(-ABOVE) delta, and starts where it is at least
# exp(BELOW) (1 + lambda) delta and no less than 1; what wraps around it adds up to exp(-WRAPPED) of the bound.
BELOW, ABOVE, WRAPPED = 18.0, 16.0, 18.0


@dataclass(frozen=True)
class Tilt:
    """The exponential tilt under which the composed loss is often near epsilon.

    Attributes:
        order: lambda; the tilted masses are p exp(lambda loss), normalised.
        epsilon: a rough epsilon, from above.
        cumulant: K at this order.
        width: how long the window of the cyclic transform must be.
    """

    order: float
    epsilon: float
    cumulant: float
    width: float


def best_tilt(levels: Sequence[Level], adjacency: Adjacency, delta: float, reach: float) -> Tilt:
    """Find the tilt of about the best Chernoff bound in the direction `remove` (or `replace`), the costlier one.

        epsilon = min_lambda [K(lambda) + log(1/delta) + lambda log(lambda) - (1 + lambda) log(1 + lambda)] / lambda

    with K(lambda) = sum_t log E exp(lambda L_t).

    Args:
        levels: what was done, at least one.
        adjacency: which data sets count as neighbours.
        delta: in (0, 1).
        reach: standard deviations of the noise beyond which it is cut, above zero.

    Returns:
        The tilt, a rough epsilon and the width that the window needs.

    Source:
        Canonne, Kamath and Steinke (2020), proposition 12, in the loss's own moment generating function.
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
        return float(np.dot(steps, np.log(np.exp(exponents - largest[:, None]).sum(axis=1)) + largest))

    def chernoff(log_order: float) -> float:
        order = math.exp(log_order)
        # lambda log(lambda) - (1 + lambda) log(1 + lambda), without cancellation at large lambda
        correction = -order * math.log1p(1 / order) - math.log1p(order)
        return (cumulant(order) - math.log(delta) + correction) / order

    best = _minimum(chernoff, *SEARCHED)
    epsilon = max(0.0, chernoff(best))

    def tilt(log_order: float) -> Tilt:
        order = math.exp(log_order)
        here = cumulant(order)

        def farthest(log_more: float) -> float:
            more = math.exp(log_more)
            return (cumulant(order + more) - here + WRAPPED) / more

        # A loss that wraps from above weighs exp(lambda width) too much, one from below exp(-lambda width) too little.
        beyond = farthest(_minimum(farthest, log_order - 7.0, log_order + 7.0)) - epsilon
        resolved = (BELOW + ABOVE + math.log1p(order)) / order
        return Tilt(order, epsilon, here, max(beyond, resolved, (WRAPPED - math.log(delta)) / order))

    return min((tilt(best + math.log(share)) for share in SHARES), key=lambda found: found.width)


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    return float(minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 0.02}).x)
