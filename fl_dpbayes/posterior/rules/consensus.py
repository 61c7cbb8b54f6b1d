"""Consensus Monte Carlo: each global draw is a weighted average of one draw per site.

Convention A: precisions add, each site targets p(w)^{1/K} p(D_k|w). Draws follow the posterior
given all records if the sites' posteriors are Gaussian and the weights are their precisions. Draws
are brought to temperature 1 by the sites' public temperatures first. Memory is one site's samples
plus the sums.
"""

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from fl_dpbayes.config import Consensus, RunWarning, warning
from fl_dpbayes.posterior.chains import at_unit_temperature, chains, sample_shapes
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.precision import ESTIMATES, conflict_warnings
from fl_dpbayes.posterior.rules.combine import Aggregate, Released, posterior_aggregate

Array = npt.NDArray[np.float64]


def combine(rule: Consensus, released: Released) -> Aggregate:
    """Average draws, paired at random: w^(s) = (sum_k W_k)^{-1} sum_k W_k w_k^(s).

    `full`: W_k = S_k^-1, a d x d matrix, for last layers and small models. `diagonal`: W_k = diag(1
    / v_k). Both are unbiased for a site's effective number of draws. `uniform`: W_k = I, which
    gives mean (1/K) sum_k m_k and covariance (1/K^2) sum_k S_k, the global posterior's only where
    all precisions are equal. More draws than a site's samples repeat some. Source: Scott et al.
    2016, "Bayes and big data".

    Returns draws at temperature 1. Raises ValueError for few samples, a constant parameter, a
    singular covariance.
    """
    shapes, estimate = sample_shapes(released.samples), ESTIMATES.get(rule.form)
    weighted, total, shift = np.zeros(()), np.zeros(()), np.zeros(())
    sites, warnings = 0, list[RunWarning]()
    for chain in map(at_unit_temperature, chains(released.samples)):
        weight, found = np.ones(chain.draws.shape[1]), tuple[RunWarning, ...]()
        if estimate is not None:
            gaussian, found = estimate(chain)
            weight, shift = gaussian.precision, shift + gaussian.precision_mean
        draws = chain.draws[_paired(chain.weights, rule.draws, released.generator)]
        weighted = weighted + (draws * weight if weight.ndim == 1 else draws @ weight)
        total, sites = total + weight, sites + 1
        warnings += [*chain.warnings, *found]
    # J sites that each target p(w)^s p(D_k|w) have the product p(w)^(J s) p(D|w).
    share = rule.prior_share(released.sites)
    if abs(sites * share - 1) > 1e-9:
        warnings.append(warning("prior-share", sites=sites, share=share, times=sites * share))
    if estimate is not None:
        warnings += conflict_warnings(estimate, released.samples, NaturalGaussian(total, shift))
    return posterior_aggregate(_solved(weighted, total), shapes, warnings)


def _paired(weights: Array, draws: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    # Systematic resampling takes each of M equally weighted draws exactly once when M are wanted;
    # the shuffle makes the pairing of sites independent of where their chains stood.
    points = (np.arange(draws) + generator.random()) / draws
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), points), len(weights) - 1)
    return generator.permutation(chosen)


def _solved(weighted: Array, total: Array) -> Array:
    return (
        weighted / total
        if total.ndim == 1
        else cho_solve(cho_factor(total, lower=True), weighted.T).T
    )
