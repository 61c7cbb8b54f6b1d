"""Epsilon of a history by its privacy-loss distribution.

docs/proofs/privacy-loss-distribution.md has the bound and its proof.
"""

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
LARGEST_EXPONENT = 500.0
# In so many pieces a window is searched.
PIECES = 8
# In a spectrum of numbers up to 1, whose errors of 1e-16 each are counted.
NEGLIGIBLE = 1e-200
# Beyond this mu subsampling no longer matters.
LARGEST_SUBSAMPLED_MU = 1e6


def pld_epsilon(
    history: History, delta: float, adjacency: Adjacency = "add_or_remove_one"
) -> float:
    """Return epsilon at delta: never below the true value, and mostly hardly above it.

    The excess is mostly 1e-5 of epsilon (or of 0.1), 4e-4 at most in 459 random plans with sampling
    rates and deltas from 1e-3 and 1e-8 on. Where few steps at smaller rates make large losses rare,
    the bound on rounding weighs most, and it can be a multiple of epsilon. It is exact (1e-12)
    where every sampling rate is 1.

    Args:
        history: What was done to the records.
        delta: In (0, 1).
        adjacency: What neighbouring data sets differ in.

    Returns:
        epsilon >= 0, infinite where a step had no noise.

    Raises:
        ValueError: If delta lies outside (0, 1).
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
    return min(unsampled, _subsampled_epsilon(levels, delta, adjacency))


# A site and its server ask for the same in one process, and so do sites of equal noise.
@lru_cache(maxsize=256)
def _subsampled_epsilon(levels: History, delta: float, adjacency: Adjacency) -> float:
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

    Args:
        plan: All of it.
        steps: How many of its first steps count.
        delta: In (0, 1).
        adjacency: What neighbouring data sets differ in.

    Returns:
        epsilon >= 0, which may be infinite.
    """
    account = _ACCOUNTS.get(
        key=(plan, delta, adjacency),
        load=lambda: _PrefixAccount(plan, delta, adjacency),
        size=lambda account: account.size,
    )
    return account.epsilon(steps)


@dataclass(frozen=True)
class _ComposedPrefix:
    """The first events of a plan, each whole, and what they compose to."""

    events: int
    directions: list["Direction"]


class _PrefixAccount:
    """What the first steps of a plan cost, on the grid that is fine enough for all of it.

    `size`: bytes that it takes in memory, about.
    """

    def __init__(self, plan: History, delta: float, adjacency: Adjacency) -> None:
        self._plan = plan
        self._delta = delta
        self._adjacency = adjacency
        self._epsilons: dict[int, float] = {}
        self._ends = [0, *accumulate(event.steps for event in plan)]
        self._grid = _prefix_grid(plan, delta, adjacency)
        self._last_step: dict[GaussianEvent, list[Direction]] = {}
        self.size = 100 * len(plan)
        if self._grid is not None:
            self._composed = _ComposedPrefix(0, _nothing_composed(self._grid, adjacency))
            self.size += 32 * self._grid.size + 200 * len(plan)

    def epsilon(self, steps: int) -> float:
        if steps not in self._epsilons:
            self._epsilons[steps] = self._compute_epsilon(steps)
        return self._epsilons[steps]

    def _compute_epsilon(self, steps: int) -> float:
        prefix = slice_history(self._plan, 0, steps)
        grid = self._grid
        if grid is None or _chance_of_use(prefix) <= self._delta:
            return pld_epsilon(prefix, self._delta, self._adjacency)
        directions = self._compose(steps, grid)
        subsampled = max(direction.epsilon(self._delta, grid.spacing) for direction in directions)
        unsampled = gdp_epsilon(_mu_without_subsampling(prefix, self._adjacency), self._delta)
        return min(unsampled, subsampled)

    def _compose(self, steps: int, grid: Grid) -> list["Direction"]:
        whole_events = bisect_right(self._ends, steps) - 1
        start = self._composed
        if whole_events < start.events:
            start = _ComposedPrefix(0, _nothing_composed(grid, self._adjacency))
        directions = start.directions
        for event in self._plan[start.events : whole_events]:
            directions = _then(directions, self._one_step(event, grid), event.steps)
        # Only whole events stay composed, so that what steps cost does not depend on which ones
        # were asked for before. Replaced at once: another thread finds the old one or the new one.
        self._composed = _ComposedPrefix(whole_events, directions)
        steps_beyond = steps - self._ends[whole_events]
        if steps_beyond > 0:
            event = self._plan[whole_events]
            directions = _then(directions, self._one_step(event, grid), steps_beyond)
        return directions

    def _one_step(self, event: GaussianEvent, grid: Grid) -> list["Direction"]:
        step = self._last_step.get(event)
        if step is None:
            step = _of_step(event, grid, self._adjacency)
        self._last_step = {event: step}
        return step


def _prefix_grid(plan: History, delta: float, adjacency: Adjacency) -> Grid | None:
    """Return a grid for all prefixes of a plan; None where each is composed anew."""
    for event in plan:
        if event.is_free or not LEAST_NOISE < event.noise_multiplier <= MOST_NOISE:
            return None
    levels = levels_of(plan)
    noise = [event.noise_multiplier for event in plan]
    noise_falls = noise != sorted(noise)
    if noise_falls and len(levels) <= MOST_COMPOSED_ANEW:
        return None
    if len(set(noise)) > MOST_LEVELS or _in_closed_form(levels, adjacency):
        return None
    return Grid.of(levels, adjacency, delta)


def composition_work(history: History, delta: float, adjacency: Adjacency) -> int:
    """Count the grid points that `pld_epsilon` transforms, ten million a second.

    Args:
        history: What was done to the records.
        delta: In (0, 1).
        adjacency: What neighbouring data sets differ in.

    Returns:
        Kinds of step times grid size, 0 in closed form.
    """
    levels = levels_of(history) if has_noise(history) else ()
    if _in_closed_form(levels, adjacency):
        return 0
    return len(levels) * Grid.of(levels, adjacency, delta).size


def composed(levels: History, adjacency: Adjacency, delta: float) -> tuple[Grid, list["Direction"]]:
    """Compose levels on a grid chosen for delta.

    Args:
        levels: At least one, see `levels_of`.
        adjacency: What neighbouring data sets differ in.
        delta: In (0, 1).

    Returns:
        The grid, and the composed losses in the directions (remove, add) or (replace,).
    """
    grid = Grid.of(levels, adjacency, delta)
    directions = _nothing_composed(grid, adjacency)
    for level in levels:
        directions = _then(directions, _of_step(level, grid, adjacency), level.steps)
    return grid, directions


def _nothing_composed(grid: Grid, adjacency: Adjacency) -> list["Direction"]:
    spectrum = np.ones(grid.size // 2 + 1, dtype=np.complex128)
    empty = Direction(order=grid.order, spectrum=spectrum, size=grid.size)
    return [empty] if adjacency == "replace_one" else [empty, empty]


def _of_step(level: GaussianEvent, grid: Grid, adjacency: Adjacency) -> list["Direction"]:
    losses = discretise(level, adjacency, spacing=grid.spacing, reach=grid.reach)
    return [Direction.of_step(loss, grid) for loss in losses]


def _then(
    directions: list["Direction"], step_directions: list["Direction"], steps: int
) -> list["Direction"]:
    return [
        direction.then(step, steps)
        for direction, step in zip(directions, step_directions, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Direction:
    """The composed privacy loss of some steps in one direction.

    It is held as the transform of its tilted masses.

    Attributes:
        order: lambda of the tilt.
        spectrum: Transform of the normalised tilted masses, shape (size // 2 + 1,).
        size: Of the window, in grid points.
        cumulant: K, the log of the mass before normalisation.
        infinite: Mass at an infinite loss.
        steps: Their number.
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
            order=grid.order,
            spectrum=rfft(wrapped),
            size=grid.size,
            cumulant=float(largest) + math.log(total),
            infinite=loss.infinite,
            steps=1,
        )

    def then(self, step: "Direction", steps: int) -> "Direction":
        """Compose `steps` more steps, each like the given one."""
        with np.errstate(under="ignore"):
            spectrum = self.spectrum * _power(step.spectrum, steps)
        # Numbers below the normal range make the transform back ten times slower.
        parts = spectrum.view(np.float64)
        parts[np.abs(parts) < NEGLIGIBLE] = 0.0
        return Direction(
            order=self.order,
            spectrum=spectrum,
            size=self.size,
            cumulant=self.cumulant + steps * step.cumulant,
            infinite=self.infinite + steps * step.infinite,
            steps=self.steps + steps,
        )

    def epsilon(self, delta: float, spacing: float) -> float:
        """Return the smallest epsilon in the window whose delta, errors included, is at most delta.

        Args:
            delta: In (0, 1).
            spacing: Of the grid.

        Returns:
            epsilon >= 0, infinite if the window holds none.
        """
        end = math.ceil((self.cumulant - math.log(delta) + ABOVE) / self.order / spacing)
        # From the window's upper end down, in pieces, to where delta is reached.
        falling = np.roll(irfft(self.spectrum, self.size), -end)[::-1]
        piece_size = self.size // PIECES
        rounding = self._rounding()
        certain = math.exp(self.cumulant - self.order * spacing * end) + self.infinite
        mass_above = 0.0
        sampled_above = 0.0
        delta_above = 0.0
        for top in range(end - 1, end - 1 - self.size, -piece_size):
            start = end - 1 - top
            piece = falling[start : start + piece_size]
            points = np.arange(top, top - len(piece), -1)
            chernoff = np.exp(self.cumulant - self.order * spacing * points)
            masses = chernoff * np.maximum(piece, 0.0)
            sums = mass_above + np.cumsum(masses)
            # delta_m = sum_{k > m} p_k (1 - exp(e_m - e_k)) obeys delta_m = (1 - g) sum_{k > m} p_k
            # + g delta_{m+1}, whose solution is a sum of what is not negative, so that nothing
            # cancels.
            sampled = _decayed(-math.expm1(-spacing) * (sums - masses), sampled_above, spacing)
            deltas = sampled + rounding * chernoff + certain
            m = int(np.searchsorted(deltas, delta, side="right"))
            if m < len(piece):
                point = top - m
                if point == end - 1:
                    return math.inf
                previous_delta = deltas[m - 1] if m else delta_above
                # Between grid points delta is linear in exp(epsilon).
                share = (deltas[m] - delta) / (deltas[m] - previous_delta)
                with np.errstate(divide="ignore"):
                    beyond = np.logaddexp(np.log1p(-share), np.log(share) + spacing)
                return max(0.0, point * spacing + float(beyond))
            mass_above = float(sums[-1])
            sampled_above = float(sampled[-1])
            delta_above = float(deltas[-1])
        return max(0.0, (end - self.size) * spacing)

    def _rounding(self) -> float:
        """Return what rounding can add to delta, as a share of exp(K - lambda epsilon).

        See "Rounding" in docs/proofs/privacy-loss-distribution.md.
        """
        unit = np.finfo(np.float64).eps / 2
        g = unit * (8 * math.log2(self.size) + 128)
        return g * (
            self.steps * 2 * (2 + 2 / math.pi * math.log(self.size))
            + 2 * float(np.abs(self.spectrum).sum())
        )


def _power(base: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    # NumPy's power of complex numbers is ten times slower than the products.
    if exponent == 0:
        return np.ones_like(base)
    if exponent == 1:
        return base
    half = _power(base, exponent // 2)
    return half * half * base if exponent % 2 else half * half


def _decayed(
    terms: npt.NDArray[np.float64], before: float, spacing: float
) -> npt.NDArray[np.float64]:
    """Return y_i = x_i + exp(-spacing) y_{i - 1} of terms x_i >= 0, with y_{-1} = before."""
    if len(terms) * spacing > LARGEST_EXPONENT:
        # Its package takes a third of a second to import.
        from scipy.signal import lfilter

        decay = math.exp(-spacing)
        return lfilter([1.0], [1.0, -decay], terms, zi=[decay * before])[0]
    rise = np.exp(spacing * np.arange(1, len(terms) + 1))
    return (before + np.cumsum(terms * rise)) / rise


def _mu_without_subsampling(levels: History, adjacency: Adjacency) -> float:
    """Return mu as if every unit took part in each step: subsampling only lowers it."""
    shift = 2.0 if adjacency == "replace_one" else 1.0
    return shift * math.sqrt(math.fsum(level.steps / level.noise_multiplier**2 for level in levels))


def _in_closed_form(levels: History, adjacency: Adjacency) -> bool:
    if all(level.sampling_rate == 1 for level in levels):
        return True
    return _mu_without_subsampling(levels, adjacency) > LARGEST_SUBSAMPLED_MU


def _chance_of_use(levels: History) -> float:
    """Return 1 - prod (1 - q_t), the chance that a unit joins any step.

    No delta above it needs an epsilon.
    """
    if any(level.sampling_rate == 1 for level in levels):
        return 1.0
    log_chances = (level.steps * math.log1p(-level.sampling_rate) for level in levels)
    return -math.expm1(math.fsum(log_chances))
