"""Consensus Monte Carlo: each global draw is a weighted average of one draw per site.

Convention A: precisions add, each site targets p(w)^{1/K} p(D_k|w). Draws follow the posterior given all records if the
sites' posteriors are Gaussian and the weights are their precisions. Draws are brought to temperature 1 by the sites'
public temperatures first. Memory is one site's samples plus the sums.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from fl_dpbayes.config.warning import RunWarning
from fl_dpbayes.posterior.rules.aggregate import Aggregate, posterior_aggregate
from fl_dpbayes.posterior.rules.chains import Chain, at_unit_temperature, chains, sample_shapes
from fl_dpbayes.posterior.rules.conflict import conflict_warnings
from fl_dpbayes.posterior.rules.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.precision import diagonal_gaussian, effective_draws, full_gaussian
from fl_dpbayes.posterior.rules.prior_share import prior_share_warnings
from fl_dpbayes.posterior.samples import PosteriorSamples

Array = npt.NDArray[np.float64]
Estimate = Callable[[Chain], tuple[NaturalGaussian, tuple[RunWarning, ...]]]


def weighted_average(draws: Sequence[Array], weights: Sequence[Array]) -> Array:
    """Average paired draws, w^(s) = (sum_k W_k)^{-1} sum_k W_k w_k^(s).

    Args:
        draws: per site, shape (M, d), independent between sites.
        weights: per site, W_k as a diagonal (d,) or a symmetric positive definite matrix (d, d).

    Returns:
        Draws of shape (M, d).

    References:
        Scott et al. 2016, "Bayes and big data: the consensus Monte Carlo algorithm".
    """
    return _solved(
        sum((_weighted(site, weight) for site, weight in zip(draws, weights, strict=True)), np.zeros(())),
        sum(weights, np.zeros(())),
    )


def combine_diagonal(
    site_samples: Mapping[str, PosteriorSamples], *, prior_share: float, draws: int, generator: np.random.Generator
) -> Aggregate:
    """Weigh each site's draws by its parameters' precisions, W_k = diag(1 / v_k), by `weighted_average`.

    The precision of a site is unbiased for its effective number of draws. Draws are paired at random.

    Args:
        site_samples: site -> at least 5 samples of p(w)^s p(D_k|w).
        prior_share: share of the prior that each site targeted, s in [0, 1]; 1/K is the one that fits.
        draws: how many draws to return, >= 1; more than a site's samples repeats some.
        generator: source of the pairing.

    Returns:
        Draws at temperature 1.

    Raises:
        ValueError: if a site has too few samples or a parameter that does not vary.

    References:
        As `weighted_average`.
    """
    return _combine(diagonal_gaussian, site_samples, prior_share, draws, generator)


def combine_full(
    site_samples: Mapping[str, PosteriorSamples], *, prior_share: float, draws: int, generator: np.random.Generator
) -> Aggregate:
    """Weigh each site's draws by its precision matrix, W_k = S_k^{-1}, by `weighted_average`.

    The precision of a site is unbiased for its effective number of draws. Draws are paired at random. It holds d x d
    matrices, so it is for last layers and small models.

    Args:
        site_samples: site -> at least d + 4 samples of p(w)^s p(D_k|w).
        prior_share: share of the prior that each site targeted, s in [0, 1]; 1/K is the one that fits.
        draws: how many draws to return, >= 1; more than a site's samples repeats some.
        generator: source of the pairing.

    Returns:
        Draws at temperature 1.

    Raises:
        ValueError: if a site has too few samples or a singular covariance.

    References:
        As `weighted_average`.
    """
    return _combine(full_gaussian, site_samples, prior_share, draws, generator)


def combine_uniform(
    site_samples: Mapping[str, PosteriorSamples], *, prior_share: float, draws: int, generator: np.random.Generator
) -> Aggregate:
    """Weigh all sites alike, W_k = I, by `weighted_average`.

    Mean (1/K) sum_k m_k and covariance (1/K^2) sum_k S_k: the global posterior's only where all precisions are equal.
    Draws are paired at random.

    Args:
        site_samples: site -> at least 1 sample of p(w)^s p(D_k|w).
        prior_share: share of the prior that each site targeted, s in [0, 1]; 1/K is the one that fits.
        draws: how many draws to return, >= 1; more than a site's samples repeats some.
        generator: source of the pairing.

    Returns:
        Draws at temperature 1.

    Raises:
        ValueError: if no site sent a sample.

    References:
        As `weighted_average`.
    """
    return _combine(None, site_samples, prior_share, draws, generator)


def _combine(
    estimate: Estimate | None,
    site_samples: Mapping[str, PosteriorSamples],
    prior_share: float,
    draws: int,
    generator: np.random.Generator,
) -> Aggregate:
    shapes = sample_shapes(site_samples)
    weighted, total, shift = np.zeros(()), np.zeros(()), np.zeros(())
    sites, warnings = 0, list[RunWarning]()
    for chain in map(at_unit_temperature, chains(site_samples)):
        weight, found = np.ones(chain.draws.shape[1]), tuple[RunWarning, ...]()
        if estimate is not None:
            gaussian, found = estimate(chain)
            weight, shift = gaussian.precision, shift + gaussian.precision_mean
        weighted = weighted + _weighted(chain.draws[_paired(chain.weights, draws, generator)], weight)
        total = total + weight
        sites += 1
        warnings += [*chain.warnings, *found]
    warnings += prior_share_warnings(sites, prior_share)
    if estimate is not None:
        again = map(at_unit_temperature, chains(site_samples))
        factors = ((estimate(chain)[0], effective_draws(chain)) for chain in again)
        warnings += conflict_warnings(factors, NaturalGaussian(total, shift))
    return posterior_aggregate(_solved(weighted, total), shapes, warnings)


def _paired(weights: Array, draws: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    # Systematic resampling takes each of M equally weighted draws exactly once when M are wanted; the shuffle makes
    # the pairing of sites independent of where their chains stood.
    points = (np.arange(draws) + generator.random()) / draws
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), points), len(weights) - 1)
    return generator.permutation(chosen)


def _weighted(draws: Array, weight: Array) -> Array:
    return draws * weight if weight.ndim == 1 else draws @ weight


def _solved(weighted: Array, total: Array) -> Array:
    return weighted / total if total.ndim == 1 else cho_solve(cho_factor(total, lower=True), weighted.T).T
