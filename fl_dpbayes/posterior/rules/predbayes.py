"""beta-PredBayes: interpolates between product and mixture of the sites' predictions.

Each site targets its own posterior p(w|D_k) with the whole prior (s = 1). The rule works on predictions, so it needs no
alignment of weights between sites. It consumes every site's predictions, and labelled server data where beta is fitted
(they need a governance of their own).

The product of K identical calibrated predictions is p^K, overconfident; the mixture is calibrated only where the sites
agree; beta between 0 (mixture) and 1 (product) is a setting or is fitted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.stored_samples import AnySamples

Array = npt.NDArray[np.float64]
# A class that a site rules out altogether would veto it for all: the smallest normal number stands for 0.
_TINY = np.finfo(np.float64).tiny
_EQUAL_TEMPERATURES = 1e-6


@dataclass(frozen=True)
class GaussianPrediction:
    """Predictive distributions N(mean, variance) of records, both of shape (N,)."""

    mean: Array
    variance: Array


@dataclass(frozen=True)
class Ends:
    """Logarithms of the product (beta = 1) and of the mixture (beta = 0), not normalised, shape (N, classes)."""

    log_product: Array
    log_mixture: Array


def product_and_mixture(probabilities: Iterable[Array], *, prior_probabilities: Array | None = None) -> Ends:
    """Add up the sites' predictions, of which memory need hold one site's at a time.

    log_product = sum_k log p_k(y|x) - (K-1) log p_0(y|x),   log_mixture = log sum_k p_k(y|x).

    Args:
        probabilities: p_k(y|x) of each site, shape (N, classes), rows summing to 1.
        prior_probabilities: p_0(y|x), shape (N, classes); None for a uniform one, which cancels.

    Returns:
        Both ends, from which any beta follows.

    Raises:
        ValueError: if there is no site.

    References:
        As `combine`.
    """
    log_product, log_mixture, sites = np.zeros(()), np.full((), -np.inf), 0
    for single in probabilities:
        logs = np.log(np.maximum(single, _TINY))
        log_product, log_mixture, sites = log_product + logs, np.logaddexp(log_mixture, logs), sites + 1
    if not sites:
        raise ValueError("there is no site whose predictions could be combined")
    if prior_probabilities is not None:
        log_product = log_product - (sites - 1) * np.log(np.maximum(prior_probabilities, _TINY))
    # The mixture's 1/K cancels when probabilities are normalised.
    return Ends(log_product, log_mixture)


def between(ends: Ends, beta: float) -> Array:
    """Return `combine`'s probabilities, shape (N, classes), from sums over the sites.

    Args:
        ends: of `product_and_mixture`.
        beta: 0 (mixture) to 1 (product).

    Returns:
        Probabilities, rows summing to 1.

    Raises:
        ValueError: if beta is outside [0, 1].
    """
    _check(beta)
    return np.exp(log_softmax(beta * ends.log_product + (1 - beta) * ends.log_mixture, axis=1))


def combine(probabilities: Iterable[Array], *, beta: float, prior_probabilities: Array | None = None) -> Array:
    """Combine the sites' class probabilities.

    p(y|x) ~ [prod_k p_k(y|x) / p_0(y|x)^{K-1}]^beta [(1/K) sum_k p_k(y|x)]^{1-beta}, computed from logarithms.

    Args:
        probabilities: p_k(y|x) of each of K >= 1 sites, shape (N, classes), rows summing to 1.
        beta: 0 (mixture) to 1 (product).
        prior_probabilities: p_0(y|x), shape (N, classes); None for a uniform one, which cancels.

    Returns:
        Probabilities of shape (N, classes), rows summing to 1.

    Raises:
        ValueError: if beta is outside [0, 1] or there is no site.

    References:
        Hasan et al. 2024, "Calibrated one round federated learning with Bayesian inference in the predictive space".
    """
    _check(beta)
    return between(product_and_mixture(probabilities, prior_probabilities=prior_probabilities), beta)


def fitted_beta(
    probabilities: Iterable[Array], labels: npt.NDArray[np.integer], *, prior_probabilities: Array | None = None
) -> float:
    """Return the beta in [0, 1] with the least negative log-likelihood on labelled server data.

    -sum_i log p_beta(y_i|x_i) is convex in beta: p_beta is an exponential family in it.

    Args:
        probabilities: p_k(y|x) of each site on the server's records, shape (N, classes).
        labels: their classes, shape (N,).
        prior_probabilities: as in `combine`.

    Returns:
        beta.

    Raises:
        ValueError: if there is no site or no record.

    References:
        As `combine`, which fits beta by gradient steps on the same loss.
    """
    return best_between(product_and_mixture(probabilities, prior_probabilities=prior_probabilities), labels)


def best_between(ends: Ends, labels: npt.NDArray[np.integer]) -> float:
    """Return `fitted_beta`'s beta from sums over the sites.

    Args:
        ends: of `product_and_mixture`, on N labelled records.
        labels: their classes, shape (N,).

    Returns:
        beta.

    Raises:
        ValueError: if there is no record.
    """
    if not len(labels):
        raise ValueError("beta cannot be fitted: there is no labelled record")
    rows = np.arange(len(labels))

    def loss(beta: float) -> float:
        scores = beta * ends.log_product + (1 - beta) * ends.log_mixture
        return float((logsumexp(scores, axis=1) - scores[rows, labels]).mean())

    inside = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-6})
    return min((0.0, 1.0, float(inside.x)), key=loss)


def combine_gaussian(means: Array, variances: Array, *, beta: float) -> GaussianPrediction:
    """Combine the sites' Gaussian predictions in natural parameters, with a flat prior prediction.

    Product: P = sum_k 1/v_k, its mean weighted by precision. Mixture: moments of (1/K) sum_k N(m_k, v_k). Result:
    precision beta P + (1 - beta) / v_mix, and the same combination of precision times mean.

    Args:
        means: m_k, shape (K, N), K >= 1.
        variances: v_k > 0, shape (K, N).
        beta: 0 (mixture) to 1 (product).

    Returns:
        Mean and variance of each record.

    Raises:
        ValueError: if beta is outside [0, 1] or there is no site.

    References:
        As `combine`.
    """
    _check(beta)
    if not len(means):
        raise ValueError("there is no site whose predictions could be combined")
    product_precision = (1 / variances).sum(axis=0)
    product_shift = (means / variances).sum(axis=0)
    mixture_mean = means.mean(axis=0)
    mixture_variance = variances.mean(axis=0) + means.var(axis=0)
    precision = beta * product_precision + (1 - beta) / mixture_variance
    shift = beta * product_shift + (1 - beta) * mixture_mean / mixture_variance
    return GaussianPrediction(shift / precision, 1 / precision)


def temperature_warnings(site_samples: Mapping[str, AnySamples]) -> tuple[RunWarning, ...]:
    """Warn where sites predict at different temperatures, which a product of predictions cannot correct.

    Args:
        site_samples: site -> samples whose predictions are combined; only their temperatures and weights are read.

    Returns:
        One warning, or none.
    """
    means = [
        float(np.average(samples.temperatures, weights=samples.weights))
        for samples in site_samples.values()
        if len(samples)
    ]
    if not means or max(means) - min(means) <= _EQUAL_TEMPERATURES * max(means):
        return ()
    return (warning("temperatures-differ", least=min(means), most=max(means)),)


def _check(beta: float) -> None:
    if not 0 <= beta <= 1:
        raise ValueError(f"beta is {beta}: it must lie in [0, 1], from mixture to product")
