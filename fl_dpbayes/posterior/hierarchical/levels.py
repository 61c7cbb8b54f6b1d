"""The distribution of hospitals' effects given noisy estimates of them.

    u_k = theta_k + N(0, V_k),   theta_k = c_j + N(0, tau_h^2),   c_j = m + N(0, tau_c^2)

One level of hospitals, or hospitals within groups. The spreads are drawn from their confidence
distribution: intervals are to hold at a given spread, not on average over a prior's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import gammainc, gammaincinv

from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats, mixed
from fl_dpbayes.posterior.hierarchical.effects import UNKNOWN, Effects

Groups = npt.NDArray[np.int64]
# Pairs of spreads, evenly spaced in their confidence distribution.
_PAIRS = 64
# Odd, and about 64 over the golden ratio.
_STRIDE = 39
# Spreads at which the sums of squares are taken: 0, and from a thousandth of the largest on.
_SPREADS = 161
_SMALLEST_SPREAD = 1e-3
# With a single degree of freedom a spread is as good as unknown.
_LEAST_DEGREES = 2
# Below this probability a chi-square variable is drawn by its tail's law.
_FAR_TAIL = 1e-12
# The variance of an effect where both spreads are 0, and nothing else is uncertain.
_SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True)
class _Moments:
    """Means and variances of effects, each at every pair of spreads."""

    means: Floats
    variances: Floats


class _Fit:
    """What estimates tell at pairs (tau_h, tau_c) drawn from their confidence distribution.

    The weighted sums of squares within and between groups are chi-square at the true spreads,

        Q_h(tau_h) = sum_k w_k (u_k - ubar_j)^2 ~ chi2(K - J),    w_k = 1 / (tau_h^2 + V_k)
        Q_c(tau_c; tau_h) = sum_j o_j (ubar_j - m)^2 ~ chi2(J - 1),   o_j = 1 / (tau_c^2 + 1 / A_j)

    independent, and fall in the spread: tau_h solves Q_h(tau_h) = q for q ~ chi2(K - J), given that
    q <= Q_h(0), as hospitals that differ not at all are none; so does tau_c. A_j is the sum of w_k
    in group j, ubar_j the w-mean. Where the spread is small beside the noise, intervals are wider
    than they need.

    Source: Viechtbauer, Statistics in Medicine 26 (2007), 37-52, for the pivot; Nagashima, Noma and
    Furukawa, Statistical Methods in Medical Research 28 (2019), 1689-1702, for prediction from it.

    Args:
        effects: u_k and V_k > 0, shape (K,) each.
        group_of: Each hospital's group, 0 .. J - 1, shape (K,).
        largest_sd: No spread is larger.
        nested: Whether groups differ by more than their hospitals.
    """

    def __init__(self, effects: Effects, group_of: Groups, largest_sd: float, nested: bool) -> None:
        self.effects = effects
        self._group_of = group_of
        hospitals = len(group_of)
        groups = int(group_of.max()) + 1
        # A full table of both would grow with the square of the hospitals.
        self._members = csr_array((np.ones(hospitals), (np.arange(hospitals), group_of)))
        # Each of the two runs through (i + 1/2) / 64, and together they fill the square evenly.
        numbers = np.arange(_PAIRS)
        shares = (np.column_stack([numbers, numbers * _STRIDE % _PAIRS]) + 0.5) / _PAIRS
        spreads = np.append(0.0, np.geomspace(_SMALLEST_SPREAD, 1.0, _SPREADS - 1)) * largest_sd
        self.hospital_sds = _drawn_spreads(
            squares=self._within(spreads),
            spreads=spreads,
            degrees=hospitals - groups,
            shares=shares[:, 0],
        )
        self._precisions, self._centres = self._groups_at(self.hospital_sds)
        self.group_sds = np.zeros(_PAIRS)
        if nested:
            for number in range(_PAIRS):
                self.group_sds[number] = _drawn_spreads(
                    squares=self._between(number, spreads),
                    spreads=spreads,
                    degrees=groups - 1,
                    shares=shares[number, 1],
                )
        scaled = np.square(self.group_sds)[:, None] * self._precisions
        self._shrinkage = scaled / (1 + scaled)
        weights = self._precisions / (1 + scaled)
        self._weight = weights.sum(axis=1)
        self._mean = (weights * self._centres).sum(axis=1) / self._weight

    def of_all(self) -> _Moments:
        """Return every hospital's, shape (pairs, K).

        E = E c_j + r_k (u_k - E c_j),  var = r_k V_k + (1 - r_k)^2 var c_j,  r_k = tau_h^2 w_k.
        """
        group_of = self._group_of
        estimates, variances = self.effects
        between = np.square(self.hospital_sds)[:, None]
        share = between / (between + variances)
        centre = self._centre_of_groups()
        centre_means = centre.means[:, group_of]
        return _Moments(
            means=centre_means + share * (estimates - centre_means),
            variances=share * variances + np.square(1 - share) * centre.variances[:, group_of],
        )

    def of_new(self) -> _Moments:
        """Return a new hospital's in every group and, last, in a new group: (pairs, J + 1)."""
        centre = self._centre_of_groups()
        new_group = 1 / self._weight + np.square(self.group_sds)
        variances = np.column_stack([centre.variances, new_group])
        return _Moments(
            means=np.column_stack([centre.means, self._mean]),
            variances=variances + np.square(self.hospital_sds)[:, None],
        )

    def _centre_of_groups(self) -> _Moments:
        """Return the groups' centres, (pairs, J): E c_j = m + B_j (ubar_j - m)."""
        share = self._shrinkage
        mean = self._mean[:, None]
        # tau_c^2 / (1 + tau_c^2 A_j) is tau_c^2 (1 - B_j).
        remaining = np.square(self.group_sds)[:, None] * (1 - share)
        return _Moments(
            means=mean + share * (self._centres - mean),
            variances=remaining + np.square(1 - share) / self._weight[:, None],
        )

    def _groups_at(self, hospital_sds: Floats) -> tuple[Floats, Floats]:
        """Return A_j and ubar_j at every tau_h, of shape (S,): (S, J) each."""
        estimates, variances = self.effects
        precision = 1 / (np.square(hospital_sds)[:, None] + variances)
        total = precision @ self._members
        return total, (precision * estimates) @ self._members / total

    def _within(self, hospital_sds: Floats) -> Floats:
        """Return Q_h at every tau_h."""
        estimates, variances = self.effects
        _, centres = self._groups_at(hospital_sds)
        off = estimates - centres[:, self._group_of]
        return np.asarray((np.square(off) / (np.square(hospital_sds)[:, None] + variances)).sum(1))

    def _between(self, pair: int, group_sds: Floats) -> Floats:
        """Return Q_c at every tau_c, at the tau_h of a pair."""
        precisions, centres = self._precisions[pair], self._centres[pair]
        weights = 1 / (np.square(group_sds)[:, None] + 1 / precisions)
        mean = (weights * centres).sum(axis=1) / weights.sum(axis=1)
        return np.asarray((weights * np.square(centres - mean[:, None])).sum(axis=1))


class HospitalPosterior:
    """The distribution of every hospital's effect, of a new one's, and of the spreads between them.

    m is flat. Spreads have their confidence distribution, cut at `largest_sd`, and are uniform up
    to it where fewer than three hospitals or groups tell them. One level is the same with all
    hospitals in one group and tau_c = 0.

    Args:
        fits: The estimates u_k and their variances V_k > 0 of K >= 1 hospitals; several of them,
            equally likely, where what they hang on is uncertain itself.
        groups: Each hospital's, 0 .. J - 1, shape (K,); None for one level.
        largest_sd: Above 0.

    Attributes:
        counts: Of how many hospitals and groups that is all there is.
        identified: Whether they are enough to tell their spread.
    """

    def __init__(self, fits: Sequence[Effects], groups: Groups | None, largest_sd: float) -> None:
        self._effects = tuple(fits)
        self._groups = groups
        self._largest_sd = largest_sd
        hospitals = len(self._effects[0].estimates)
        self._group_of = np.zeros(hospitals, np.int64) if groups is None else groups
        group_count = int(self._group_of.max()) + 1
        # The first hospital of a group tells its centre, and nothing of how hospitals differ.
        self.counts = [hospitals - group_count + 1, group_count]
        self.identified = [count - 1 >= _LEAST_DEGREES for count in self.counts]
        self._fits = [
            _Fit(
                effects=effects,
                group_of=self._group_of,
                largest_sd=largest_sd,
                nested=groups is not None,
            )
            for effects in self._effects
        ]

    @cached_property
    def spreads(self) -> list[Distribution]:
        """The distributions of tau_h and tau_c, in log odds."""
        hospital_sds = np.concatenate([fit.hospital_sds for fit in self._fits])
        group_sds = np.concatenate([fit.group_sds for fit in self._fits])
        return [
            Distribution(np.sort(values), np.full(len(values), 1 / len(values)))
            for values in (hospital_sds, group_sds)
        ]

    @property
    def is_left_out(self) -> npt.NDArray[np.bool_]:
        """Whether nothing is said of a hospital, as it told no level or one too far out: (K,)."""
        return np.any([effects.variances >= UNKNOWN for effects in self._effects], axis=0)

    @property
    def mean_effects(self) -> Floats:
        """The expected effect of every hospital, shape (K,)."""
        return np.asarray(self._of_all.means.mean(axis=0))

    def without(self, number: int) -> Distribution:
        """Return the effect of hospital `number` as all others foretell it."""
        fits = []
        for effects in self._effects:
            variances = effects.variances.copy()
            variances[number] = UNKNOWN
            fits.append(Effects(effects.estimates, variances))
        others = HospitalPosterior(fits, groups=self._groups, largest_sd=self._largest_sd)
        return others.of_hospital(number)

    def of_hospital(self, number: int) -> Distribution:
        """Return the effect of a hospital: its own estimate, drawn towards its group's centre.

        Args:
            number: k, 0 .. K - 1.

        Returns:
            Its distribution.
        """
        return _mixed(self._of_all.means[:, number], self._of_all.variances[:, number])

    def of_new(self, group: int | None = None) -> Distribution:
        """Return the effect of a hospital that nobody has seen.

        Args:
            group: Its group, or None for a new group as well.

        Returns:
            Its distribution.
        """
        column = self.counts[1] if group is None else group
        return _mixed(self._of_new.means[:, column], self._of_new.variances[:, column])

    def of_any(self) -> Distribution:
        """Return the effect of a hospital whose group nobody says.

        It is each group's as often as of the K that trained, and of a new one once in K + 1; groups
        enter as normals.
        """
        means = self._of_new.means
        return mixed(
            weights=np.append(np.bincount(self._group_of), 1.0),
            means=means.mean(axis=0),
            variances=self._of_new.variances.mean(axis=0) + means.var(axis=0),
        )

    @cached_property
    def _of_all(self) -> _Moments:
        return _stacked([fit.of_all() for fit in self._fits])

    @cached_property
    def _of_new(self) -> _Moments:
        return _stacked([fit.of_new() for fit in self._fits])


def _drawn_spreads(squares: Floats, spreads: Floats, degrees: int, shares: Floats) -> Floats:
    """Return spreads of their confidence distribution.

    Args:
        squares: Q at every spread, falling.
        spreads: From 0 to the largest.
        degrees: Of freedom of Q at the true spread.
        shares: Of the chi-square distribution below Q, each in (0, 1).

    Returns:
        The spread at which Q has each share, of the shape of `shares`.
    """
    if degrees < _LEAST_DEGREES:
        return (1 - shares) * spreads[-1]
    return np.asarray(np.interp(-_chi_square_below(squares[0], degrees, shares), -squares, spreads))


def _chi_square_below(largest: float, degrees: int, shares: Floats) -> Floats:
    """Return quantiles of a chi-square variable that is known to be at most `largest`."""
    below = gammainc(degrees / 2, largest / 2)
    if below < _FAR_TAIL:
        # So far in the tail its distribution function is a power of it.
        return np.asarray(largest * shares ** (2 / degrees))
    return np.asarray(2 * gammaincinv(degrees / 2, shares * below))


def _stacked(parts: Sequence[_Moments]) -> _Moments:
    return _Moments(
        means=np.concatenate([part.means for part in parts]),
        variances=np.concatenate([part.variances for part in parts]),
    )


def _mixed(means: Floats, variances: Floats) -> Distribution:
    return mixed(
        weights=np.ones(len(means)),
        means=means,
        variances=np.maximum(variances, _SMALLEST_VARIANCE),
    )
