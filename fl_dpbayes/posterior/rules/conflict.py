"""How far the uncertainty of estimated precisions moves the mean of a product of Gaussians.

The more the sites' posteriors conflict, the more: with m = L^-1 sum_k L_k m_k an error of L_k moves m by
L^-1 (error of L_k) v_k, v_k = m_k - m. Only that is counted here; the error of m_k itself is a fraction 1/n of the
posterior's variance.
"""

from collections.abc import Iterable

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.rules.natural import NaturalGaussian

# With a mean half a standard deviation off, a 95 % interval holds the truth 92 times in 100.
LARGEST_ERROR = 0.5


def mean_error(factors: Iterable[tuple[NaturalGaussian, float]], combined: NaturalGaussian) -> float:
    """Return the standard error of a product's mean that comes from its factors' precisions.

    For n' degrees of freedom the unbiased precision of p dimensions has, with c = (n' - p) (n' - p - 3),

        Cov(L_k v) = [(n' - p - 1) (v' L_k v) L_k + (n' - p + 1) L_k v v' L_k] / c,

    and e^2 = (1/d) sum_k tr(L^-1 Cov(L_k v_k)) over d parameters; n' = n - 1 for n effective draws. A diagonal form is
    d times p = 1.

    Args:
        factors: each site's Gaussian and its effective number of draws n.
        combined: the product, of the same form, its precision positive.

    Returns:
        e >= 0, in standard deviations of the product, root mean square over parameters.

    References:
        von Rosen 1988, "Moments for the inverted Wishart distribution", for the covariance of L_k.
    """
    mean, total, parameters = combined.mean, 0.0, len(combined.precision_mean)
    solver = None if combined.precision.ndim == 1 else cho_factor(combined.precision, lower=True)
    for factor, draws in factors:
        away = factor.mean - mean
        if solver is None:
            # Fewer draws than the formula takes are counted as its least.
            total += 2 / max(1.0, draws - 5) * float((np.square(factor.precision * away) / combined.precision).sum())
            continue
        pull = factor.precision @ away
        first = float(away @ pull) * float(np.trace(cho_solve(solver, factor.precision)))
        second = float(pull @ cho_solve(solver, pull))
        free = max(4.0, draws - 1 - parameters)
        total += ((free - 1) * first + (free + 1) * second) / (free * (free - 3))
    return float(np.sqrt(total / parameters))


def conflict_warnings(
    factors: Iterable[tuple[NaturalGaussian, float]], combined: NaturalGaussian
) -> tuple[RunWarning, ...]:
    """Warn where `mean_error` is above half a standard deviation; arguments as there."""
    error = mean_error(factors, combined)
    return () if error <= LARGEST_ERROR else (warning("conflict", error=error),)
