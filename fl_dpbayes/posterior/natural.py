"""Gaussians in natural parameters, where products of densities are sums.

N(m, S) is held as precision L = S^-1 and h = L m. The precision is a vector (d,) for a diagonal
one, else a matrix (d, d); all operands of a sum have the same form.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Array = npt.NDArray[np.float64]
_ROUNDING = 1e-9


@dataclass(frozen=True)
class NaturalGaussian:
    """A Gaussian factor, whose precision L need not be positive; h = L m, (d,)."""

    precision: Array
    precision_mean: Array

    def __add__(self, other: "NaturalGaussian") -> "NaturalGaussian":
        """Multiply two densities."""
        return NaturalGaussian(
            self.precision + other.precision, self.precision_mean + other.precision_mean
        )

    def power(self, exponent: float) -> "NaturalGaussian":
        """Raise the density to a power."""
        return NaturalGaussian(exponent * self.precision, exponent * self.precision_mean)

    @property
    def mean(self) -> Array:
        """Mean m = L^-1 h, shape (d,)."""
        if self.precision.ndim == 1:
            return self.precision_mean / self.precision
        return cho_solve(cho_factor(self.precision, lower=True), self.precision_mean)

    def sample(self, draws: int, generator: np.random.Generator) -> Array:
        """Draw from N(m, S), shape (draws, d)."""
        noise = generator.standard_normal((draws, len(self.precision_mean)))
        if self.precision.ndim == 1:
            return self.mean + noise / np.sqrt(self.precision)
        factor = np.linalg.cholesky(self.precision)
        return self.mean + solve_triangular(factor, noise.T, lower=True, trans="T").T


def centred_prior(scale: float, like: NaturalGaussian) -> NaturalGaussian:
    """Return the prior N(0, scale^2 I) with a precision of the form of `like`.

    An infinite scale is the flat prior.
    """
    precision = np.full(len(like.precision_mean), 1 / scale**2)
    own_form = precision if like.precision.ndim == 1 else np.diag(precision)
    return NaturalGaussian(own_form, np.zeros_like(like.precision_mean))


def floored(gaussian: NaturalGaussian, floor: float) -> tuple[NaturalGaussian, int]:
    """Raise precisions that lie below a floor >= 0, in any direction (eigenvalue), to it; h stays.

    Returns the corrected Gaussian, and in how many directions it was below the floor by more than
    rounding. Raises ValueError if a precision is not positive and the floor is 0, so that no proper
    Gaussian is near.
    """
    precision = gaussian.precision
    values, vectors = (precision, None) if precision.ndim == 1 else np.linalg.eigh(precision)
    raised, values = int((values < floor * (1 - _ROUNDING)).sum()), np.maximum(values, floor)
    if not (values > 0).all():
        said = (
            f"the product's precision is not positive in {int((values <= 0).sum())} directions "
            "and the prior is flat"
        )
        raise ValueError(f"{said}: send more samples per site, or use a Gaussian prior")
    if not raised:
        return gaussian, 0
    corrected = values if vectors is None else (vectors * values) @ vectors.T
    return NaturalGaussian(corrected, gaussian.precision_mean), raised
