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
    """A Gaussian factor, whose precision need not be positive.

    Attributes:
        precision: L, shape (d,) or (d, d).
        precision_mean: h = L m, shape (d,).
    """

    precision: Array
    precision_mean: Array

    def __add__(self, other: "NaturalGaussian") -> "NaturalGaussian":
        """Multiply two densities."""
        return NaturalGaussian(
            precision=self.precision + other.precision,
            precision_mean=self.precision_mean + other.precision_mean,
        )

    def power(self, exponent: float) -> "NaturalGaussian":
        """Raise the density to a power."""
        return NaturalGaussian(
            precision=exponent * self.precision, precision_mean=exponent * self.precision_mean
        )

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
    """Return the prior N(0, scale^2 I) in the form of another Gaussian.

    Args:
        scale: Standard deviation > 0; infinite for the flat prior.
        like: A Gaussian of the same size, whose form of precision is taken.

    Returns:
        The prior.
    """
    precision = np.full(len(like.precision_mean), 1 / scale**2)
    if like.precision.ndim == 2:
        precision = np.diag(precision)
    return NaturalGaussian(precision=precision, precision_mean=np.zeros_like(like.precision_mean))


def floored(gaussian: NaturalGaussian, floor: float) -> tuple[NaturalGaussian, int]:
    """Raise precisions that lie below a floor to it, in any direction (eigenvalue); h stays.

    Args:
        gaussian: A Gaussian whose precision may be negative.
        floor: The least precision, >= 0.

    Returns:
        The corrected Gaussian, and in how many directions it was below the floor by more than
        rounding.

    Raises:
        ValueError: If a precision is not positive and the floor is 0, so that no proper Gaussian
            is near.
    """
    eigenvectors = None
    eigenvalues = gaussian.precision
    if gaussian.precision.ndim == 2:
        eigenvalues, eigenvectors = np.linalg.eigh(gaussian.precision)
    raised = int((eigenvalues < floor * (1 - _ROUNDING)).sum())
    eigenvalues = np.maximum(eigenvalues, floor)
    if not (eigenvalues > 0).all():
        raise ValueError(
            f"the product's precision is not positive in {int((eigenvalues <= 0).sum())} "
            "directions and the prior is flat: send more samples per site, or use a Gaussian prior"
        )
    if not raised:
        return gaussian, 0
    corrected = eigenvalues
    if eigenvectors is not None:
        corrected = (eigenvectors * eigenvalues) @ eigenvectors.T
    return NaturalGaussian(precision=corrected, precision_mean=gaussian.precision_mean), raised
