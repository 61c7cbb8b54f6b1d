"""Epsilon of a composed history from its privacy-loss distribution: an upper bound, with its errors counted in.

Each kind of step is put on one grid by connect the dots (`pld_discretise`), tilted by exp(lambda loss) so that losses
near epsilon become typical, transformed once, raised to its number of steps, multiplied, and transformed back. What the
bound consists of:

- discretisation: the grid distribution dominates the true one, and domination survives composition;
- truncation: mass cut from a step's upper tail counts as an infinite loss (a union bound over the steps);
- wrapping: losses beyond the window of the cyclic transform count in full, P(L >= top) <= exp(K - lambda top);
- rounding: a forward error bound of the transforms, exp(K - lambda epsilon) times the bound below, is added to delta.

Sources: Koskela, Jalko and Honkela (2020) for the transform; Zhu, Dong and Wang (2022), theorem 10, for domination
under composition; Canonne, Kamath and Steinke (2020) for the tail bound; Higham (2002), theorem 24.2, for the rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.pld.direction import Direction
from fl_dpbayes.privacy.pld.discretise import discretise
from fl_dpbayes.privacy.pld.grid import Grid
from fl_dpbayes.privacy.pld.levels import Level, chance_of_use, has_noise, levels_of, without_subsampling

# Once a composition is extended its grid is chosen for this many times its steps, and kept while it serves.
GROWTH = 1.5


def pld_epsilon(history: History, delta: float, adjacency: Adjacency = "add_or_remove_one") -> float:
    """Return epsilon at delta: never below the true value, and hardly above it.

    The excess is at most some 1e-4 of epsilon (or of 0.1), and up to 2e-3 of it for delta below 1e-8 where a few steps
    at a small sampling rate make large losses rare: the bound on rounding weighs most there.

    Args:
        history: what was done.
        delta: in (0, 1).
        adjacency: which data sets count as neighbours.

    Returns:
        epsilon, 0 or more; 0 for a history without a step, infinite where a step had no noise. It is exact (1e-12)
        where every sampling rate is 1.
    """
    return PldComposition.of(history, delta, adjacency).epsilon(delta)


def composition_work(history: History, delta: float, adjacency: Adjacency = "add_or_remove_one") -> int:
    """Return how many grid points `pld_epsilon` would transform, kinds of step times size of the grid.

    Args:
        history: what was done.
        delta: in (0, 1).
        adjacency: which data sets count as neighbours.

    Returns:
        0 where a closed form is used; some 10^7 points take a second.
    """
    levels = levels_of(history) if has_noise(history) else ()
    return 0 if _in_closed_form(levels, adjacency) else len(levels) * Grid.of(levels, adjacency, delta).size


def _in_closed_form(levels: tuple[Level, ...], adjacency: Adjacency) -> bool:
    return all(level.sampling_rate == 1 for level in levels) or without_subsampling(levels, adjacency) > 1e6


@dataclass(frozen=True, eq=False)
class PldComposition:
    """A composed history that can be extended cheaply.

    Attributes:
        history: what was composed.
        adjacency: which data sets count as neighbours.
        delta: for which the grid was chosen; epsilon at another delta is an upper bound too, but a looser one.
        levels: its kinds of step.
        grid: on which it was composed.
        directions: composed losses; empty where a closed form is used (no subsampling, or no noise at all).
    """

    history: History
    adjacency: Adjacency
    delta: float
    levels: tuple[Level, ...]
    grid: Grid | None
    directions: tuple[Direction, ...]

    @classmethod
    def of(
        cls, history: History, delta: float, adjacency: Adjacency = "add_or_remove_one", growth: float = 1.0
    ) -> "PldComposition":
        """Compose a history on a grid chosen for one delta.

        Args:
            history: what was done.
            delta: in (0, 1).
            adjacency: which data sets count as neighbours.
            growth: the grid serves until the history has grown by this factor, 1 or more.

        Returns:
            The composition.

        Raises:
            ValueError: if delta lies outside (0, 1).
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta is {delta}: it must lie above 0 and below 1")
        history = tuple(history)
        levels = levels_of(history) if has_noise(history) else ()
        if _in_closed_form(levels, adjacency):
            return cls(history, adjacency, delta, levels, None, ())
        grid = Grid.of(
            tuple(replace(level, steps=math.ceil(growth * level.steps)) for level in levels), adjacency, delta
        )
        empty = Direction(grid.order, np.ones(grid.size // 2 + 1, dtype=np.complex128), grid.size)
        directions = (empty,) if adjacency == "replace_one" else (empty, empty)
        composition = cls(history, adjacency, delta, levels, grid, directions)
        return replace(composition, directions=composition._after(grid, levels))

    def extended(self, events: History) -> "PldComposition":
        """Compose more events, on the same grid while it holds them.

        Args:
            events: what is done next.

        Returns:
            A new composition; this one stays as it is.
        """
        history = self.history + tuple(events)
        added = levels_of(events) if has_noise(events) else ()
        if self.grid is not None and added and self.grid.admits(self.levels + added):
            directions = self._after(self.grid, added)
            if directions[0].cumulant <= self.grid.cumulant:
                return replace(self, history=history, levels=self.levels + added, directions=directions)
        return PldComposition.of(history, self.delta, self.adjacency, GROWTH)

    def epsilon(self, delta: float) -> float:
        """Return epsilon at delta, an upper bound.

        Args:
            delta: in (0, 1).

        Returns:
            epsilon, 0 or more, may be infinite.
        """
        if not has_noise(self.history):
            return math.inf
        if chance_of_use(self.levels) <= delta:
            return 0.0
        unsampled = gdp_epsilon(without_subsampling(self.levels, self.adjacency), delta)
        if self.grid is None:
            return unsampled
        spacing = self.grid.spacing
        return min(unsampled, max(direction.epsilon(delta, spacing) for direction in self.directions))

    def _after(self, grid: Grid, levels: Sequence[Level]) -> tuple[Direction, ...]:
        directions = self.directions
        for level in levels:
            losses = discretise(level, self.adjacency, grid.spacing, grid.reach)
            directions = tuple(
                direction.after(loss, level.steps, grid.spacing)
                for direction, loss in zip(directions, losses, strict=True)
            )
        return directions
