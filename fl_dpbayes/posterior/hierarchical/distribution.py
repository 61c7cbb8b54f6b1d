"""A distribution on a grid: of the spread between hospitals, or of one's effect, and given its own patients."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit, ndtr

Floats = npt.NDArray[np.float64]
# Below this share of the largest a component changes nothing that is shown.
_NEGLIGIBLE = 1e-5
_CELLS = 1600
# In standard deviations from its mean: beyond them a mixture has no grid.
REACH = 9.0


@dataclass(frozen=True)
class Distribution:
    """Each of `values`, in even steps, stands for its cell, of mass `weights`, which sum to 1.

    Both (G,).
    """

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
        """Return the quantiles at `shares`, in (0, 1), of their shape."""
        return np.interp(shares, np.cumsum(self.weights) - self.weights / 2, self.values)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval that leaves equal shares on both sides, `level` in (0, 1)."""
        low, high = self.quantiles(np.array([1 - level, 1 + level]) / 2)
        return float(low), float(high)

    def given(self, log_likelihood: Floats) -> "Distribution":
        """Return the posterior, this one being the prior.

        `log_likelihood`: of each of the values, (G,).
        """
        weights = self.weights * np.exp(log_likelihood - log_likelihood.max())
        return Distribution(self.values, weights / weights.sum())

    def given_labels(self, log_odds: Floats, labels: npt.NDArray[np.int64]) -> "Distribution":
        """Return p(theta | y) ~ p(theta) prod_i sigmoid(x_i + theta)^y_i sigmoid(-x_i - theta)^(1 - y_i).

        `log_odds`: x_i of a hospital's records at effect 0, (n,). `labels`: y_i, 0 or 1, (n,).
        """
        signs = np.where(labels == 1, 1.0, -1.0)
        return self.given(
            np.array([log_expit(signs * (log_odds + theta)).sum() for theta in self.values])
        )

    def given_release(
        self, released: float, noise: float, units: int, log_odds: Floats
    ) -> "Distribution":
        """Return the effect given a sum of y - p at the effect's mean m, which left with N(0, `noise`^2) added.

        Given theta it is about N(n E[sigmoid(x + theta) - sigmoid(x + m)], n E[v] + noise^2), v the
        variance of y, over public covariates: those of the hospital entered p and stay there.
        `units`: n, as declared. `log_odds`: x of public covariates at effect 0, (N,).
        """
        found = [
            ((p := expit(log_odds + theta)).mean(), (p * (1 - p)).mean()) for theta in self.values
        ]
        rates, spreads = np.array(found).T
        variances = units * spreads + noise**2
        off = released - units * (rates - expit(log_odds + self.mean).mean())
        return self.given(-(np.log(variances) + np.square(off) / variances) / 2)


def mixed(weights: Floats, means: Floats, variances: Floats) -> Distribution:
    """Return sum_g v_g N(means_g, variances_g); `weights` v_g >= 0 are normalised here.

    All of shape (G,).
    """
    kept = weights > _NEGLIGIBLE * weights.max()
    shares, means, variances = weights[kept] / weights[kept].sum(), means[kept], variances[kept]
    centre = shares @ means
    sd = np.sqrt(shares @ (variances + np.square(means - centre)))
    edges = centre + sd * np.linspace(-REACH, REACH, _CELLS + 1)
    mass = np.diff(ndtr((edges[:, None] - means) / np.sqrt(variances)) @ shares)
    return Distribution((edges[1:] + edges[:-1]) / 2, mass / mass.sum())
