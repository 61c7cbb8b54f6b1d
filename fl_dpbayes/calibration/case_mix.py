"""How far a hospital's patients are from a declared population, by a private two-sample statistic of their inputs."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from fl_dpbayes.calibration.bins import GRID, Floats, in_fixed_pieces


class CaseMix(NamedTuple):
    """Difference d to the declared inputs, (D,), its variance V by chance, d' V^+ d (about chi-square of D), its p."""

    difference: Floats
    covariance: Floats
    statistic: float
    p_value: float


def clipped_inputs(inputs: Floats, units: npt.NDArray[np.int64], public: Floats) -> tuple[Floats, float]:
    """Return clip(mean of unit u's inputs - c), (U, D), of which a sum moves with a unit by at most R in L2, and R.

    c is the mean of the `public` inputs, (N, D), and R the root mean square of their distance from it. `inputs`: (n,
    D). `units`: of each record, 0, 1, ..., without gaps, (n,).
    """
    centre = public.mean(axis=0)
    norm = float(np.sqrt(np.square(public - centre).sum(axis=1).mean()))
    means = np.zeros((units.max() + 1, inputs.shape[1]))
    np.add.at(means, units, (inputs - centre) / np.bincount(units)[units, None])

    def clip(rows: Floats) -> Floats:
        lengths = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        # To a grid, on which sums are exact, and towards 0: that makes no unit's share longer.
        return np.trunc(rows * np.minimum(1.0, norm * (1 - 1e-9) / np.maximum(lengths, norm / 2)) * GRID) / GRID

    return in_fixed_pieces(clip, means), norm


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
