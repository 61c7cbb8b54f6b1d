"""Product of the sites' Gaussians: the posterior given all records, if the sites' posteriors are Gaussian.

Convention A: precisions add. Each site targets p(w)^s p(D_k|w); what the prior counts too often or too rarely is
corrected, so s = 1/K (fractional prior), s = 1 (divided prior, the Bayesian committee machine) and a roster with sites
missing all give p(w) prod_k p(D_k|w). Draws are brought to temperature 1 by the sites' public temperatures. Memory is
one site's samples plus the sums.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.rules.aggregate import Aggregate, posterior_aggregate
from fl_dpbayes.posterior.rules.chains import Chain, at_unit_temperature, chains, sample_shapes
from fl_dpbayes.posterior.rules.conflict import conflict_warnings
from fl_dpbayes.posterior.rules.natural import NaturalGaussian, centred_prior, floored, prior_precision
from fl_dpbayes.posterior.rules.precision import diagonal_gaussian, effective_draws, full_gaussian
from fl_dpbayes.posterior.samples import PosteriorSamples

Estimate = Callable[[Chain], tuple[NaturalGaussian, tuple[RunWarning, ...]]]


def product(factors: Sequence[NaturalGaussian], *, prior_scale: float, prior_share: float) -> NaturalGaussian:
    """Multiply the sites' Gaussians and count the prior once.

    L = sum_k L_k + (1 - K s) L_0,  h = sum_k h_k,  L_0 = I / scale^2; the prior's mean is 0.

    Args:
        factors: each site's p(w)^s p(D_k|w), all diagonal or all full.
        prior_scale: standard deviation of the Gaussian prior, > 0; infinite for a flat one.
        prior_share: share of the prior that each site targeted, s in [0, 1].

    Returns:
        The global posterior; its precision can fail to be positive where the factors are estimates.

    Raises:
        ValueError: if there is no factor.

    References:
        Tresp 2000, "A Bayesian committee machine"; Neiswanger et al. 2014, "Asymptotically exact,
        embarrassingly parallel MCMC", section 3.1.
    """
    if not factors:
        raise ValueError("there is no factor to multiply")
    total = factors[0]
    for factor in factors[1:]:
        total = total + factor
    return total + centred_prior(prior_scale, total).power(1 - len(factors) * prior_share)


def combine_diagonal(
    site_samples: Mapping[str, PosteriorSamples],
    *,
    prior_scale: float,
    prior_share: float,
    draws: int,
    generator: np.random.Generator,
) -> Aggregate:
    """Draw from the product of the sites' Gaussians with diagonal covariances.

    The formula is that of `product`. Correlations within a site are ignored, which moves the mean and the variances
    where parameters are correlated.

    Args:
        site_samples: site -> at least 5 samples of p(w)^s p(D_k|w).
        prior_scale: standard deviation of the Gaussian prior, > 0; infinite for a flat one.
        prior_share: share of the prior that each site targeted, s in [0, 1].
        draws: how many draws to return, >= 1.
        generator: source of the draws.

    Returns:
        Draws at temperature 1. A precision below the prior's, which only sampling error can cause, is set to the
        prior's with a warning.

    Raises:
        ValueError: if a site has too few samples, or the product is improper.

    References:
        As `product`.
    """
    return _combine(diagonal_gaussian, site_samples, prior_scale, prior_share, draws, generator)


def combine_full(
    site_samples: Mapping[str, PosteriorSamples],
    *,
    prior_scale: float,
    prior_share: float,
    draws: int,
    generator: np.random.Generator,
) -> Aggregate:
    """Draw from the product of the sites' Gaussians with full covariances (last layers and small models).

    The formula is that of `product`; it holds d x d matrices.

    Args:
        site_samples: site -> at least d + 4 samples of p(w)^s p(D_k|w).
        prior_scale: standard deviation of the Gaussian prior, > 0; infinite for a flat one.
        prior_share: share of the prior that each site targeted, s in [0, 1].
        draws: how many draws to return, >= 1.
        generator: source of the draws.

    Returns:
        Draws at temperature 1. A precision below the prior's in some direction, which only sampling error can cause,
        is set to the prior's with a warning.

    Raises:
        ValueError: if a site has too few samples, or the product is improper.

    References:
        As `product`.
    """
    return _combine(full_gaussian, site_samples, prior_scale, prior_share, draws, generator)


def floor_warnings(raised: int, parameters: int) -> tuple[RunWarning, ...]:
    """Say in how many directions the product was wider than the prior, which no record can cause."""
    return (warning("precision-floored", raised=raised, parameters=parameters),) if raised else ()


def _combine(
    estimate: Estimate,
    site_samples: Mapping[str, PosteriorSamples],
    prior_scale: float,
    prior_share: float,
    draws: int,
    generator: np.random.Generator,
) -> Aggregate:
    shapes = sample_shapes(site_samples)
    total: NaturalGaussian | None = None
    sites, warnings = 0, list[RunWarning]()
    for chain in map(at_unit_temperature, chains(site_samples)):
        factor, found = estimate(chain)
        total = factor if total is None else total + factor
        sites += 1
        warnings += [*chain.warnings, *found]
    assert total is not None  # sample_shapes has found a sample
    # J factors that are already multiplied are one factor with J times the prior's share.
    joined = product([total], prior_scale=prior_scale, prior_share=sites * prior_share)
    posterior, raised = floored(joined, prior_precision(prior_scale))
    warnings += floor_warnings(raised, len(posterior.precision_mean))
    again = map(at_unit_temperature, chains(site_samples))
    warnings += conflict_warnings(((estimate(chain)[0], effective_draws(chain)) for chain in again), posterior)
    return posterior_aggregate(posterior.sample(draws, generator), shapes, warnings)
