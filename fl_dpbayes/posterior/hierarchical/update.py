"""A hospital's effect given its own labelled patients: exactly, at the hospital; or from one noisy sum that left it."""

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit

from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats

Integers = npt.NDArray[np.int64]
# Sums of its multiples are exact, so that a unit moves one by what it adds, and by no rounding.
GRID = 2.0**30


def updated_at_home(effect: Distribution, log_odds: Floats, labels: Integers) -> Distribution:
    """Return p(theta | y) ~ p(theta) prod_i sigmoid(x_i + theta)^y_i sigmoid(-x_i - theta)^(1 - y_i).

    `log_odds`: x_i of the hospital's records at effect 0, (n,). `labels`: y_i, 0 or 1, (n,).
    """
    signs = np.where(labels == 1, 1.0, -1.0)
    return effect.given(np.array([log_expit(signs * (log_odds + theta)).sum() for theta in effect.values]))


def residual_sum(log_odds: Floats, labels: Integers, units: Integers) -> float:
    """Return sum_u clamp(sum of y_i - sigmoid(x_i) over the records of unit u, -1, 1): a unit moves it by at most 1.

    `log_odds`: at a public effect, (n,). `units`: the unit of each record, 0, 1, ..., (n,).
    """
    return float(np.round(np.clip(np.bincount(units, labels - expit(log_odds)), -1.0, 1.0) * GRID).sum() / GRID)


def updated_by_release(
    effect: Distribution, released: float, noise: float, units: int, log_odds: Floats
) -> Distribution:
    """Return the effect given a residual sum, taken at the effect's mean m, that left with N(0, `noise`^2) added.

    Given theta it is about N(n E[sigmoid(x + theta) - sigmoid(x + m)], n E[v] + noise^2), v the variance of y, over
    public covariates: those of the hospital entered its residuals and stay there. `units`: n, as declared. `log_odds`:
    x of public covariates at effect 0, (N,).
    """
    found = [((p := expit(log_odds + theta)).mean(), (p * (1 - p)).mean()) for theta in effect.values]
    rates, spreads = np.array(found).T
    variances = units * spreads + noise**2
    off = released - units * (rates - expit(log_odds + effect.mean).mean())
    return effect.given(-(np.log(variances) + np.square(off) / variances) / 2)
