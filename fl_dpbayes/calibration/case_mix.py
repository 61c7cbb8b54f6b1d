"""How far a hospital's patients are from a declared population, by a private two-sample statistic of their inputs."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.release import bounded_shares


class CaseMix(NamedTuple):
    """Difference d to the declared inputs, (D,), its variance V by chance, d' V^+ d (about chi-square of D), its p."""

    difference: Floats
    covariance: Floats
    statistic: float
    p_value: float


def clipped_inputs(
    inputs: Floats, units: npt.NDArray[np.int64], public: Floats
) -> tuple[Floats, float]:
    """Return clip(mean of unit u's inputs - c), (U, D), of which a sum moves with a unit by at most R in L2, and R.

    c is the mean of the `public` inputs, (N, D), and R the root mean square of their distance from
    it. `inputs`: (n, D). `units`: of each record, 0, 1, ..., without gaps, (n,). Raises ValueError
    where R is no bound of a release.
    """
    centre = public.mean(axis=0)
    norm = float(np.sqrt(np.square(public - centre).sum(axis=1).mean()))
    means = np.zeros((units.max() + 1, inputs.shape[1]))
    np.add.at(means, units, (inputs - centre) / np.bincount(units)[units, None])

    return bounded_shares(means, norm), norm


def case_mix(total: Floats, noise_std: float, units: int, public: Floats) -> CaseMix:
    """Read a sum of `clipped_inputs` of n units, (D,), with its noise: V = S / n + S / N + noise_std^2 / n^2 I.

    S is the variance of the N clipped `public` inputs, (N, D).
    """
    clipped, _ = clipped_inputs(public, np.arange(len(public)), public)
    chance = np.atleast_2d(np.cov(clipped, rowvar=False)) * (1 / units + 1 / len(public))
    chance += (noise_std / units) ** 2 * np.eye(len(total))
    difference = total / units - clipped.mean(axis=0)
    statistic = float(difference @ np.linalg.pinv(chance, hermitian=True) @ difference)
    return CaseMix(difference, chance, statistic, float(chi2.sf(statistic, len(total))))
