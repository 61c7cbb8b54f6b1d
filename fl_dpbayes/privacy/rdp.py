"""Renyi differential privacy of the Poisson-subsampled Gaussian mechanism.

It is additive over events, and so serves filters.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import History, has_noise, levels_of

Array = npt.NDArray[np.float64]

ORDERS: tuple[float, ...] = (
    1.0625,
    1.125,
    1.25,
    1.5,
    1.75,
    *map(float, range(2, 33)),
    36.0,
    40.0,
    44.0,
    48.0,
    56.0,
    64.0,
    80.0,
    96.0,
    128.0,
    192.0,
    256.0,
    512.0,
)


def renyi_divergences(
    history: History, orders: Sequence[float] = ORDERS, adjacency: Adjacency = "add_or_remove_one"
) -> Array:
    """Return an upper bound on the Renyi divergence of a whole history at each order.

    It is sum_t D_alpha over the steps t, whatever the order of events (see `levels_of`).

    Args:
        history: What was done to the records.
        orders: alpha > 1, M of them.
        adjacency: What neighbouring data sets differ in.

    Returns:
        Divergences >= 0, shape (M,), infinite where a step had no noise.

    Raises:
        ValueError: If an order is not above 1.

    Source:
        Mironov (2017), proposition 1.
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if not np.all(alpha > 1):
        raise ValueError(f"orders are {list(orders)}: each must be above 1")
    if not has_noise(history):
        return np.full(alpha.shape, np.inf)
    total = np.zeros(alpha.shape)
    for level in levels_of(history):
        total += level.steps * _step_divergences(
            level.noise_multiplier, level.sampling_rate, orders=tuple(orders), adjacency=adjacency
        )
    return total


def rdp_epsilon(
    history: History, delta: float, adjacency: Adjacency = "add_or_remove_one"
) -> float:
    """Return the epsilon that Renyi accounting proves, over `ORDERS`.

        epsilon = min_alpha  D_alpha + log(1 - 1/alpha) - log(alpha delta) / (alpha - 1)

    Args:
        history: What was done to the records.
        delta: In (0, 1).
        adjacency: What neighbouring data sets differ in.

    Returns:
        epsilon >= 0, which may be infinite.

    Source:
        Canonne, Kamath and Steinke (2020), proposition 12.
    """
    divergences = renyi_divergences(history, ORDERS, adjacency)
    if not divergences.any():
        return 0.0
    alpha = np.asarray(ORDERS, dtype=np.float64)
    epsilon = divergences + np.log1p(-1 / alpha) - (np.log(alpha) + math.log(delta)) / (alpha - 1)
    return max(0.0, float(np.min(epsilon)))


# A reply's steps are those of the replies before, and a few more.
@lru_cache(maxsize=4096)
def _step_divergences(
    noise_multiplier: float, q: float, orders: tuple[float, ...], adjacency: Adjacency
) -> Array:
    """Return D_alpha of one step at sampling rate q.

    Without subsampling D_alpha = alpha k^2 / (2 sigma^2), k = 1 or (replace) 2; subsampling only
    lowers it. With it, replacing is removing then adding: by the Cauchy-Schwarz inequality
    (alpha - 1) D_alpha(P || Q) <= [K(2 alpha) + K(2 alpha - 1)] / 2, where K(a) = (a - 1) D_a of
    one removal.

    Source:
        Mironov (2017), proposition 11.
    """
    variance = noise_multiplier**2
    alpha = np.array(orders)
    replaces = adjacency == "replace_one"
    unsampled = alpha * ((2.0 if replaces else 0.5) / variance)
    # With less noise subsampling no longer matters, and the squares of large orders would overflow.
    if q == 1 or variance < 1e-12:
        return unsampled
    if replaces:
        by_removal = _removal((*2 * alpha, *(2 * alpha - 1))).cumulants(variance, q)
        cumulants = (by_removal[: alpha.size] + by_removal[alpha.size :]) / 2
    else:
        cumulants = _removal(orders).cumulants(variance, q)
    return np.minimum(np.maximum(cumulants, 0.0) / (alpha - 1), unsampled)


@lru_cache(maxsize=16)
def _removal(orders: tuple[float, ...]) -> "_Removal":
    return _Removal(np.array(orders))


class _Removal:
    """K(alpha) = (alpha - 1) D_alpha of removing one record, exact at whole orders.

        K(alpha) = log sum_k C(alpha, k) (1 - q)^(alpha - k) q^k exp((k^2 - k) / (2 sigma^2))

    Between whole orders the chord is taken: K is convex, so the chord lies above it. The binomial
    coefficients are shared by all steps.

    Source:
        Mironov, Talwar and Zhang (2019), section 3.3; removing costs at least as much as adding,
        theorem 5.
    """

    def __init__(self, alpha: Array) -> None:
        self.alpha = alpha
        self.whole_orders = np.unique(np.concatenate([np.floor(alpha), np.ceil(alpha)]))
        # A row for each whole order, a column for each k; those with k > alpha count nothing.
        order = self.whole_orders[:, None]
        self.k = np.arange(self.whole_orders[-1] + 1)[None, :]
        is_term = self.k <= order
        self.order_minus_k = np.where(is_term, order - self.k, 0.0)
        log_binomials = gammaln(order + 1) - gammaln(self.k + 1) - gammaln(self.order_minus_k + 1)
        self.log_binomials = np.where(is_term, log_binomials, -np.inf)

    def cumulants(self, variance: float, q: float) -> Array:
        moments = self.k * math.log(q) + (self.k * self.k - self.k) / (2 * variance)
        absent = self.order_minus_k * math.log1p(-q)
        log_sums = logsumexp(self.log_binomials + moments + absent, axis=1)
        return np.interp(self.alpha, self.whole_orders, log_sums)
