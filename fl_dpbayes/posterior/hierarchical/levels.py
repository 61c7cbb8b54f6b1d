"""The posterior over hospitals given noisy estimates of their effects: one level, or hospitals within groups.

    u_k = theta_k + N(0, V_k),   theta_k = c_j + N(0, tau_h^2),   c_j = m + N(0, tau_c^2)

with flat m and both standard deviations uniform on [0, `largest_sd`], mixed over a grid. One level is the same with all
hospitals in one group and tau_c = 0. Source: Gelman et al., Bayesian Data Analysis, section 5.4.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture

Floats = npt.NDArray[np.float64]
# A grid step is at most a tenth of a posterior standard deviation; beyond so much less log density a range ends.
_PER_SD, _FALL = 10.0, 16.0
_POINTS, _MOST_POINTS, _ZOOMS = 97, 769, 12
# Mixtures are smooth: every fourth point of the grid of two levels gives them to four digits.
_STRIDE = 4
# With a prior uniform on [0, inf) the posterior of the spread over K hospitals falls as tau^-(K - 1).
LEAST_IDENTIFIED = 3


@dataclass(frozen=True)
class Effects:
    """Estimates u_k of K hospitals' effects with their variances V_k > 0, and each one's group 0 .. J - 1; (K,)."""

    estimates: Floats
    variances: Floats
    groups: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """The posterior of a standard deviation between `count` hospitals or groups, on a grid: (G,), of mass 1."""

    values: Floats
    weights: Floats
    count: int

    @property
    def identified(self) -> bool:
        """Whether there are enough of them to tell; else it is the prior, or falls too slowly to be more."""
        return self.count >= LEAST_IDENTIFIED

    def quantile(self, share: float) -> float:
        """Return the quantile at a share in (0, 1)."""
        return float(np.interp(share, np.cumsum(self.weights) - self.weights / 2, self.values))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval that leaves equal shares on both sides."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)


@dataclass(frozen=True)
class _Sums:
    """At every point (tau_h, tau_c) of a grid: ubar_j (a, J), o_j (a, b, J), m (a, b), B_j (a, b, J), log L (a, b)."""

    centres: Floats
    weights: Floats
    mean: Floats
    kept: Floats
    log_likelihood: Floats


class HospitalPosterior:
    """The posterior of every hospital's effect, of a new one's, and of the spread between them."""

    def __init__(self, effects: Effects, *, two_levels: bool, largest_sd: float) -> None:
        """Fit the levels to the effects of K >= 1 hospitals; without `two_levels` groups are not looked at."""
        groups = effects.groups if two_levels else np.zeros(len(effects.groups), dtype=np.int64)
        self.effects = Effects(effects.estimates, effects.variances, groups)
        self.two_levels, self.largest_sd = two_levels, largest_sd
        self._members = np.eye(groups.max() + 1)[groups]
        self._grid, self._mass = self._refined([largest_sd, largest_sd if two_levels else 0.0])
        among, (own, above) = self._members.shape[1], self._grid
        within = len(groups) - (among - 1 if two_levels else 0)
        self.between_hospitals = Spread(own, self._mass.sum(axis=1), within)
        self.between_groups = Spread(above, self._mass.sum(axis=0), among)

    def of_hospital(self, number: int) -> NormalMixture:
        """Return the effect of hospital `number`, 0 .. K - 1: its own estimate, drawn towards its group's centre.

        E = E c_j + r_k (u_k - E c_j),  var = r_k V_k + (1 - r_k)^2 var c_j,  r_k = tau_h^2 / (tau_h^2 + V_k).
        """
        u, v, own = self.effects.estimates[number], self.effects.variances[number], np.square(self._coarse[0])
        kept = (own / (own + v))[:, None]
        centre, spread = self._centre(int(self.effects.groups[number]))
        return self._mixture(centre + kept * (u - centre), kept * v + np.square(1 - kept) * spread)

    def of_new(self, group: int | None = None) -> NormalMixture:
        """Return the effect of a hospital that nobody has seen, of a group or (None) of a new group as well."""
        centre, spread = self._centre(group)
        own, above = map(np.square, self._coarse)
        return self._mixture(centre, spread + own[:, None] + (above if group is None else 0.0))

    @property
    def _coarse(self) -> list[Floats]:
        return [values[:: _STRIDE if self.two_levels else 1] for values in self._grid]

    @cached_property
    def _sums(self) -> _Sums:
        return self._sums_at(*self._coarse)

    def _centre(self, group: int | None) -> tuple[Floats, Floats]:
        """Return mean and variance of a group's centre c_j, or of m, at every point of the grid, (a, b)."""
        sums = self._sums
        spread = 1 / sums.weights.sum(axis=2)
        if group is None:
            return sums.mean, spread
        kept = sums.kept[:, :, group]
        own = np.square(self._coarse[1]) * (1 - kept)
        return sums.mean + kept * (sums.centres[:, None, group] - sums.mean), own + np.square(1 - kept) * spread

    def _mixture(self, means: Floats, variances: Floats) -> NormalMixture:
        step = _STRIDE if self.two_levels else 1
        return NormalMixture(self._mass[::step, ::step].ravel(), means.ravel(), variances.ravel())

    def _sums_at(self, own: Floats, above: Floats) -> _Sums:
        u, v = self.effects.estimates, self.effects.variances
        precision = 1 / (np.square(own)[:, None] + v)  # (a, K)
        total = precision @ self._members  # A_j, (a, J)
        centres = (precision * u) @ self._members / total
        within = (precision * np.square(u - centres[:, self.effects.groups])).sum(axis=1)
        scaled = np.square(above)[None, :, None] * total[:, None, :]  # tau_c^2 A_j, (a, b, J)
        weights = total[:, None, :] / (1 + scaled)
        mean = (weights * centres[:, None, :]).sum(axis=2) / weights.sum(axis=2)
        minus_two = (
            (within - np.log(precision).sum(axis=1))[:, None] + np.log1p(scaled).sum(axis=2)
            + (weights * np.square(centres[:, None, :] - mean[:, :, None])).sum(axis=2)
            + np.log(weights.sum(axis=2))
        )  # fmt: skip
        return _Sums(centres, weights, mean, scaled / (1 + scaled), -minus_two / 2)

    def _refined(self, tops: list[float]) -> tuple[list[Floats], Floats]:
        """Narrow each range, from 0 on, to where the posterior lies, and its steps until they are small enough."""
        grid = [np.linspace(0, top, _POINTS if top else 1) for top in tops]
        for _ in range(_ZOOMS):
            mass = self._masses(grid)
            finer = [_finer(values, mass.sum(axis=1 - axis)) for axis, values in enumerate(grid)]
            if all(new is values for new, values in zip(finer, grid, strict=True)):
                break
            grid = finer
        return grid, self._masses(grid)

    def _masses(self, grid: list[Floats]) -> Floats:
        found = self._sums_at(*grid).log_likelihood
        mass = np.exp(found - found.max())
        for _values in grid:
            # The trapezoid rule.
            if len(mass) > 1:
                mass[[0, -1]] /= 2
            mass = mass.T
        return np.asarray(mass / mass.sum())


def _finer(values: Floats, weights: Floats) -> Floats:
    """Return a grid where the weights lie, with smaller steps; the same where they are small enough."""
    sd = np.sqrt(np.average(np.square(values - np.average(values, weights=weights)), weights=weights))
    if len(values) == 1 or values[1] - values[0] <= sd / _PER_SD:
        return values
    inside = np.flatnonzero(weights > np.exp(-_FALL) * weights.max())
    first, last = max(inside[0] - 1, 0), min(inside[-1] + 1, len(values) - 1)
    wide = last - first > 0.7 * (len(values) - 1)
    points = min(2 * len(values) - 1, _MOST_POINTS) if wide else len(values)
    return np.linspace(values[first], values[last], points)
