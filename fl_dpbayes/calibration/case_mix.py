"""How far a hospital's patients are from a declared population, by a private two-sample statistic of their inputs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from fl_dpbayes.calibration.bins import Floats


@dataclass(frozen=True)
class DeclaredInputs:
    """What a public sample of inputs, (N, D), says of those of a population.

    `centre`: their mean, (D,). `clip_norm`: the root mean square of distances from it, at which inputs are clipped.
    `mean` and `covariance`: of the clipped distances, (D,) and (D, D).
    """

    centre: Floats
    clip_norm: float
    mean: Floats
    covariance: Floats
    count: int

    @classmethod
    def of(cls, public: Floats) -> "DeclaredInputs":
        """Take the moments of a public sample, (N, D) of N >= 2."""
        centre = public.mean(axis=0)
        norm = float(np.sqrt(np.square(public - centre).sum(axis=1).mean()))
        clipped = _clipped(public - centre, norm)
        return cls(centre, norm, clipped.mean(axis=0), np.atleast_2d(np.cov(clipped, rowvar=False)), len(public))

    def clipped_sum(self, inputs: Floats, units: npt.NDArray[np.int64]) -> Floats:
        """Return sum_u clip(mean of unit u's inputs - centre), (D,): a unit moves it by at most `clip_norm` in L2.

        `inputs`: (n, D). `units`: of each record, 0, 1, ..., without gaps, (n,).
        """
        means = np.zeros((units.max() + 1, inputs.shape[1]))
        np.add.at(means, units, inputs - self.centre)
        return _clipped(means / np.bincount(units)[:, None], self.clip_norm).sum(axis=0)


def _clipped(rows: Floats, norm: float) -> Floats:
    lengths = np.sqrt(np.square(rows).sum(axis=1))
    return rows * np.minimum(1.0, norm / np.maximum(lengths, norm * 1e-12))[:, None]


@dataclass(frozen=True)
class CaseMix:
    """The mean of a hospital's clipped inputs minus the declared one, (D,), and what chance gives it, (D, D)."""

    difference: Floats
    covariance: Floats

    @classmethod
    def of_sum(cls, sent: Floats, noise_std: float, units: int, declared: DeclaredInputs) -> "CaseMix":
        """Read a `clipped_sum` of n = `units` units, with noise N(0, noise_std^2) on each value, or none.

        covariance = S / n + S / N + noise_std^2 / n^2 I, S and N the public sample's.
        """
        noise = (noise_std / units) ** 2 * np.eye(len(sent))
        return cls(sent / units - declared.mean, declared.covariance * (1 / units + 1 / declared.count) + noise)

    @property
    def degrees(self) -> int:
        """Return the number of directions in which chance moves the difference."""
        return int(np.linalg.matrix_rank(self.covariance, hermitian=True))

    @property
    def statistic(self) -> float:
        """Return d' V^+ d, about chi-square for the declared population's patients: see `degrees`."""
        return float(self.difference @ np.linalg.pinv(self.covariance, hermitian=True) @ self.difference)

    @property
    def p_value(self) -> float:
        """Return how often patients of the declared population, with this noise, are at least as far from it."""
        return float(chi2.sf(self.statistic, self.degrees))

    def along(self, slopes: Floats) -> tuple[float, float]:
        """Return the difference of a linear predictor, slopes (D,), and its standard deviation by chance."""
        return float(slopes @ self.difference), float(np.sqrt(slopes @ self.covariance @ slopes))
