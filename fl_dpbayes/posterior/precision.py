"""A site's Gaussian estimated from its draws, with an unbiased precision.

The inverse of a sample variance is too large on average: for n independent Gaussian draws in p
dimensions E[S^-1] = (n - 1) / (n - p - 2) Sigma^-1 (3.0 times too large at n = 4, p = 1; infinite
at n = 3). Rules that add precisions would add up that bias, so it is divided out.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from fl_dpbayes.config import RunWarning, counted, warning
from fl_dpbayes.posterior.chains import Chain, at_unit_temperature, chains
from fl_dpbayes.posterior.diagnostics import effective_sample_size
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.samples import AnySamples

Estimate = Callable[[Chain], tuple[NaturalGaussian, tuple[RunWarning, ...]]]
_COORDINATES = 64
# Standard errors from which on neighbouring draws count as correlated.
_SIGNIFICANT = 3.0
# Of standard deviations in one matrix: their precisions then differ by 10^10, of the 10^16 that
# float64 tells apart.
_LEAST_SPREAD = 1e-5
# With a mean half a standard deviation off, a 95 % interval holds the truth 92 times in 100.
LARGEST_ERROR = 0.5


def effective_draws(chain: Chain) -> float:
    """Return how many independent, equally weighted draws are worth as much as the chain.

        n = (1 / sum_t v_t^2) * min(1, ESS / M)

    Kish's size for the weights, times the share that autocorrelation leaves, measured on up to 64
    evenly spaced coordinates together. The share is 1 unless neighbouring draws are correlated by 3
    standard errors: of a few coordinates ESS is so uncertain that min(1, .) alone would take a
    fifth from independent draws.

    Args:
        chain: M draws.

    Returns:
        n in (0, M].

    Source: Kish 1965, "Survey sampling"; Vehtari et al. 2021, "Rank-normalization, folding, and
    localization: an improved R-hat".
    """
    size = float(1 / np.square(chain.weights).sum())
    count, parameters = chain.draws.shape
    if count < 4:
        return size
    columns = np.linspace(0, parameters - 1, min(parameters, _COORDINATES)).astype(int)
    coordinates = chain.draws[:, columns]
    spread = coordinates.std(axis=0)
    moving = coordinates[:, spread > 0]
    if not moving.shape[1]:
        return size
    standardised = (moving - moving.mean(axis=0)) / spread[spread > 0]
    if not _correlated(standardised):
        return size
    half = count // 2
    # Centring makes the halves' means opposite, which halves the variance between them; this
    # restores it.
    for part in (standardised[:half], standardised[-half:]):
        part += (np.sqrt(2) - 1) * part.mean(axis=0)
    return size * min(1.0, effective_sample_size(standardised.T) / standardised.size)


def _correlated(standardised: npt.NDArray[np.float64]) -> bool:
    """Say whether neighbouring draws are correlated beyond chance.

    Of M independent draws the lag-1 correlation of p coordinates together has mean -1/M and
    variance 1 / (M p*), with p* = p^2 / sum_ij R_ij^2 coordinates that are independent of each
    other, R their correlations.
    """
    count, parameters = standardised.shape
    neighbours = float((standardised[:-1] * standardised[1:]).sum()) / standardised.size
    independent = parameters**2 / float(np.square(standardised.T @ standardised / count).sum())
    return neighbours + 1 / count > _SIGNIFICANT / np.sqrt(count * independent)


def diagonal_gaussian(chain: Chain) -> tuple[NaturalGaussian, tuple[RunWarning, ...]]:
    """Estimate N(m, diag v) from a chain, its precision (n - 3) / (n - 1) / v.

    v by `weighted_variance` is unbiased; n is the effective number of draws. The factor follows
    from the mean of the inverse chi-squared distribution.

    Args:
        chain: One site's draws.

    Returns:
        The Gaussian, with a precision of shape (d,), and warnings.

    Raises:
        ValueError: If there are fewer than 5 draws, or a parameter does not vary.
    """
    factor, warnings = _unbiased_factor(chain, 1)
    variance = weighted_variance(chain)
    if not (variance > 0).all():
        constant = int((variance <= 0).sum())
        raise ValueError(
            f"{constant} parameters of site {chain.site!r} do not vary between its samples: "
            "aggregate the layers that are sampled only, or use a rule without precisions"
        )
    precision = factor / variance
    return NaturalGaussian(precision, precision * chain.mean), warnings


def full_gaussian(chain: Chain) -> tuple[NaturalGaussian, tuple[RunWarning, ...]]:
    """Estimate N(m, S) from a chain, its precision (n - d - 2) / (n - 1) S^-1.

    S = sum_t v_t (w_t - m)(w_t - m)^T / (1 - sum_t v_t^2) is unbiased; n is the effective number of
    draws. The factor follows from the mean of the inverse Wishart distribution.

    Args:
        chain: One site's draws.

    Returns:
        The Gaussian, with a precision of shape (d, d), and warnings.

    Raises:
        ValueError: If there are fewer than d + 4 draws, their covariance is singular, or a
            parameter varies so little that the others' precisions are lost in its rounding.
    """
    factor, warnings = _unbiased_factor(chain, chain.draws.shape[1])
    rows = deviations(chain)
    covariance = (rows.T * chain.weights) @ rows / (1 - np.square(chain.weights).sum())
    _check_scales(chain, np.sqrt(np.diag(covariance)))
    try:
        precision = factor * cho_solve(cho_factor(covariance, lower=True), np.eye(len(covariance)))
    except np.linalg.LinAlgError:
        raise ValueError(
            f"the covariance of site {chain.site!r} is singular: use the diagonal form"
        ) from None
    return NaturalGaussian(precision, precision @ chain.mean), warnings


def _check_scales(chain: Chain, spread: npt.NDArray[np.float64]) -> None:
    least = int(spread.argmin())
    most = int(spread.argmax())
    if spread[least] >= _LEAST_SPREAD * spread[most]:
        return
    raise ValueError(
        f"parameter {chain.parameter(least)} of site {chain.site!r} hardly varies between its "
        f"samples (standard deviation {spread[least]:.2g}, that of {chain.parameter(most)} is "
        f"{spread[most]:.2g}), so that no precision of the others can be told beside its own: "
        "use the diagonal form, or aggregate the layers that are sampled only"
    )


def weighted_variance(chain: Chain) -> npt.NDArray[np.float64]:
    """Return the unbiased variance of each parameter.

        v = sum_t v_t (w_t - m)^2 / (1 - sum_t v_t^2)

    Args:
        chain: 2 draws or more, their weights v_t.

    Returns:
        v, shape (d,).
    """
    return chain.weights @ np.square(deviations(chain)) / (1 - np.square(chain.weights).sum())


def deviations(chain: Chain) -> npt.NDArray[np.float64]:
    """Return w_t - m, exactly 0 for a parameter that does not vary, shape (M, d)."""
    from_first = chain.draws - chain.draws[0]
    return from_first - chain.weights @ from_first


def _unbiased_factor(chain: Chain, dimensions: int) -> tuple[float, tuple[RunWarning, ...]]:
    least = dimensions + 4
    if len(chain.weights) < least:
        raise ValueError(
            f"site {chain.site!r} sent {counted(len(chain.weights), 'sample')}: a precision "
            f"over {dimensions} dimensions needs at least {least}; keep more samples, or use the "
            "diagonal form, or a rule without precisions"
        )
    effective = effective_draws(chain)
    warnings: tuple[RunWarning, ...] = ()
    if effective < least:
        warnings = (warning("few-effective", chain.site, effective=effective, least=least),)
    size = max(effective, least)
    return (size - dimensions - 2) / (size - 1), warnings


# The forms of precision that rules weigh sites by.
ESTIMATES: Mapping[str, Estimate] = {"full": full_gaussian, "diagonal": diagonal_gaussian}


def mean_error(
    factors: Iterable[tuple[NaturalGaussian, float]], combined: NaturalGaussian
) -> float:
    """Return the standard error of a product's mean that comes from its factors' precisions.

    The more the sites' posteriors conflict, the larger it is: with m = L^-1 sum_k L_k m_k an error
    of L_k moves m by L^-1 (error of L_k) v_k, v_k = m_k - m. The error of m_k itself, 1/n of the
    posterior's variance, is not counted. For n' degrees of freedom and p dimensions, with c = (n' -
    p) (n' - p - 3),

        Cov(L_k v) = [(n' - p - 1) (v' L_k v) L_k + (n' - p + 1) L_k v v' L_k] / c,

    and e^2 = (1/d) sum_k tr(L^-1 Cov(L_k v_k)) over d parameters; n' = n - 1 for n effective draws.
    A diagonal form is d times p = 1. Source: von Rosen 1988, "Moments for the inverted Wishart
    distribution".

    Args:
        factors: Each site's Gaussian L_k, m_k, and its effective number of draws n.
        combined: Their product, its precision positive.

    Returns:
        e >= 0, in standard deviations of the product.
    """
    parameters = len(combined.precision_mean)
    trace = _diagonal_trace if combined.precision.ndim == 1 else _full_trace
    return float(np.sqrt(trace(factors, combined) / parameters))


def _diagonal_trace(
    factors: Iterable[tuple[NaturalGaussian, float]], combined: NaturalGaussian
) -> float:
    mean = combined.mean
    total = 0.0
    for factor, draws in factors:
        pull = factor.precision * (factor.mean - mean)
        # Fewer draws than the formula takes are counted as its least.
        total += 2 / max(1.0, draws - 5) * float((np.square(pull) / combined.precision).sum())
    return total


def _full_trace(
    factors: Iterable[tuple[NaturalGaussian, float]], combined: NaturalGaussian
) -> float:
    mean = combined.mean
    parameters = len(combined.precision_mean)
    solver = cho_factor(combined.precision, lower=True)
    total = 0.0
    for factor, draws in factors:
        offset = factor.mean - mean
        pull = factor.precision @ offset
        first = float(offset @ pull) * float(np.trace(cho_solve(solver, factor.precision)))
        second = float(pull @ cho_solve(solver, pull))
        # n' - p; fewer draws than the formula takes are counted as its least.
        free = max(4.0, draws - 1 - parameters)
        total += ((free - 1) * first + (free + 1) * second) / (free * (free - 3))
    return total


def conflict_warnings(
    estimate: Estimate, site_samples: Mapping[str, AnySamples], combined: NaturalGaussian
) -> tuple[RunWarning, ...]:
    """Warn where `mean_error` of the sites' product is above half a standard deviation."""
    sites = map(at_unit_temperature, chains(site_samples))
    factors = ((estimate(chain)[0], effective_draws(chain)) for chain in sites)
    error = mean_error(factors, combined)
    if error <= LARGEST_ERROR:
        return ()
    return (warning("conflict", error=error),)
