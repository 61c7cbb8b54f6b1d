"""Epsilon of a composed history from its privacy-loss distribution: an upper bound, with its errors counted in.

docs/proofs/privacy-loss-distribution.md says what the bound consists of.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, rfft
from scipy.linalg.lapack import dtbtrs

from fl_dpbayes.config.files.kept import Kept
from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.events import MOST_LEVELS, History, has_noise, levels_of, slice_history
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.pld.grid import ABOVE, Grid, LossMass, discretise

# A plan of no more levels is composed anew at each reply: that takes milliseconds.
MOST_COMPOSED_ANEW = 16
_ACCOUNTS = Kept(most_bytes=2**28)


def pld_epsilon(history: History, delta: float, adjacency: Adjacency = "add_or_remove_one") -> float:
    """Return epsilon at delta: never below the true value, and hardly above it.

    The excess is at most some 1e-4 of epsilon (or of 0.1), and up to 2e-3 of it for delta below 1e-8 where a few steps
    at a small sampling rate make large losses rare: the bound on rounding weighs most there. It is exact (1e-12) where
    every sampling rate is 1, infinite where a step had no noise. Raises ValueError if delta lies outside (0, 1).
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


def prefix_epsilon(plan: History, steps: int, delta: float, adjacency: Adjacency = "add_or_remove_one") -> float:
    """Return an upper bound of the epsilon of a plan's first steps, as `pld_epsilon` is.

    Where noise rises or stays it was at most 1e-3 above that bound in 400 schedules; where noise falls it is looser,
    most where little was spent. A plan of many levels is composed once in a process, on one grid, and extended as more
    of its steps are asked for.
    """
    levels = levels_of(plan) if has_noise(plan) else ()
    prefix = slice_history(plan, 0, steps)
    many = len(levels) > MOST_COMPOSED_ANEW and len({event.noise_multiplier for event in plan}) <= MOST_LEVELS
    if not many or _in_closed_form(prefix, adjacency) or _chance_of_use(prefix) <= delta:
        return pld_epsilon(prefix, delta, adjacency)
    account = _ACCOUNTS.get(
        (plan, delta, adjacency), lambda: _PrefixAccount(plan, delta, adjacency), lambda made: made.size
    )
    unsampled = gdp_epsilon(_mu_without_subsampling(prefix, adjacency), delta)
    return min(unsampled, account.epsilon(steps))


class _PrefixAccount:
    """What the first steps of a plan cost, on the grid that is fine enough for all of it."""

    def __init__(self, plan: History, delta: float, adjacency: Adjacency) -> None:
        levels = levels_of(plan)
        self._plan, self._delta, self._adjacency = plan, delta, adjacency
        self._grid = Grid.of(levels, adjacency, delta)
        self._none = _nothing_composed(self._grid, adjacency)
        self._composed, self._directions = 0, self._none
        self._known: dict[int, float] = {}
        self.size = 32 * self._grid.size + 300 * len(plan)

    def epsilon(self, steps: int) -> float:
        if steps not in self._known:
            if steps < self._composed:
                self._composed, self._directions = 0, self._none
            new = slice_history(self._plan, self._composed, steps - self._composed)
            self._directions = _extended(self._directions, new, self._grid, self._adjacency)
            self._composed = steps
            found = max(direction.epsilon(self._delta, self._grid.spacing) for direction in self._directions)
            self._known[steps] = found
        return self._known[steps]


def composition_work(history: History, delta: float, adjacency: Adjacency) -> int:
    """Return how many grid points `pld_epsilon` transforms, kinds of step times size of the grid.

    0 where a closed form is used; some 10^7 points take a second.
    """
    levels = levels_of(history) if has_noise(history) else ()
    return 0 if _in_closed_form(levels, adjacency) else len(levels) * Grid.of(levels, adjacency, delta).size


def composed(levels: History, adjacency: Adjacency, delta: float) -> tuple[Grid, list["Direction"]]:
    """Compose at least one level on a grid chosen for delta, in the directions (remove, add) or (replace,)."""
    grid = Grid.of(levels, adjacency, delta)
    return grid, _extended(_nothing_composed(grid, adjacency), levels, grid, adjacency)


def _nothing_composed(grid: Grid, adjacency: Adjacency) -> list["Direction"]:
    empty = Direction(grid.order, np.ones(grid.size // 2 + 1, dtype=np.complex128), grid.size)
    return [empty] if adjacency == "replace_one" else [empty, empty]


def _extended(directions: list["Direction"], levels: History, grid: Grid, adjacency: Adjacency) -> list["Direction"]:
    for level in levels:
        pairs = zip(directions, discretise(level, adjacency, grid.spacing, grid.reach), strict=True)
        directions = [direction.after(loss, level.steps, grid.spacing) for direction, loss in pairs]
    return directions


@dataclass(frozen=True, eq=False)
class Direction:
    """The composed privacy loss of `steps` steps in one direction, as the transform of its tilted masses.

    `order`: lambda. `spectrum`: transform of the normalised tilted masses, (size // 2 + 1,), size that of the window.
    `cumulant`: K = log of the mass before normalisation. `infinite`: mass at an infinite loss.
    """

    order: float
    spectrum: npt.NDArray[np.complex128]
    size: int
    cumulant: float = 0.0
    infinite: float = 0.0
    steps: int = 0

    def after(self, loss: LossMass, steps: int, spacing: float) -> "Direction":
        """Compose `steps` more steps with the given discrete loss."""
        index = np.arange(loss.first, loss.first + loss.mass.size)
        with np.errstate(divide="ignore", under="ignore", invalid="ignore"):
            exponent = np.log(loss.mass) + self.order * spacing * index
            largest = exponent.max()
            tilted = np.exp(exponent - largest)
            total = tilted.sum()
            wrapped = np.bincount(index % self.size, weights=tilted / total, minlength=self.size)
            transform = rfft(wrapped)
            spectrum = self.spectrum * (transform if steps == 1 else transform**steps)
        cumulant = self.cumulant + steps * (float(largest) + math.log(total))
        infinite = self.infinite + steps * loss.infinite
        return Direction(self.order, spectrum, self.size, cumulant, infinite, self.steps + steps)

    def epsilon(self, delta: float, spacing: float) -> float:
        """Return the smallest epsilon in the window whose delta, errors included, is at most delta; else infinity."""
        order = self.order
        highest = (self.cumulant - math.log(delta) + ABOVE) / order
        first = math.ceil(highest / spacing) - self.size
        index = np.arange(first, first + self.size)
        tilted = np.maximum(irfft(self.spectrum, self.size)[index % self.size], 0.0)
        chernoff = np.exp(self.cumulant - order * spacing * index)
        above = np.cumsum((chernoff * tilted)[::-1])[::-1] - chernoff * tilted
        # delta_m = sum_{k > m} p_k (1 - exp(e_m - e_k)) obeys delta_m = (1 - g) sum_{k > m} p_k + g delta_{m+1}
        decay = math.exp(-spacing)
        bands = np.ones((2, self.size), order="F")
        bands[1] = -decay
        deltas = dtbtrs(bands, -math.expm1(-spacing) * above[::-1, None], uplo="L")[0][::-1, 0]
        beyond = math.exp(self.cumulant - order * spacing * (first + self.size))
        deltas = deltas + self._rounding() * chernoff + beyond + self.infinite
        enough = np.flatnonzero(deltas <= delta)
        if enough.size == 0:
            return math.inf
        m = int(enough[0])
        if m == 0:
            return max(0.0, first * spacing)
        # Between grid points delta is linear in exp(epsilon).
        share = (deltas[m - 1] - delta) / (deltas[m - 1] - deltas[m])
        with np.errstate(divide="ignore"):
            beyond_last = np.logaddexp(np.log1p(-share), np.log(share) + spacing)
        return max(0.0, (first + m - 1) * spacing + float(beyond_last))

    def _rounding(self) -> float:
        # A share of exp(K - lambda epsilon): docs/proofs/privacy-loss-distribution.md, "Rounding".
        unit = np.finfo(np.float64).eps / 2
        g = unit * (8 * math.log2(self.size) + 128)
        return g * (self.steps * 2 * (2 + 2 / math.pi * math.log(self.size)) + 2 * float(np.abs(self.spectrum).sum()))


def _mu_without_subsampling(levels: History, adjacency: Adjacency) -> float:
    """Return mu of Gaussian differential privacy if every unit took part in each step: subsampling only lowers it."""
    shift = 2.0 if adjacency == "replace_one" else 1.0
    return shift * math.sqrt(math.fsum(level.steps / level.noise_multiplier**2 for level in levels))


def _in_closed_form(levels: History, adjacency: Adjacency) -> bool:
    return all(level.sampling_rate == 1 for level in levels) or _mu_without_subsampling(levels, adjacency) > 1e6


def _chance_of_use(levels: History) -> float:
    """Return 1 - prod (1 - q_t), the chance that a unit joins any step: no delta above it needs an epsilon."""
    if any(level.sampling_rate == 1 for level in levels):
        return 1.0
    return -math.expm1(math.fsum(level.steps * math.log1p(-level.sampling_rate) for level in levels))
