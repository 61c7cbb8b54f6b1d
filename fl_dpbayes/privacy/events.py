"""What was done to the records: the only thing that is ever turned into an epsilon."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import numpy.typing as npt

# More kinds of step than this share noise levels, rounded down: an upper bound, at most 1 % apart
# in noise over four decades of it.
MOST_LEVELS = 1000
# Between these the square of a noise multiplier stays inside float64. More noise is counted as this
# much.
LEAST_NOISE, MOST_NOISE = 1e-150, 1e100


@dataclass(frozen=True)
class GaussianEvent:
    """Steps, 0 or more, of the Poisson-subsampled Gaussian mechanism with equal noise.

    `noise_multiplier`: standard deviation of the noise on the sum of clipped gradients, over the
    clip norm; >= 0 (0: no noise, epsilon is infinite). `sampling_rate`: probability with which each
    privacy unit joins a batch, in [0, 1] (0: nothing was used). Raises ValueError if a value lies
    outside its range or is not a number.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (self.noise_multiplier >= 0):
            raise ValueError(f"noise_multiplier is {self.noise_multiplier}: it must be 0 or more")
        if not 0 <= self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate is {self.sampling_rate}: it must lie in [0, 1]")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise ValueError(f"steps is {self.steps!r}: it must be a whole number, 0 or more")

    @property
    def is_free(self) -> bool:
        """Whether the event reveals nothing: no step, no record used, or infinite noise."""
        return self.steps == 0 or self.sampling_rate == 0 or math.isinf(self.noise_multiplier)


History = tuple[GaussianEvent, ...]


def history_of_steps(noise_multipliers: Iterable[float], sampling_rate: float) -> History:
    """Turn sigma_t of steps at one sampling rate into events in their order, joining equal neighbours."""
    groups = groupby(noise_multipliers)
    return tuple(
        GaussianEvent(float(sigma), sampling_rate, len(list(group))) for sigma, group in groups
    )


def noise_of_steps(history: History) -> npt.NDArray[np.float64]:
    """Write a history's noise multipliers step by step, shape (T,)."""
    return np.repeat(
        [event.noise_multiplier for event in history], [event.steps for event in history]
    ).astype(float)


def joined(history: Iterable[GaussianEvent]) -> History:
    """Join neighbours of equal noise and sampling rate into one event."""
    kinds = groupby(history, key=lambda event: (event.noise_multiplier, event.sampling_rate))
    return tuple(GaussianEvent(*kind, sum(event.steps for event in group)) for kind, group in kinds)


def slice_history(history: History, first_step: int, steps: int) -> History:
    """Cut `steps` steps out of a history, from `first_step` on."""
    ends, last = [0, *accumulate(event.steps for event in history)], first_step + steps
    chosen = range(bisect_right(ends, first_step) - 1, min(bisect_left(ends, last), len(history)))
    return tuple(
        history[each]
        if first_step <= ends[each] and ends[each + 1] <= last
        else replace(history[each], steps=min(ends[each + 1], last) - max(ends[each], first_step))
        for each in chosen
    )


def read_history(rows: Sequence[Sequence[float]]) -> History:
    """Read rows `[noise_multiplier, sampling_rate, steps]`, an event each.

    ValueError if a form or value is wrong.
    """
    events = []
    for position, row in enumerate(rows):
        if not isinstance(row, (list, tuple)) or len(row) != 3:
            raise ValueError(
                f"row {position} is {row!r}: expected [noise_multiplier, sampling_rate, steps]"
            )
        sigma, rate, steps = row
        whole: Any = int(steps) if isinstance(steps, float) and steps.is_integer() else steps
        events.append(GaussianEvent(float(sigma), float(rate), whole))
    return tuple(events)


def write_history(history: History) -> list[list[float]]:
    """Write a history as rows `[noise_multiplier, sampling_rate, steps]`."""
    return [[event.noise_multiplier, event.sampling_rate, event.steps] for event in history]


def has_noise(history: History) -> bool:
    """Say whether every step that cost anything had noise, more than 1e-150: less is none in float64."""
    return all(event.is_free or event.noise_multiplier > LEAST_NOISE for event in history)


def levels_of(history: History) -> History:
    """Join equal steps, and all steps without subsampling into one Gaussian release, which composes exactly.

        q = 1:  N(0, sigma_1^2), ..., N(0, sigma_T^2) together cost one release with 1/sigma^2 = sum 1/sigma_t^2

    Of a history with noise in every step (see `has_noise`). Sorted, so that histories that differ
    only in order or grouping give the same levels, distinct in noise and rate, at most
    `MOST_LEVELS` per rate. Source: Dong, Roth and Su (2022), corollary 3.3, for the joining of
    Gaussian releases.
    """
    steps: dict[tuple[float, float], int] = Counter()
    for event in history:
        if not event.is_free:
            steps[event.sampling_rate, min(event.noise_multiplier, MOST_NOISE)] += event.steps
    levels = []
    for rate in sorted({q for q, _ in steps}):
        of_rate = {sigma: count for (q, sigma), count in sorted(steps.items()) if q == rate}
        if rate == 1:
            precision = math.fsum(count / sigma**2 for sigma, count in of_rate.items())
            levels.append(GaussianEvent(1 / math.sqrt(precision), 1.0, 1))
            continue
        if len(of_rate) > MOST_LEVELS:
            of_rate = _rounded_down(of_rate)
        levels.extend(GaussianEvent(sigma, rate, count) for sigma, count in of_rate.items())
    return tuple(levels)


def _rounded_down(steps: dict[float, int]) -> dict[float, int]:
    edges = np.geomspace(min(steps), max(steps), MOST_LEVELS)
    # The first edge must not exceed the smallest noise by a rounding error.
    edges[0] = min(steps)
    rounded: dict[float, int] = Counter()
    below = edges[np.searchsorted(edges, list(steps), side="right") - 1]
    for edge, count in zip(below.tolist(), steps.values(), strict=True):
        rounded[edge] += count
    return rounded
