"""How far a hospital's patients are from a declared population.

It is told by a private two-sample statistic of their inputs.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.release import bounded_shares


class CaseMix(NamedTuple):
    """How inputs differ from the declared ones.

    Attributes:
        difference: d, shape (D,).
        covariance: V, its variance by chance, shape (D, D).
        statistic: d' V^+ d, about chi-square of D degrees.
        p_value: Of the statistic.
    """

    difference: Floats
    covariance: Floats
    statistic: float
    p_value: float


class ClippedInputs(NamedTuple):
    """What units add to a sum that gets noise.

    Attributes:
        shares: One row a unit, shape (U, D).
        bound: R, by which a unit moves their sum at most, in L2.
    """

    shares: Floats
    bound: float


def clipped_inputs(inputs: Floats, units: npt.NDArray[np.int64], public: Floats) -> ClippedInputs:
    """Return clip(mean of unit u's inputs - c) of every unit.

    c is the mean of the public inputs, and the clip norm R the root mean square of their distance
    from it.

    Args:
        inputs: Shape (n, D).
        units: Unit of each record, 0, 1, ..., without gaps, shape (n,).
        public: Declared inputs, shape (N, D).

    Returns:
        The clipped means and R.

    Raises:
        ValueError: If R is no bound of a release.
    """
    centre = public.mean(axis=0)
    norm = float(np.sqrt(np.square(public - centre).sum(axis=1).mean()))
    means = np.zeros((units.max() + 1, inputs.shape[1]))
    np.add.at(means, units, (inputs - centre) / np.bincount(units)[units, None])
    return ClippedInputs(bounded_shares(means, norm), norm)


def case_mix(total: Floats, noise_std: float, units: int, public: Floats) -> CaseMix:
    """Read a noisy sum of `clipped_inputs`.

    V = S / n + S / N + noise_std^2 / n^2 I, S the variance of the N clipped public inputs.

    Args:
        total: The sum, shape (D,).
        noise_std: Of the noise on it.
        units: n.
        public: Declared inputs, shape (N, D).

    Returns:
        The difference to the declared inputs, and how likely it is by chance.
    """
    clipped = clipped_inputs(inputs=public, units=np.arange(len(public)), public=public).shares
    chance = np.atleast_2d(np.cov(clipped, rowvar=False)) * (1 / units + 1 / len(public))
    chance += (noise_std / units) ** 2 * np.eye(len(total))
    difference = total / units - clipped.mean(axis=0)
    statistic = float(difference @ np.linalg.pinv(chance, hermitian=True) @ difference)
    return CaseMix(
        difference=difference,
        covariance=chance,
        statistic=statistic,
        p_value=float(chi2.sf(statistic, len(total))),
    )
