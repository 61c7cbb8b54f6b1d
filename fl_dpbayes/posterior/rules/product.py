"""Product of the sites' Gaussians: the posterior given all records, if each site's is Gaussian.

Convention A: precisions add. Each site targets p(w)^s p(D_k|w); what the prior counts too often or
too rarely is corrected, so s = 1/K (fractional prior), s = 1 (divided prior, the Bayesian committee
machine) and a roster with sites missing all give p(w) prod_k p(D_k|w). Draws are brought to
temperature 1 first. Memory is one site's samples.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add

from fl_dpbayes.config import Product, RunWarning, prior_scale, warning
from fl_dpbayes.posterior.chains import at_unit_temperature, chains, sample_shapes
from fl_dpbayes.posterior.natural import NaturalGaussian, centred_prior, floored
from fl_dpbayes.posterior.precision import ESTIMATES, conflict_warnings
from fl_dpbayes.posterior.rules.combine import Aggregate, Released, posterior_aggregate


def product(
    factors: Sequence[NaturalGaussian], *, prior_scale: float, prior_share: float
) -> NaturalGaussian:
    """Multiply the sites' Gaussians and count the prior once.

        L = sum_k L_k + (1 - K s) L_0,    h = sum_k h_k,    L_0 = I / scale^2

    The prior's mean is 0. The product's precision may be negative.

    Args:
        factors: Each site's p(w)^s p(D_k|w), at least one, all of one form.
        prior_scale: Standard deviation of the Gaussian prior, infinite for a flat one.
        prior_share: s in [0, 1].

    Returns:
        The product, in natural parameters.

    Source: Tresp 2000, "A Bayesian committee machine"; Neiswanger et al. 2014, section 3.1.
    """
    total = reduce(add, factors)
    prior = centred_prior(prior_scale, total)
    return total + prior.power(1 - len(factors) * prior_share)


def combine(rule: Product, released: Released) -> Aggregate:
    """Draw from the `product` of the sites' Gaussians, at temperature 1.

    `full` holds d x d matrices, for last layers and small models. `diagonal` ignores correlations
    within a site, which moves the mean and the variances where parameters are correlated. A
    precision below the prior's, which only sampling error can cause, is set to it with a warning.

    Args:
        rule: The scenario's section.
        released: What the sites released.

    Returns:
        Draws from the product.

    Raises:
        ValueError: For too few samples, or an improper product.
    """
    shapes = sample_shapes(released.samples)
    estimate = ESTIMATES[rule.form]
    scale = prior_scale(released.sampler)
    sum_of_factors: NaturalGaussian | None = None
    sites = 0
    warnings: list[RunWarning] = []
    for chain in map(at_unit_temperature, chains(released.samples)):
        factor, factor_warnings = estimate(chain)
        sum_of_factors = factor if sum_of_factors is None else sum_of_factors + factor
        sites += 1
        warnings += chain.warnings
        warnings += factor_warnings
    assert sum_of_factors is not None  # `sample_shapes` found a site with samples
    # J factors that are already multiplied are one factor with J times the prior's share.
    prior_share = sites * rule.prior_share(released.sites)
    uncorrected = product([sum_of_factors], prior_scale=scale, prior_share=prior_share)
    posterior, raised = floored(uncorrected, 1 / scale**2)
    if raised:
        parameters = len(posterior.precision_mean)
        warnings.append(warning("precision-floored", raised=raised, parameters=parameters))
    warnings += conflict_warnings(estimate, released.samples, posterior)
    draws = posterior.sample(rule.draws, released.generator)
    return posterior_aggregate(draws=draws, shapes=shapes, warnings=warnings)
