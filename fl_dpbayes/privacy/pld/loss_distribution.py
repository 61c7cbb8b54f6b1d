"""Epsilon of a history by its privacy-loss distribution, bounded in docs/proofs/privacy-loss-distribution.md."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, rfft

from fl_dpbayes.config import Adjacency
from fl_dpbayes.files import Kept
from fl_dpbayes.privacy.events import (
    LEAST_NOISE,
    MOST_LEVELS,
    MOST_NOISE,
    GaussianEvent,
    History,
    has_noise,
    levels_of,
    slice_history,
)
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.pld.grid import ABOVE, Grid, LossMass, discretise

# A plan of no more levels, whose noise falls, is composed anew at each reply: that takes
# milliseconds.
MOST_COMPOSED_ANEW = 16
_ACCOUNTS = Kept(most_bytes=2**28)
# Of the terms of a sum, so that their product with exp stays inside float64.
LARGEST_EXPONENT, PIECES = 500.0, 8
# In a spectrum of numbers up to 1, whose errors of 1e-16 each are counted.
NEGLIGIBLE = 1e-200


def pld_epsilon(
    history: History, delta: float, adjacency: Adjacency = "add_or_remove_one"
) -> float:
    """Return epsilon at delta: never below the true value, and mostly hardly above it.

    The excess is mostly 1e-5 of epsilon (or of 0.1), 4e-4 at most in 459 random plans with sampling
    rates and deltas from 1e-3 and 1e-8 on. Where few steps at smaller rates make large losses rare,
    the bound on rounding weighs most, and it can be a multiple of epsilon. It is exact (1e-12)
    where every sampling rate is 1, infinite where a step had no noise. Raises ValueError if delta
    lies outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: it must lie above 0 and below 1")
    if not has_noise(history):
        return math.inf
    levels = levels_of(history)
    if _chance_of_use(levels) <= delta:
        return 0.0
    unsampled = gdp_epsilon(_mu_without_subsampling(levels, adjacency), delta)
    if _in_closed_form(levels, adjacency):
        return unsampled
    return min(unsampled, _subsampled(levels, delta, adjacency))


# A site and its server ask for the same in one process, and so do sites of equal noise.
@lru_cache(maxsize=256)
def _subsampled(levels: History, delta: float, adjacency: Adjacency) -> float:
    grid, directions = composed(levels, adjacency, delta)
    return max(direction.epsilon(delta, grid.spacing) for direction in directions)


def prefix_epsilon(
    plan: History, steps: int, delta: float, adjacency: Adjacency = "add_or_remove_one"
) -> float:
    """Return an upper bound of the epsilon of a plan's first steps, as `pld_epsilon` is.

    Where noise rises or stays it was at most 1e-3 above that bound in 400 schedules; where noise
    falls it is looser, most where little was spent. A plan of many levels, or whose noise never
    falls, is composed once in a process, on one grid, and extended as more of its steps are asked
    for.
    """
    asked = plan, delta, adjacency
    return _ACCOUNTS.get(asked, lambda: _PrefixAccount(*asked), lambda made: made.size).epsilon(
        steps
    )


class _PrefixAccount:
    """What the first steps of a plan cost, on the grid that is fine enough for all of it."""

    def __init__(self, plan: History, delta: float, adjacency: Adjacency) -> None:
        levels, noise = (
            levels_of(plan) if has_noise(plan) else (),
            [event.noise_multiplier for event in plan],
        )
        self._plan, self._delta, self._adjacency, self._known = (
            plan,
            delta,
            adjacency,
            dict[int, float](),
        )
        self._grid, self.size = None, 100 * len(plan)
        usual = all(
            not event.is_free and LEAST_NOISE <= event.noise_multiplier <= MOST_NOISE
            for event in plan
        )
        many = usual and (len(levels) > MOST_COMPOSED_ANEW or noise == sorted(noise))
        if many and len(set(noise)) <= MOST_LEVELS and not _in_closed_form(levels, adjacency):
            self._grid = Grid.of(levels, adjacency, delta)
            # Replaced as a whole: another thread finds the old one or the new one.
            self._reached = 0, _nothing_composed(self._grid, adjacency)
            self._last = dict[GaussianEvent, list[Direction]]()
            self.size += 32 * self._grid.size + 200 * len(plan)

    def epsilon(self, steps: int) -> float:
        if steps not in self._known:
            self._known[steps] = self._epsilon(steps)
        return self._known[steps]

    def _epsilon(self, steps: int) -> float:
        prefix, grid = slice_history(self._plan, 0, steps), self._grid
        if grid is None or _chance_of_use(prefix) <= self._delta:
            return pld_epsilon(prefix, self._delta, self._adjacency)
        ends = [0, *accumulate(event.steps for event in self._plan)]
        whole = bisect_right(ends, steps) - 1
        events, directions = self._reached
        if whole < events:
            events, directions = 0, _nothing_composed(grid, self._adjacency)
        for event in self._plan[events:whole]:
            directions = _then(directions, self._step(event, grid), event.steps)
        # Whole events alone are kept, so that what steps cost does not depend on which ones were
        # asked for before.
        self._reached = whole, directions
        if steps > ends[whole]:
            directions = _then(directions, self._step(self._plan[whole], grid), steps - ends[whole])
        found = max(direction.epsilon(self._delta, grid.spacing) for direction in directions)
        return min(
            gdp_epsilon(_mu_without_subsampling(prefix, self._adjacency), self._delta), found
        )

    def _step(self, event: GaussianEvent, grid: Grid) -> list["Direction"]:
        losses = self._last.get(event) or _of_step(event, grid, self._adjacency)
        self._last = {event: losses}
        return losses


def composition_work(history: History, delta: float, adjacency: Adjacency) -> int:
    """Count grid points that `pld_epsilon` transforms (10^7 a second): kinds of step times size, 0 in closed form."""
    levels = levels_of(history) if has_noise(history) else ()
    return (
        0
        if _in_closed_form(levels, adjacency)
        else len(levels) * Grid.of(levels, adjacency, delta).size
    )


def composed(levels: History, adjacency: Adjacency, delta: float) -> tuple[Grid, list["Direction"]]:
    """Compose at least one level on a grid chosen for delta, in the directions (remove, add) or (replace,)."""
    grid = Grid.of(levels, adjacency, delta)
    directions = _nothing_composed(grid, adjacency)
    for level in levels:
        directions = _then(directions, _of_step(level, grid, adjacency), level.steps)
    return grid, directions


def _nothing_composed(grid: Grid, adjacency: Adjacency) -> list["Direction"]:
    empty = Direction(grid.order, np.ones(grid.size // 2 + 1, dtype=np.complex128), grid.size)
    return [empty] if adjacency == "replace_one" else [empty, empty]


def _of_step(level: GaussianEvent, grid: Grid, adjacency: Adjacency) -> list["Direction"]:
    return [
        Direction.of_step(loss, grid)
        for loss in discretise(level, adjacency, grid.spacing, grid.reach)
    ]


def _then(directions: list["Direction"], step: list["Direction"], steps: int) -> list["Direction"]:
    return [direction.then(one, steps) for direction, one in zip(directions, step, strict=True)]


@dataclass(frozen=True, eq=False)
class Direction:
    """The composed privacy loss of `steps` steps in one direction, as the transform of its tilted masses.

    `order`: lambda. `spectrum`: transform of the normalised tilted masses, (size // 2 + 1,), size
    that of the window. `cumulant`: K = log of the mass before normalisation. `infinite`: mass at an
    infinite loss.
    """

    order: float
    spectrum: npt.NDArray[np.complex128]
    size: int
    cumulant: float = 0.0
    infinite: float = 0.0
    steps: int = 0

    @classmethod
    def of_step(cls, loss: LossMass, grid: Grid) -> "Direction":
        """Take one step with the given discrete loss."""
        index = np.arange(loss.first, loss.first + loss.mass.size)
        with np.errstate(divide="ignore", under="ignore", invalid="ignore"):
            exponent = np.log(loss.mass) + grid.order * grid.spacing * index
            largest = exponent.max()
            tilted = np.exp(exponent - largest)
            total = tilted.sum()
            wrapped = np.bincount(index % grid.size, weights=tilted / total, minlength=grid.size)
        return cls(
            grid.order, rfft(wrapped), grid.size, float(largest) + math.log(total), loss.infinite, 1
        )

    def then(self, step: "Direction", steps: int) -> "Direction":
        """Compose `steps` more steps, each like the given one."""
        with np.errstate(under="ignore"):
            spectrum = self.spectrum * _power(step.spectrum, steps)
        # Numbers below the normal range make the transform back ten times slower.
        parts = spectrum.view(np.float64)
        parts[np.abs(parts) < NEGLIGIBLE] = 0.0
        cumulant, infinite = (
            self.cumulant + steps * step.cumulant,
            self.infinite + steps * step.infinite,
        )
        return Direction(self.order, spectrum, self.size, cumulant, infinite, self.steps + steps)

    def epsilon(self, delta: float, spacing: float) -> float:
        """Return the smallest epsilon in the window whose delta, errors included, is at most delta.

        Else infinity.
        """
        end = math.ceil((self.cumulant - math.log(delta) + ABOVE) / self.order / spacing)
        # From the window's upper end down, in pieces, to where delta is reached.
        falling = np.roll(irfft(self.spectrum, self.size), -end)[::-1]
        piece, rounding = self.size // PIECES, self._rounding()
        certain = math.exp(self.cumulant - self.order * spacing * end) + self.infinite
        above = decayed = after = 0.0
        for top in range(end - 1, end - 1 - self.size, -piece):
            part = falling[end - 1 - top : end - 1 - top + piece]
            chernoff = np.exp(
                self.cumulant - self.order * spacing * np.arange(top, top - len(part), -1)
            )
            masses = chernoff * np.maximum(part, 0.0)
            sums = above + np.cumsum(masses)
            # delta_m = sum_{k > m} p_k (1 - exp(e_m - e_k)) obeys delta_m = (1 - g) sum_{k > m} p_k
            # + g delta_{m+1}, whose solution is a sum of what is not negative, so that nothing
            # cancels.
            sampled = _decayed(-math.expm1(-spacing) * (sums - masses), decayed, spacing)
            deltas = sampled + rounding * chernoff + certain
            m = int(np.searchsorted(deltas, delta, side="right"))
            if m < len(part):
                if top - m == end - 1:
                    return math.inf
                # Between grid points delta is linear in exp(epsilon).
                share = (deltas[m] - delta) / (deltas[m] - (deltas[m - 1] if m else after))
                with np.errstate(divide="ignore"):
                    beyond = np.logaddexp(np.log1p(-share), np.log(share) + spacing)
                return max(0.0, (top - m) * spacing + float(beyond))
            above, decayed, after = float(sums[-1]), float(sampled[-1]), float(deltas[-1])
        return max(0.0, (end - self.size) * spacing)

    def _rounding(self) -> float:
        # A share of exp(K - lambda epsilon): docs/proofs/privacy-loss-distribution.md, "Rounding".
        unit = np.finfo(np.float64).eps / 2
        g = unit * (8 * math.log2(self.size) + 128)
        return g * (
            self.steps * 2 * (2 + 2 / math.pi * math.log(self.size))
            + 2 * float(np.abs(self.spectrum).sum())
        )


def _power(base: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    # NumPy's power of complex numbers is ten times slower than the products.
    if exponent < 2:
        return base if exponent else np.ones_like(base)
    half = _power(base, exponent // 2)
    return half * half * base if exponent % 2 else half * half


def _decayed(
    terms: npt.NDArray[np.float64], before: float, spacing: float
) -> npt.NDArray[np.float64]:
    """Return y_i = x_i + exp(-spacing) y_{i - 1} of terms x_0, x_1, ... >= 0, where y_{-1} is given."""
    if len(terms) * spacing > LARGEST_EXPONENT:
        # Its package takes a third of a second to import.
        from scipy.signal import lfilter

        decay = math.exp(-spacing)
        return lfilter([1.0], [1.0, -decay], terms, zi=[decay * before])[0]
    rise = np.exp(spacing * np.arange(1, len(terms) + 1))
    return (before + np.cumsum(terms * rise)) / rise


def _mu_without_subsampling(levels: History, adjacency: Adjacency) -> float:
    """Return mu of Gaussian differential privacy if every unit took part in each step: subsampling only lowers it."""
    shift = 2.0 if adjacency == "replace_one" else 1.0
    return shift * math.sqrt(math.fsum(level.steps / level.noise_multiplier**2 for level in levels))


def _in_closed_form(levels: History, adjacency: Adjacency) -> bool:
    return (
        all(level.sampling_rate == 1 for level in levels)
        or _mu_without_subsampling(levels, adjacency) > 1e6
    )


def _chance_of_use(levels: History) -> float:
    """Return 1 - prod (1 - q_t), the chance that a unit joins any step: no delta above it needs an epsilon."""
    if any(level.sampling_rate == 1 for level in levels):
        return 1.0
    return -math.expm1(
        math.fsum(level.steps * math.log1p(-level.sampling_rate) for level in levels)
    )
