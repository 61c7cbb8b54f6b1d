"""A mixture of normal distributions: an effect's posterior, integrated over the spread between hospitals."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Floats = npt.NDArray[np.float64]
# Below this share of the largest a component changes nothing that is shown.
_NEGLIGIBLE = 1e-5
_POINTS, _REACH = 801, 9.0


@dataclass(frozen=True)
class NormalMixture:
    """sum_g v_g N(means_g, variances_g); `weights` v_g >= 0 are normalised; all of shape (G,)."""

    weights: Floats
    means: Floats
    variances: Floats

    @property
    def mean(self) -> float:
        """The expected value."""
        return float(np.average(self.means, weights=self.weights))

    @property
    def sd(self) -> float:
        """The standard deviation."""
        spread = np.average(self.variances + np.square(self.means - self.mean), weights=self.weights)
        return float(np.sqrt(spread))

    def density(self, places: Floats) -> Floats:
        """Return the density at places (N,), nowhere quite 0."""
        scaled = np.square(places[:, None] - self.means) / self.variances
        parts = np.exp(-scaled / 2) / np.sqrt(2 * np.pi * self.variances)
        return parts @ (self.weights / self.weights.sum()) + np.finfo(float).tiny

    def quantiles(self, shares: Floats) -> Floats:
        """Return where the distribution function reaches each of `shares`, in (0, 1), of their shape."""
        kept = self.weights > _NEGLIGIBLE * self.weights.max()
        weights, means, scales = self.weights[kept], self.means[kept], np.sqrt(self.variances[kept])
        ends = (means - _REACH * scales).min(), (means + _REACH * scales).max()
        # Dense where the mass is, and a coarse cover of the tails of its widest components.
        near = self.mean + self.sd * np.linspace(-_REACH, _REACH, _POINTS)
        places = np.unique(np.concatenate([near, np.linspace(*ends, _POINTS)]))
        below = ndtr((places[:, None] - means) / scales) @ (weights / weights.sum())
        return np.interp(shares, below, places)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval that leaves equal shares on both sides, `level` in (0, 1)."""
        low, high = self.quantiles(np.array([(1 - level) / 2, (1 + level) / 2]))
        return float(low), float(high)

    def nodes(self, count: int) -> Floats:
        """Return `count` values of equal weight that stand for the distribution, its quantiles at (i + 1/2) / count."""
        return self.quantiles((np.arange(count) + 0.5) / count)
