"""A distribution on a grid: of the spread between hospitals, or of one hospital's effect."""

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
    """A distribution in cells of even width.

    Attributes:
        values: The middle of each cell, which stands for it, shape (G,).
        weights: The mass of each cell, shape (G,); they sum to 1.
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

        Args:
            log_likelihood: Of each of the values, shape (G,).

        Returns:
            The posterior, on the same values.
        """
        weights = self.weights * np.exp(log_likelihood - log_likelihood.max())
        return Distribution(self.values, weights / weights.sum())

    def given_labels(self, log_odds: Floats, labels: npt.NDArray[np.int64]) -> "Distribution":
        """Return the posterior of a hospital's effect given its own records.

            p(theta | y) ~ p(theta) prod_i sigmoid(x_i + theta)^y_i sigmoid(-x_i - theta)^(1 - y_i)

        Args:
            log_odds: x_i of its records at effect 0, shape (n,).
            labels: y_i, 0 or 1, shape (n,).

        Returns:
            The posterior.
        """
        signs = np.where(labels == 1, 1.0, -1.0)
        log_likelihood = [log_expit(signs * (log_odds + theta)).sum() for theta in self.values]
        return self.given(np.array(log_likelihood))

    def given_release(
        self, released: float, noise: float, units: int, log_odds: Floats
    ) -> "Distribution":
        """Return the posterior of a hospital's effect given its noisy sum of y - p.

        p is taken at the effect's mean m. Given theta the sum is about

            N(n E[sigmoid(x + theta) - sigmoid(x + m)], n E[v] + noise^2),

        v the variance of y, over public covariates: the hospital's own entered p and stay there.

        Args:
            released: The sum, with N(0, noise^2) added.
            noise: Standard deviation >= 0.
            units: n, as declared.
            log_odds: x of public covariates at effect 0, shape (N,).

        Returns:
            The posterior.
        """
        rates = np.empty(len(self.values))
        label_variances = np.empty(len(self.values))
        for number, theta in enumerate(self.values):
            p = expit(log_odds + theta)
            rates[number] = p.mean()
            label_variances[number] = (p * (1 - p)).mean()
        variances = units * label_variances + noise**2
        off = released - units * (rates - expit(log_odds + self.mean).mean())
        return self.given(-(np.log(variances) + np.square(off) / variances) / 2)


def mixed(weights: Floats, means: Floats, variances: Floats) -> Distribution:
    """Return the mixture sum_g v_g N(m_g, s_g^2).

    Args:
        weights: v_g >= 0, normalised here, shape (G,).
        means: m_g, shape (G,).
        variances: s_g^2 > 0, shape (G,).

    Returns:
        The mixture on a grid.
    """
    relevant = weights > _NEGLIGIBLE * weights.max()
    shares = weights[relevant] / weights[relevant].sum()
    means = means[relevant]
    variances = variances[relevant]
    centre = shares @ means
    sd = np.sqrt(shares @ (variances + np.square(means - centre)))
    edges = centre + sd * np.linspace(-REACH, REACH, _CELLS + 1)
    mass = np.diff(ndtr((edges[:, None] - means) / np.sqrt(variances)) @ shares)
    return Distribution((edges[1:] + edges[:-1]) / 2, mass / mass.sum())
