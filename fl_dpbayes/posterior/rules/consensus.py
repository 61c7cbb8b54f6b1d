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

    `full`: W_k = S_k^-1, a d x d matrix, for last layers and small models. `diagonal`:
    W_k = diag(1 / v_k). Both are unbiased for a site's effective number of draws. `uniform`:
    W_k = I, which gives mean (1/K) sum_k m_k and covariance (1/K^2) sum_k S_k, the global
    posterior's only where all precisions are equal. More draws than a site's samples repeat some.

    Args:
        rule: The scenario's section.
        released: What the sites released.

    Returns:
        Draws at temperature 1.

    Raises:
        ValueError: For few samples, a constant parameter, or a singular covariance.

    Source: Scott et al. 2016, "Bayes and big data: the consensus Monte Carlo algorithm".
    """
    shapes = sample_shapes(released.samples)
    estimate = ESTIMATES.get(rule.form)
    weighted_draws = np.zeros(())
    total_weight = np.zeros(())
    total_precision_mean = np.zeros(())
    sites = 0
    warnings: list[RunWarning] = []
    for chain in map(at_unit_temperature, chains(released.samples)):
        weight = np.ones(chain.draws.shape[1])
        estimate_warnings: tuple[RunWarning, ...] = ()
        if estimate is not None:
            gaussian, estimate_warnings = estimate(chain)
            weight = gaussian.precision
            total_precision_mean = total_precision_mean + gaussian.precision_mean
        draws = chain.draws[_paired(chain.weights, rule.draws, released.generator)]
        weighted_draws = weighted_draws + _times(draws, weight)
        total_weight = total_weight + weight
        sites += 1
        warnings += chain.warnings
        warnings += estimate_warnings
    # J sites that each target p(w)^s p(D_k|w) have the product p(w)^(J s) p(D|w).
    share = rule.prior_share(released.sites)
    if abs(sites * share - 1) > 1e-9:
        warnings.append(warning("prior-share", sites=sites, share=share, times=sites * share))
    if estimate is not None:
        product = NaturalGaussian(total_weight, total_precision_mean)
        warnings += conflict_warnings(estimate, released.samples, product)
    return posterior_aggregate(
        draws=_solved(weighted_draws, total_weight), shapes=shapes, warnings=warnings
    )


def _paired(weights: Array, draws: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    # Systematic resampling takes each of M equally weighted draws exactly once when M are wanted;
    # the shuffle makes the pairing of sites independent of where their chains stood.
    points = (np.arange(draws) + generator.random()) / draws
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), points), len(weights) - 1)
    return generator.permutation(chosen)


def _times(draws: Array, weight: Array) -> Array:
    """Multiply each draw by a diagonal weight (d,) or a full one (d, d)."""
    if weight.ndim == 1:
        return draws * weight
    return draws @ weight


def _solved(weighted_draws: Array, total_weight: Array) -> Array:
    if total_weight.ndim == 1:
        return weighted_draws / total_weight
    factor = cho_factor(total_weight, lower=True)
    return cho_solve(factor, weighted_draws.T).T
