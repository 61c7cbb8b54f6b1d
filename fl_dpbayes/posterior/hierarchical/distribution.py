"""A distribution on a grid: of the spread between hospitals, or of one hospital's effect."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Floats = npt.NDArray[np.float64]
# Below this share of the largest a component changes nothing that is shown.
_NEGLIGIBLE = 1e-5
_CELLS, _REACH = 1600, 9.0


@dataclass(frozen=True)
class Distribution:
    """Each of `values`, in even steps, stands for its cell, of mass `weights`, which sum to 1; both (G,)."""

    values: Floats
    weights: Floats

    @property
    def mean(self) -> float:
        """The expected value."""
        return float(self.weights @ self.values)

    @property
    def sd(self) -> float:
        """The standard deviation."""
        return float(np.sqrt(self.weights @ np.square(self.values - self.mean)))

    def quantiles(self, shares: Floats) -> Floats:
        """Return where the distribution function reaches each of `shares`, in (0, 1), of their shape."""
        return np.interp(shares, np.cumsum(self.weights) - self.weights / 2, self.values)

    @property
    def median(self) -> float:
        """What is exceeded half of the time."""
        return float(self.quantiles(np.array([0.5]))[0])

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval that leaves equal shares on both sides, `level` in (0, 1)."""
        low, high = self.quantiles(np.array([1 - level, 1 + level]) / 2)
        return float(low), float(high)

    def given(self, log_likelihood: Floats) -> "Distribution":
        """Return the posterior, this one being the prior; `log_likelihood`: of each of the values, (G,)."""
        weights = self.weights * np.exp(log_likelihood - log_likelihood.max())
        return Distribution(self.values, weights / weights.sum())


def mixed(weights: Floats, means: Floats, variances: Floats) -> Distribution:
    """Return sum_g v_g N(means_g, variances_g); `weights` v_g >= 0 are normalised here; all of shape (G,)."""
    kept = weights > _NEGLIGIBLE * weights.max()
    shares, means, variances = weights[kept] / weights[kept].sum(), means[kept], variances[kept]
    centre = shares @ means
    sd = np.sqrt(shares @ (variances + np.square(means - centre)))
    edges = centre + sd * np.linspace(-_REACH, _REACH, _CELLS + 1)
    mass = np.diff(ndtr((edges[:, None] - means) / np.sqrt(variances)) @ shares)
    return Distribution((edges[1:] + edges[:-1]) / 2, mass / mass.sum())
