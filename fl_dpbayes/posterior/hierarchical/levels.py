"""The posterior over hospitals given noisy estimates of their effects.

    u_k = theta_k + N(0, V_k),   theta_k = c_j + N(0, tau_h^2),   c_j = m + N(0, tau_c^2)

One level of hospitals, or hospitals within groups. Source: Gelman et al., Bayesian Data Analysis,
section 5.4.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats, mixed

# A grid goes to where the log density is so far below its peak, by at most a tenth of a standard
# deviation a step.
_POINTS_OF_ONE_LEVEL = 513
_POINTS_OF_TWO_LEVELS = 129
_FALL = 14.0
_ZOOMS = 6
# Mixtures are smooth: every eighth point of a grid gives them to .003.
_STRIDE = 8
# With a prior uniform on [0, inf) the posterior of the spread over K hospitals falls as tau^-(K -
# 1).
LEAST_IDENTIFIED = 3


@dataclass(frozen=True)
class _Fit:
    """The posterior at every point of a grid of tau_h (a) and tau_c (b), of J groups.

    Attributes:
        centres: Weighted mean of each group's estimates, shape (a, J).
        weights: Precision of a centre as an estimate of m, shape (a, b, J).
        shrinkage: B_j, share of a group's own mean in its centre, shape (a, b, J).
        mean: Mean of m, shape (a, b).
        mass: Posterior mass of the point, shape (a, b).
    """

    centres: Floats
    weights: Floats
    shrinkage: Floats
    mean: Floats
    mass: Floats


class HospitalPosterior:
    """The posterior of every hospital's effect, of a new one's, and of the spread between them.

    m is flat and both standard deviations are uniform on [0, `largest_sd`], mixed over a grid. One
    level is the same with all hospitals in one group and tau_c = 0.

    Args:
        estimates: u_k of K >= 1 hospitals, shape (K,).
        variances: V_k > 0, shape (K,).
        groups: Each hospital's, 0 .. J - 1, shape (K,); None for one level.
        largest_sd: Above 0.

    Attributes:
        spreads: The distributions of tau_h and tau_c.
        counts: Of how many hospitals and groups that is all there is.
    """

    def __init__(
        self,
        estimates: Floats,
        variances: Floats,
        groups: npt.NDArray[np.int64] | None,
        largest_sd: float,
    ) -> None:
        self.estimates = estimates
        self.variances = variances
        self.groups = groups
        self.largest_sd = largest_sd
        self._groups = np.zeros(len(estimates), np.int64) if groups is None else groups
        self._members = np.eye(self._groups.max() + 1)[self._groups]
        if groups is None:
            hospital_sds = np.linspace(0, largest_sd, _POINTS_OF_ONE_LEVEL)
            group_sds = np.zeros(1)
        else:
            hospital_sds = np.linspace(0, largest_sd, _POINTS_OF_TWO_LEVELS)
            group_sds = np.linspace(0, largest_sd, _POINTS_OF_TWO_LEVELS)
        for _ in range(_ZOOMS):
            mass = self._fit_at(hospital_sds, group_sds).mass
            hospital_sds = _around(hospital_sds, mass.sum(axis=1))
            group_sds = _around(group_sds, mass.sum(axis=0))
        mass = self._fit_at(hospital_sds, group_sds).mass
        self.spreads = [
            Distribution(hospital_sds, mass.sum(axis=1)),
            Distribution(group_sds, mass.sum(axis=0)),
        ]
        hospital_count, group_count = self._members.shape
        self.counts = [hospital_count - group_count + 1, group_count]
        self._hospital_sds = hospital_sds[::_STRIDE]
        self._group_sds = group_sds[::_STRIDE]
        self._fit = self._fit_at(self._hospital_sds, self._group_sds)
        self._mass = mass[::_STRIDE, ::_STRIDE].ravel()

    @property
    def identified(self) -> list[bool]:
        """Whether hospitals and groups are enough to tell their spread; else the prior says it."""
        return [count >= LEAST_IDENTIFIED for count in self.counts]

    def of_hospital(self, number: int) -> Distribution:
        """Return the effect of a hospital: its own estimate, drawn towards its group's centre.

            E = E c_j + r_k (u_k - E c_j)
            var = r_k V_k + (1 - r_k)^2 var c_j
            r_k = tau_h^2 / (tau_h^2 + V_k)

        Args:
            number: k, 0 .. K - 1.

        Returns:
            Its posterior.
        """
        u = self.estimates[number]
        v = self.variances[number]
        between = np.square(self._hospital_sds)
        share = (between / (between + v))[:, None]
        centre, centre_variance = self._centre(int(self._groups[number]))
        means = centre + share * (u - centre)
        variances = share * v + np.square(1 - share) * centre_variance
        return self._mixed(means, variances)

    def of_new(self, group: int | None = None) -> Distribution:
        """Return the effect of a hospital that nobody has seen.

        Args:
            group: Its group, or None for a new group as well.

        Returns:
            Its posterior.
        """
        centre, centre_variance = self._centre(group)
        between_groups = (group is None) * np.square(self._group_sds)
        variances = centre_variance + np.square(self._hospital_sds)[:, None] + between_groups
        return self._mixed(centre, variances)

    def of_any(self) -> Distribution:
        """Return the effect of a hospital whose group nobody says.

        It is each group's as often as of the K that trained, and of a new one once in K + 1; groups
        enter as normals.
        """
        parts = [*(self.of_new(group) for group in range(self.counts[1])), self.of_new()]
        return mixed(
            weights=np.array([*self._members.sum(axis=0), 1.0]),
            means=np.array([part.mean for part in parts]),
            variances=np.square([part.sd for part in parts]),
        )

    def _mixed(self, means: Floats, variances: Floats) -> Distribution:
        return mixed(weights=self._mass, means=means.ravel(), variances=variances.ravel())

    def _centre(self, group: int | None) -> tuple[Floats, Floats]:
        """Return mean and variance of a group's centre c_j, or of m, on the grid, (a, b)."""
        fit = self._fit
        variance = 1 / fit.weights.sum(axis=2)
        if group is None:
            return fit.mean, variance
        share = fit.shrinkage[:, :, group]
        centre = fit.mean + share * (fit.centres[:, None, group] - fit.mean)
        # tau_c^2 / (1 + tau_c^2 A_j) is tau_c^2 (1 - B_j).
        own_variance = np.square(self._group_sds) * (1 - share)
        return centre, own_variance + np.square(1 - share) * variance

    def _fit_at(self, hospital_sds: Floats, group_sds: Floats) -> _Fit:
        """Fit at every point of a grid."""
        u = self.estimates
        precision = 1 / (np.square(hospital_sds)[:, None] + self.variances)  # (a, K)
        total = precision @ self._members  # A_j, (a, J)
        centres = (precision * u) @ self._members / total
        within = (precision * np.square(u - centres[:, self._groups])).sum(axis=1)
        scaled = np.square(group_sds)[None, :, None] * total[:, None, :]  # tau_c^2 A_j, (a, b, J)
        weights = total[:, None, :] / (1 + scaled)
        weight = weights.sum(axis=2)
        mean = (weights * centres[:, None, :]).sum(axis=2) / weight
        between = (weights * np.square(centres[:, None, :] - mean[:, :, None])).sum(axis=2)
        minus_two_logs = (
            (within - np.log(precision).sum(axis=1))[:, None]
            + np.log1p(scaled).sum(axis=2)
            + between
            + np.log(weight)
        )
        mass = np.exp((minus_two_logs.min() - minus_two_logs) / 2)
        # The trapezoid rule.
        mass[[0, -1]] /= 2
        mass[:, [0, -1]] /= 2
        return _Fit(
            centres=centres,
            weights=weights,
            shrinkage=scaled / (1 + scaled),
            mean=mean,
            mass=np.asarray(mass / mass.sum()),
        )


def _around(values: Floats, weights: Floats) -> Floats:
    """Return as many values where the weights lie."""
    inside = np.flatnonzero(weights > np.exp(-_FALL) * weights.max())
    first = max(inside[0] - 1, 0)
    last = min(inside[-1] + 1, len(values) - 1)
    return np.linspace(values[first], values[last], len(values))
