"""The posterior over hospitals given noisy estimates of their effects: one level, or hospitals within groups.

    u_k = theta_k + N(0, V_k),   theta_k = c_j + N(0, tau_h^2),   c_j = m + N(0, tau_c^2)

with flat m and both standard deviations uniform on [0, `largest_sd`], mixed over a grid. One level
is the same with all hospitals in one group and tau_c = 0. Source: Gelman et al., Bayesian Data
Analysis, section 5.4.
"""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats, mixed

# A grid goes to where the log density is so far below its peak, by at most a tenth of a standard
# deviation a step.
_POINTS, _FALL, _ZOOMS = {False: 513, True: 129}, 14.0, 6
# Mixtures are smooth: every eighth point of a grid gives them to .003.
_STRIDE = 8
# With a prior uniform on [0, inf) the posterior of the spread over K hospitals falls as tau^-(K -
# 1).
LEAST_IDENTIFIED = 3


class HospitalPosterior:
    """The posterior of every hospital's effect, of a new one's, and of the spread between them.

    `spreads`: the distributions of tau_h and tau_c; `counts`: of how many hospitals and groups that
    is all there is.
    """

    def __init__(
        self,
        estimates: Floats,
        variances: Floats,
        groups: npt.NDArray[np.int64] | None,
        largest_sd: float,
    ) -> None:
        """Fit the levels to u_k and V_k > 0 of K >= 1 hospitals in groups 0 ..

        J - 1 (None: one level); each (K,).
        """
        self.estimates, self.variances, self.groups, self.largest_sd = (
            estimates,
            variances,
            groups,
            largest_sd,
        )
        two_levels = groups is not None
        self._groups = np.zeros(len(estimates), np.int64) if groups is None else groups
        self._members = np.eye(self._groups.max() + 1)[self._groups]
        grid = [
            np.linspace(0, top, _POINTS[two_levels] if top else 1)
            for top in (largest_sd, largest_sd * two_levels)
        ]
        for _ in range(_ZOOMS):
            mass = self._fit(*grid)
            grid = [_around(values, mass.sum(axis=1 - axis)) for axis, values in enumerate(grid)]
        mass = self._fit(*grid)
        self.spreads = [
            Distribution(values, mass.sum(axis=1 - axis)) for axis, values in enumerate(grid)
        ]
        hospitals, among = self._members.shape
        self.counts = [hospitals - among + 1, among]
        self._own, self._above = (values[::_STRIDE] for values in grid)
        self._fit(self._own, self._above)
        self._mass = mass[::_STRIDE, ::_STRIDE].ravel()

    @property
    def identified(self) -> list[bool]:
        """Whether hospitals and groups are enough to tell their spread; else the prior says it."""
        return [count >= LEAST_IDENTIFIED for count in self.counts]

    def of_hospital(self, number: int) -> Distribution:
        """Return the effect of hospital `number`, 0 ..

        K - 1: its own estimate, drawn towards its group's centre.

        E = E c_j + r_k (u_k - E c_j),  var = r_k V_k + (1 - r_k)^2 var c_j,  r_k = tau_h^2 /
        (tau_h^2 + V_k).
        """
        u, v, own = self.estimates[number], self.variances[number], np.square(self._own)
        kept = (own / (own + v))[:, None]
        centre, spread = self._centre(int(self._groups[number]))
        return self._mixed(centre + kept * (u - centre), kept * v + np.square(1 - kept) * spread)

    def of_new(self, group: int | None = None) -> Distribution:
        """Return the effect of a hospital that nobody has seen, of a group or (None) of a new group as well."""
        centre, spread = self._centre(group)
        return self._mixed(
            centre,
            spread + np.square(self._own)[:, None] + (group is None) * np.square(self._above),
        )

    def of_any(self) -> Distribution:
        """Return the effect of a hospital whose group nobody says.

        It is each group's as often as of the K that trained, and of a new one once in K + 1; groups
        enter as normals.
        """
        parts = [*(self.of_new(group) for group in range(self.counts[1])), self.of_new()]
        shares = np.array([*self._members.sum(axis=0), 1.0])
        return mixed(
            shares, np.array([part.mean for part in parts]), np.square([part.sd for part in parts])
        )

    def _mixed(self, means: Floats, variances: Floats) -> Distribution:
        return mixed(self._mass, means.ravel(), variances.ravel())

    def _centre(self, group: int | None) -> tuple[Floats, Floats]:
        """Return mean and variance of a group's centre c_j, or of m, at every point of the grid, (a, b)."""
        spread = 1 / self._weights.sum(axis=2)
        if group is None:
            return self._mean, spread
        kept = self._kept[:, :, group]  # B_j; tau_c^2 / (1 + tau_c^2 A_j) is tau_c^2 (1 - B_j)
        centre = self._mean + kept * (self._centres[:, None, group] - self._mean)
        return centre, np.square(self._above) * (1 - kept) + np.square(1 - kept) * spread

    def _fit(self, own: Floats, above: Floats) -> Floats:
        """Solve for ubar_j (a, J), o_j, B_j (a, b, J), m (a, b) on a grid.

        Return its points' mass, (a, b).
        """
        u, v = self.estimates, self.variances
        precision = 1 / (np.square(own)[:, None] + v)  # (a, K)
        total = precision @ self._members  # A_j, (a, J)
        self._centres = (precision * u) @ self._members / total
        within = (precision * np.square(u - self._centres[:, self._groups])).sum(axis=1)
        scaled = np.square(above)[None, :, None] * total[:, None, :]  # tau_c^2 A_j, (a, b, J)
        self._weights, self._kept = total[:, None, :] / (1 + scaled), scaled / (1 + scaled)
        self._mean = (self._weights * self._centres[:, None, :]).sum(axis=2) / self._weights.sum(
            axis=2
        )
        minus_two = (
            (within - np.log(precision).sum(axis=1))[:, None]
            + np.log1p(scaled).sum(axis=2)
            + (self._weights * np.square(self._centres[:, None, :] - self._mean[:, :, None])).sum(
                axis=2
            )
            + np.log(self._weights.sum(axis=2))
        )
        mass = np.exp((minus_two.min() - minus_two) / 2)
        # The trapezoid rule.
        mass[[0, -1]] /= 2
        mass[:, [0, -1]] /= 2
        return np.asarray(mass / mass.sum())


def _around(values: Floats, weights: Floats) -> Floats:
    """Return as many values where the weights lie."""
    inside = np.flatnonzero(weights > np.exp(-_FALL) * weights.max())
    return np.linspace(
        values[max(inside[0] - 1, 0)], values[min(inside[-1] + 1, len(values) - 1)], len(values)
    )
