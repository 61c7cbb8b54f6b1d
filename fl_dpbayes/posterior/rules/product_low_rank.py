"""Product of the sites' Gaussians with diagonal plus low-rank covariances, for models too large for a matrix.

Convention A: precisions add, as in `product`. With M draws at each of K sites, everything is done in the space of the
K M draws: one symmetric (K M, K M) matrix is decomposed, and no (d, d) matrix is formed. Memory is about six times the
K M d numbers of all draws in float64 (4 GB for 4 sites, 20 draws, 1 M parameters): unlike the other rules' it grows
with the sites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.rules.aggregate import Aggregate, posterior_aggregate
from fl_dpbayes.posterior.rules.chains import Chain, at_unit_temperature, chains, sample_shapes
from fl_dpbayes.posterior.rules.natural import prior_precision
from fl_dpbayes.posterior.rules.precision import deviations, effective_draws, weighted_variance
from fl_dpbayes.posterior.rules.product import floor_warnings
from fl_dpbayes.posterior.samples import PosteriorSamples

Array = npt.NDArray[np.float64]
_LEAST_DRAWS = 5


@dataclass(frozen=True)
class LowRankGaussian:
    """N(m, S) with S = diag(v) + A^T A.

    Attributes:
        mean: m, shape (d,).
        diagonal: v > 0, shape (d,).
        factor: A, shape (M, d).
    """

    mean: Array
    diagonal: Array
    factor: Array


@dataclass(frozen=True)
class LowRankPosterior:
    """N(m, S) with S^-1 = P^{1/2} (I - sum_i (1 - l_i) q_i q_i^T) P^{1/2}, P diagonal, q_i orthonormal.

    Attributes:
        mean: m, shape (d,).
        scale: P^{-1/2}, shape (d,).
        basis: rows q_i, shape (r, d).
        eigenvalues: l_i > 0, shape (r,).
        raised: in how many directions the precision was below the prior's and was set to it.
    """

    mean: Array
    scale: Array
    basis: Array
    eigenvalues: Array
    raised: int

    def sample(self, draws: int, generator: np.random.Generator) -> Array:
        """Draw from N(m, S), shape (draws, d)."""
        noise = generator.standard_normal((draws, len(self.mean)))
        return self.mean + self.scale * _stretched(noise, self.basis, self.eigenvalues**-0.5)


def product(factors: Sequence[LowRankGaussian], *, prior_scale: float, prior_share: float) -> LowRankPosterior:
    """Multiply the sites' Gaussians and count the prior once.

    Woodbury: S_k^-1 = D^-1 - U_k^T U_k, U_k = chol(I + A D^-1 A^T)^-1 A D^-1, D = diag(v_k). With all U_k stacked in U,
    P = sum_k D_k^-1 + (1 - K s) L_0 and V = U P^{-1/2}, the precision is P^{1/2} (I - V^T V) P^{1/2}; the eigenvectors
    of the (K M, K M) matrix V V^T give those of V^T V, hence m = S sum_k S_k^-1 m_k and draws.

    Args:
        factors: each site's p(w)^s p(D_k|w).
        prior_scale: standard deviation of the Gaussian prior, > 0; infinite for a flat one.
        prior_share: share of the prior that each site targeted, s in [0, 1].

    Returns:
        The global posterior; where it would be wider than the prior, it is the prior.

    Raises:
        ValueError: if there is no factor, or the product is improper and the prior flat.

    References:
        Maddox et al. 2019, "A simple baseline for Bayesian uncertainty in deep learning" (the form of S_k); the
        Woodbury identity.
    """
    if not factors:
        raise ValueError("there is no factor to multiply")
    prior = prior_precision(prior_scale)
    diagonal = np.full(len(factors[0].mean), (1 - len(factors) * prior_share) * prior)
    shift = np.zeros_like(diagonal)
    corrections = []
    for factor in factors:
        scaled = factor.factor / factor.diagonal
        core = np.eye(len(scaled)) + scaled @ factor.factor.T
        correction = solve_triangular(np.linalg.cholesky(core), scaled, lower=True)
        diagonal += 1 / factor.diagonal
        shift += factor.mean / factor.diagonal - correction.T @ (correction @ factor.mean)
        corrections.append(correction)
    below = diagonal < prior * (1 - 1e-9)
    diagonal = np.maximum(diagonal, prior)
    if not (diagonal > 0).all():
        raise ValueError("the product's precision is not positive and the prior is flat: use a Gaussian prior")
    scale = 1 / np.sqrt(diagonal)
    basis, eigenvalues, raised = _decomposed(np.concatenate(corrections) * scale, scale, prior)
    mean = scale * _stretched((scale * shift)[np.newaxis], basis, 1 / eigenvalues)[0]
    return LowRankPosterior(mean, scale, basis, eigenvalues, raised + int(below.sum()))


def combine(
    site_samples: Mapping[str, PosteriorSamples],
    *,
    prior_scale: float,
    prior_share: float,
    draws: int,
    generator: np.random.Generator,
) -> Aggregate:
    """Draw from the product of the sites' Gaussians, each S_k = (diag v_k + A_k^T A_k) / 2.

    v_k is the variance of the draws and A_k^T A_k their covariance of rank M - 1, so that variances are kept and
    correlations are halved. The product is that of `product`.

    Args:
        site_samples: site -> samples of p(w)^s p(D_k|w), at least 2.
        prior_scale: standard deviation of the Gaussian prior, > 0; infinite for a flat one.
        prior_share: share of the prior that each site targeted, s in [0, 1].
        draws: how many draws to return, >= 1.
        generator: source of the draws.

    Returns:
        Draws at temperature 1, with a warning for each site with fewer than 5 effective samples.

    Raises:
        ValueError: if a site has fewer than 2 samples or a parameter that does not vary, or the product is improper.

    References:
        As `product`.
    """
    shapes = sample_shapes(site_samples)
    factors, warnings = [], list[RunWarning]()
    for chain in map(at_unit_temperature, chains(site_samples)):
        factors.append(low_rank_gaussian(chain))
        warnings += chain.warnings
        effective = effective_draws(chain)
        if effective < _LEAST_DRAWS:
            warnings.append(warning("few-effective-low-rank", chain.site, effective=effective))
    posterior = product(factors, prior_scale=prior_scale, prior_share=prior_share)
    warnings += floor_warnings(posterior.raised, len(posterior.mean))
    return posterior_aggregate(posterior.sample(draws, generator), shapes, warnings)


def low_rank_gaussian(chain: Chain) -> LowRankGaussian:
    """Estimate N(m, (diag v + A^T A) / 2) from a chain, A the weighted deviations from the mean.

    Args:
        chain: at least 2 draws.

    Returns:
        The Gaussian; its diagonal covariance is the unbiased variance.

    Raises:
        ValueError: if there are fewer than 2 draws, or a parameter does not vary.

    References:
        Maddox et al. 2019, "A simple baseline for Bayesian uncertainty in deep learning".
    """
    variance = weighted_variance(chain)
    if not (variance > 0).all():
        raise ValueError(
            f"{int((variance <= 0).sum())} parameters of site {chain.site!r} do not vary between its samples, so their "
            "precision is infinite: aggregate the layers that are sampled only, or use a rule without precisions"
        )
    scale = np.sqrt(chain.weights / (2 * (1 - np.square(chain.weights).sum())))
    return LowRankGaussian(chain.mean, variance / 2, scale[:, np.newaxis] * deviations(chain))


def _decomposed(whitened: Array, scale: Array, prior: float) -> tuple[Array, Array, int]:
    values, vectors = np.linalg.eigh(whitened @ whitened.T)
    kept = values > 1e-12
    values = values[kept]
    basis = (vectors[:, kept] / np.sqrt(values)).T @ whitened
    # In the whitened direction q the prior's precision is L_0 sum_j q_j^2 / P_j.
    floor = prior * np.square(basis * scale).sum(axis=1)
    raised = 1 - values < floor * (1 - 1e-9)
    eigenvalues = np.maximum(1 - values, floor)
    if not (eigenvalues > 0).all():
        raise ValueError("the product's precision is not positive and the prior is flat: use a Gaussian prior")
    return basis, eigenvalues, int(raised.sum())


def _stretched(rows: Array, basis: Array, factors: Array) -> Array:
    return rows + (rows @ basis.T * (factors - 1)) @ basis
