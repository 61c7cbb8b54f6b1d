"""Gaussian differential privacy: exact where every record takes part in every step.

Elsewhere it is a central-limit value.
"""

import math
from dataclasses import dataclass
from typing import Literal

from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import GaussianEvent, History

# Above this mu^2 leaves the range of float64, and epsilon is infinite for every purpose.
LARGEST_MU = 1e150


@dataclass(frozen=True)
class GdpMu:
    """The separation of two normal distributions, N(0, 1) and N(mu, 1), that is as hard to tell.

    Attributes:
        mu: In [0, inf].
        kind: `exact` where every sampling rate is 1; `clt` else, which is no bound.
    """

    mu: float
    kind: Literal["exact", "clt"]


def gdp_mu(history: History, adjacency: Adjacency = "add_or_remove_one") -> GdpMu:
    """Compose a history under Gaussian differential privacy.

        q = 1:  mu^2 = sum k^2 / sigma_t^2, exact
                k = 1 (add or remove) or 2 (replace: the sum moves by up to 2C)
        q < 1:  mu^2 = sum q_t^2 (exp(1 / sigma_t^2) - 1), the limit for add or remove
                mu^2 = sum 4 q_t^2 sinh(1 / sigma_t^2), the same limit of the pair that
                `replace_one` compares

    In a history that mixes them, each event adds its own term and the kind is `clt`.

    The limit for `replace_one` is the same argument for the loss
    q (exp((2x - 1) / (2 sigma^2)) - exp((-2x - 1) / (2 sigma^2))), x ~ N(0, sigma^2), whose
    variance is 4 q^2 sinh(1 / sigma^2).

    Args:
        history: What was done to the records.
        adjacency: What neighbouring data sets differ in.

    Returns:
        mu with its kind: 0 for an empty history, infinite where a step had no noise.

    Source:
        Dong, Roth and Su (2022), corollary 3.3; Bu et al. (2020), theorem 5.
    """
    charged = [event for event in history if not event.is_free]
    mu = math.sqrt(sum(event.steps * _squared_mu(event, adjacency) for event in charged))
    is_exact = all(event.sampling_rate == 1 for event in charged)
    return GdpMu(mu, "exact" if is_exact else "clt")


def _squared_mu(event: GaussianEvent, adjacency: Adjacency) -> float:
    """Return mu^2 of one step."""
    q = event.sampling_rate
    try:
        precision = (1 / event.noise_multiplier) ** 2
        if adjacency == "replace_one":
            return 4.0 * precision if q == 1 else q**2 * (4.0 * math.sinh(precision))
        return precision if q == 1 else q**2 * math.expm1(precision)
    except (OverflowError, ZeroDivisionError):
        return math.inf


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) of mu-Gaussian differential privacy.

        delta = Phi(a) - exp(epsilon) Phi(b),   a = mu / 2 - epsilon / mu,   b = a - mu

    Computed with exp(epsilon) Phi(b) = phi(a) Phi(b) / phi(b), which does not overflow.

    Args:
        mu: In [0, inf].
        epsilon: In [0, inf].

    Returns:
        delta in [0, 1].

    Source:
        Dong, Roth and Su (2022), corollary 2.13.
    """
    if mu == 0 or math.isinf(epsilon):
        return 0.0
    if mu > LARGEST_MU:
        return 1.0
    return _delta_at(epsilon / mu - mu / 2, mu)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which mu-Gaussian differential privacy implies delta.

    Args:
        mu: In [0, inf].
        delta: In [0, 1].

    Returns:
        epsilon >= 0 to a relative 1e-12, infinite for infinite mu, or for delta = 0 and mu > 0.
    """
    if mu == 0 or delta >= 1:
        return 0.0
    if mu > LARGEST_MU or delta <= 0:
        return math.inf
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # In z = epsilon / mu - mu / 2 a large mu loses no digits. At the upper end
    # Phi(-z) <= exp(-z^2 / 2) = delta.
    highest = math.sqrt(-2 * math.log(delta)) + 1e-9
    z = brentq(
        lambda z: _delta_at(z, mu) - delta, -mu / 2, highest, xtol=1e-15, rtol=1e-14, maxiter=1000
    )
    return max(0.0, mu * (mu / 2 + float(z)))


def _delta_at(z: float, mu: float) -> float:
    """Return delta at epsilon = mu (z + mu / 2)."""
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    # For z > 0 the two Mills ratios are subtracted first: both terms carry the same small factor
    # phi(z).
    if z > 0:
        return max(0.0, density * (_mills_ratio(z) - _mills_ratio(mu + z)))
    return max(0.0, float(ndtr(-z)) - density * _mills_ratio(mu + z))


def _mills_ratio(t: float) -> float:
    """Return Phi(-t) / phi(t)."""
    return math.sqrt(math.pi / 2) * float(erfcx(t / math.sqrt(2)))
