"""A hospital's effect given its own labelled patients: exactly, at the hospital; or from one noisy sum that left it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit

from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture

Floats = npt.NDArray[np.float64]
_POINTS, _REACH = 401, 7.0


def updated_at_home(effect: NormalMixture, log_odds: Floats, labels: npt.NDArray[np.int64]) -> NormalMixture:
    """Return p(theta | y) ~ p(theta) prod_i sigmoid(x_i + theta)^y_i sigmoid(-x_i - theta)^(1 - y_i).

    `log_odds`: x_i of the hospital's records at effect 0, (n,). `labels`: y_i, 0 or 1, (n,).
    """
    signs = np.where(labels == 1, 1.0, -1.0)
    return _updated(effect, lambda theta: log_expit(signs * (log_odds + theta)).sum())


def residual_sum(log_odds: Floats, labels: npt.NDArray[np.int64], units: npt.NDArray[np.int64]) -> float:
    """Return sum_u clamp(sum of y_i - sigmoid(x_i) over the records of unit u, -1, 1): a unit moves it by at most 1.

    `log_odds`: at a public effect, (n,). `units`: the unit of each record, 0, 1, ..., (n,).
    """
    return float(np.clip(np.bincount(units, labels - expit(log_odds)), -1.0, 1.0).sum())


def updated_by_release(
    effect: NormalMixture, released: float, noise: float, units: int, log_odds: Floats
) -> NormalMixture:
    """Return the effect given a residual sum, taken at the effect's mean m, that left with N(0, `noise`^2) added.

    Given theta it is about N(n E[sigmoid(x + theta) - sigmoid(x + m)], n E[v] + noise^2), v the variance of y, over
    public covariates: those of the hospital entered its residuals and stay there. `units`: n, as declared. `log_odds`:
    x of public covariates at effect 0, (N,).
    """
    base = expit(log_odds + effect.mean).mean()

    def log_likelihood(theta: float) -> float:
        p = expit(log_odds + theta)
        variance = units * (p * (1 - p)).mean() + noise**2
        return float(-np.log(variance) / 2 - np.square(released - units * (p.mean() - base)) / (2 * variance))

    return _updated(effect, log_likelihood)


def _updated(effect: NormalMixture, log_likelihood: Callable[[float], float]) -> NormalMixture:
    """Weigh the prior's density on a grid, which narrows to where the posterior is."""
    low, high = effect.mean - _REACH * effect.sd, effect.mean + _REACH * effect.sd
    for _ in range(4):
        places = np.linspace(low, high, _POINTS)
        density = np.log(effect.density(places)) + np.array([log_likelihood(place) for place in places])
        weights = np.exp(density - density.max())
        mean = np.average(places, weights=weights)
        sd = np.sqrt(np.average(np.square(places - mean), weights=weights))
        low, high = max(low, mean - _REACH * sd), min(high, mean + _REACH * sd)
    # Each place stands for its cell.
    return NormalMixture(weights, places, np.full(_POINTS, np.square(places[1] - places[0]) / 12))
