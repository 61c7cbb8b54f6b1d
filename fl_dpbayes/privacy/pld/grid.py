"""The grid on which losses are composed: fine enough for epsilon, long enough for what wraps around it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.fft import next_fast_len

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.pld.discretise import loss_span
from fl_dpbayes.privacy.pld.levels import Level
from fl_dpbayes.privacy.pld.tilt import best_tilt

# The grid is chosen so that discretisation adds about this share of epsilon.
RELATIVE_OVERSHOOT = 1e-5
# Below this epsilon the share of it is meant.
SMALL_EPSILON = 0.01
# Small grids cost nothing, and make up for an estimate of epsilon that is too high.
SMALLEST_GRID, LARGEST_GRID = 2**15, 2**21
# Grid points times kinds of step: bounds the time of a composition (a few seconds); beyond it the grid coarsens.
LARGEST_WORK = 2**27


@dataclass(frozen=True)
class Grid:
    """A cyclic grid of losses.

    Attributes:
        spacing: h.
        size: number of points.
        order: lambda of the tilt.
        reach: standard deviations of the noise beyond which a step's tails are cut.
        steps: for how many steps it was chosen.
        least_noise: the smallest noise multiplier of them.
        cumulant: K(lambda) of them.
    """

    spacing: float
    size: int
    order: float
    reach: float
    steps: int
    least_noise: float
    cumulant: float

    @classmethod
    def of(cls, levels: Sequence[Level], adjacency: Adjacency, delta: float) -> "Grid":
        """Choose a grid.

        A bin of width h adds h^2/6 to the variance of a loss, hence T lambda (lambda + 1) h^2 / 12 to K and
        T (lambda + 1) h^2 / 12 to epsilon. P(N(0, 1) > reach) <= exp(-reach^2 / 2) = delta / (1e6 T), so that what is
        cut costs 1e-6 delta.

        Args:
            levels: what is to be composed, at least one.
            adjacency: which data sets count as neighbours.
            delta: in (0, 1).

        Returns:
            The grid; where it would grow too large it is coarser, which loosens the bound and keeps it one.
        """
        steps = sum(level.steps for level in levels)
        reach = math.sqrt(2 * (math.log(1e6) + math.log(steps) - math.log(delta)))
        tilt = best_tilt(levels, adjacency, delta, reach)
        overshoot = RELATIVE_OVERSHOOT * max(tilt.epsilon, SMALL_EPSILON)
        wanted = min(math.sqrt(12 * overshoot / (steps * (tilt.order + 1))), tilt.width / SMALLEST_GRID)
        longest = max(loss_span(level, adjacency, reach) for level in levels)
        spacing = max(wanted, tilt.width / min(LARGEST_GRID, LARGEST_WORK // len(levels)), longest / LARGEST_GRID)
        size = next_fast_len(math.ceil(tilt.width / spacing), real=True)
        least_noise = min(level.noise_multiplier for level in levels)
        return cls(spacing, size, tilt.order, reach, steps, least_noise, tilt.cumulant)

    def admits(self, levels: Sequence[Level]) -> bool:
        """Say whether other levels fit the grid: no more steps, and hardly less noise, than it was made for."""
        steps = sum(level.steps for level in levels)
        return steps <= self.steps and all(level.noise_multiplier >= 0.8 * self.least_noise for level in levels)
