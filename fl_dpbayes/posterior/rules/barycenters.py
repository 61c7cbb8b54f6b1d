"""Barycenters of the sites' diagonal Gaussians: averages of distributions, whose width does not shrink with K.

Convention B: precisions (reverse Kullback-Leibler) or standard deviations (Wasserstein) are averaged, so the result is
as wide as one site. Fed with the scaled likelihood p(w) p(D_k|w)^{N/n_k} and w_k = n_k/N, the reverse-KL barycenter is
the posterior given all records; fed with plain local posteriors it is K times too wide. Draws are brought to
temperature 1 by the sites' public temperatures. Memory is one site's samples plus the sums.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.warning import RunWarning
from fl_dpbayes.posterior.rules.aggregate import Aggregate, posterior_aggregate
from fl_dpbayes.posterior.rules.chains import Chain, at_unit_temperature, chains, sample_shapes
from fl_dpbayes.posterior.rules.conflict import conflict_warnings
from fl_dpbayes.posterior.rules.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.precision import diagonal_gaussian, effective_draws, weighted_variance
from fl_dpbayes.posterior.samples import PosteriorSamples

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DiagonalGaussian:
    """N(mean, diag variance), both of shape (d,)."""

    mean: Array
    variance: Array


def wasserstein(gaussians: Sequence[DiagonalGaussian], weights: Sequence[float]) -> DiagonalGaussian:
    """Average means and standard deviations, m = sum_k w_k m_k, v = (sum_k w_k sqrt(v_k))^2.

    It minimises sum_k w_k W_2(q, q_k)^2 over diagonal Gaussians q.

    Args:
        gaussians: per site.
        weights: w_k >= 0, summing to 1.

    Returns:
        The barycenter.

    References:
        Agueh and Carlier 2011, "Barycenters in the Wasserstein space".
    """
    mean = sum(w * g.mean for w, g in zip(weights, gaussians, strict=True))
    deviation = sum(w * np.sqrt(g.variance) for w, g in zip(weights, gaussians, strict=True))
    return DiagonalGaussian(np.asarray(mean), np.square(deviation))


def reverse_kl(factors: Sequence[NaturalGaussian], weights: Sequence[float]) -> NaturalGaussian:
    """Average natural parameters, L = sum_k w_k L_k, h = sum_k w_k h_k: the weighted geometric mean of the densities.

    It minimises sum_k w_k KL(q || q_k) over Gaussians q.

    Args:
        factors: per site, all diagonal or all full.
        weights: w_k >= 0, summing to 1.

    Returns:
        The barycenter.

    Raises:
        ValueError: if there is no factor.

    References:
        Jamoussi et al. 2024, "Information-geometric barycenters for Bayesian federated learning".
    """
    if not factors:
        raise ValueError("there is no factor to average")
    powers = [factor.power(weight) for factor, weight in zip(factors, weights, strict=True)]
    total = powers[0]
    for power in powers[1:]:
        total = total + power
    return total


def combine_wasserstein(
    site_samples: Mapping[str, PosteriorSamples],
    site_weights: Mapping[str, float],
    *,
    draws: int,
    generator: np.random.Generator,
) -> Aggregate:
    """Draw from the Wasserstein barycenter of the sites' diagonal Gaussians, by `wasserstein`.

    Args:
        site_samples: site -> at least 2 samples.
        site_weights: site -> w_k >= 0; renormalised over the sites that sent samples.
        draws: how many draws to return, >= 1.
        generator: source of the draws.

    Returns:
        Draws at temperature 1.

    Raises:
        ValueError: if no site with weight sent a sample, or a site sent only one.

    References:
        As `wasserstein`.
    """

    def coordinates(chain: Chain) -> tuple[Array, tuple[RunWarning, ...]]:
        return np.stack([chain.mean, np.sqrt(weighted_variance(chain))]), ()

    (mean, deviation), _, shapes, warnings = _averaged(coordinates, site_samples, site_weights)
    noise = generator.standard_normal((draws, len(mean)))
    return posterior_aggregate(mean + deviation * noise, shapes, warnings)


def combine_reverse_kl(
    site_samples: Mapping[str, PosteriorSamples],
    site_weights: Mapping[str, float],
    *,
    draws: int,
    generator: np.random.Generator,
) -> Aggregate:
    """Draw from the reverse-KL barycenter of the sites' diagonal Gaussians, by `reverse_kl`.

    Args:
        site_samples: site -> at least 5 samples, of p(w) p(D_k|w)^{N/n_k} for the posterior given all records.
        site_weights: site -> w_k >= 0; renormalised over the sites that sent samples.
        draws: how many draws to return, >= 1.
        generator: source of the draws.

    Returns:
        Draws at temperature 1.

    Raises:
        ValueError: if no site with weight sent a sample, or a site has too few samples.

    References:
        As `reverse_kl`.
    """

    def coordinates(chain: Chain) -> tuple[Array, tuple[RunWarning, ...]]:
        gaussian, warnings = diagonal_gaussian(chain)
        return np.stack([gaussian.precision, gaussian.precision_mean]), warnings

    (precision, shift), weight, shapes, warnings = _averaged(coordinates, site_samples, site_weights)
    posterior = NaturalGaussian(precision, shift)
    factors = (
        (diagonal_gaussian(chain)[0].power(site_weights[chain.site] / weight), effective_draws(chain))
        for chain in map(at_unit_temperature, chains(site_samples))
        if site_weights[chain.site] > 0
    )
    warnings += conflict_warnings(factors, posterior)
    return posterior_aggregate(posterior.sample(draws, generator), shapes, warnings)


def _averaged(
    coordinates: Callable[[Chain], tuple[Array, tuple[RunWarning, ...]]],
    site_samples: Mapping[str, PosteriorSamples],
    site_weights: Mapping[str, float],
) -> tuple[Array, float, dict[str, tuple[int, ...]], list[RunWarning]]:
    shapes = sample_shapes(site_samples)
    total, weight, warnings = np.zeros(()), 0.0, list[RunWarning]()
    for chain in map(at_unit_temperature, chains(site_samples)):
        values, found = coordinates(chain)
        total = total + site_weights[chain.site] * values
        weight += site_weights[chain.site]
        warnings += [*chain.warnings, *found]
    if not weight > 0:
        raise ValueError("no site with a positive weight sent a sample")
    return total / weight, weight, shapes, warnings
