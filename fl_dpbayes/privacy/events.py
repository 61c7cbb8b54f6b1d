"""What was done to the records: the only thing that is ever turned into an epsilon."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt

# More kinds of step than this share noise levels, rounded down: an upper bound, at most 1 % apart
# in noise over four decades of it.
MOST_LEVELS = 1000
# Between these the square of a noise multiplier stays inside float64. More noise than the upper
# one counts as the upper one.
LEAST_NOISE = 1e-150
MOST_NOISE = 1e100


@dataclass(frozen=True)
class GaussianEvent:
    """Steps of the Poisson-subsampled Gaussian mechanism with equal noise.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum of clipped gradients, over the
            clip norm; >= 0 (0: no noise, epsilon is infinite).
        sampling_rate: Probability with which each privacy unit joins a batch, in [0, 1] (0:
            nothing was used).
        steps: Their number, 0 or more.

    Raises:
        ValueError: If a value lies outside its range or is not a number.
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


def steps_of(history: History) -> int:
    """Count the steps of a history."""
    return sum(event.steps for event in history)


def history_of_steps(noise_multipliers: Iterable[float], sampling_rate: float) -> History:
    """Turn steps at one sampling rate into events, joining neighbours of equal noise.

    Args:
        noise_multipliers: sigma_t >= 0 of every step, in their order, shape (T,).
        sampling_rate: Of all of them, in [0, 1].

    Returns:
        The events in the order of the steps.
    """
    return tuple(
        GaussianEvent(float(sigma), sampling_rate, len(list(steps)))
        for sigma, steps in groupby(noise_multipliers)
    )


def noise_of_steps(history: History) -> npt.NDArray[np.float64]:
    """Write a history's noise multipliers step by step, shape (T,)."""
    sigmas = [event.noise_multiplier for event in history]
    counts = [event.steps for event in history]
    return np.repeat(sigmas, counts).astype(float)


def joined(history: Iterable[GaussianEvent]) -> History:
    """Join neighbours of equal noise and sampling rate into one event."""
    groups = groupby(history, key=lambda event: (event.noise_multiplier, event.sampling_rate))
    return tuple(
        GaussianEvent(sigma, rate, sum(event.steps for event in events))
        for (sigma, rate), events in groups
    )


def slice_history(history: History, first_step: int, steps: int) -> History:
    """Cut `steps` steps out of a history, from `first_step` on."""
    ends = [0, *accumulate(event.steps for event in history)]
    end_step = first_step + steps
    first_event = bisect_right(ends, first_step) - 1
    end_event = min(bisect_left(ends, end_step), len(history))
    cut = []
    for position in range(first_event, end_event):
        event = history[position]
        inside = min(ends[position + 1], end_step) - max(ends[position], first_step)
        cut.append(event if inside == event.steps else replace(event, steps=inside))
    return tuple(cut)


def read_history(rows: Sequence[Sequence[float]]) -> History:
    """Read a history from rows of numbers.

    Args:
        rows: `[noise_multiplier, sampling_rate, steps]`, one for each event.

    Returns:
        The events in the order of the rows.

    Raises:
        ValueError: If the form or a value of a row is wrong.
    """
    events = []
    for position, row in enumerate(rows):
        if not isinstance(row, (list, tuple)) or len(row) != 3:
            raise ValueError(
                f"row {position} is {row!r}: expected [noise_multiplier, sampling_rate, steps]"
            )
        sigma, rate, steps = row
        if isinstance(steps, float) and steps.is_integer():
            steps = int(steps)
        # The event refuses what is still no whole number.
        events.append(GaussianEvent(float(sigma), float(rate), steps))  # type: ignore[arg-type]
    return tuple(events)


def write_history(history: History) -> list[list[float]]:
    """Write a history as rows `[noise_multiplier, sampling_rate, steps]`."""
    return [[event.noise_multiplier, event.sampling_rate, event.steps] for event in history]


def covers(stock: History, needed: History, tolerance: float = 0.0) -> bool:
    """Say whether each needed step has a partner of its own in a stock that is hardly noisier.

    Sampling rates are not looked at. The sets of partners are nested, so counting decides.

    Args:
        stock: Whose steps may be partners.
        needed: Whose steps need one.
        tolerance: By which fraction of its noise a partner may be noisier.

    Returns:
        Whether it does.
    """
    present = _rising_steps(stock)
    wanted = _rising_steps(needed)
    most_noise = wanted.noise_multipliers * (1 + tolerance)
    positions = np.searchsorted(present.noise_multipliers, most_noise, side="right")
    partners = np.concatenate([[0], present.counts])[positions]
    return bool((partners >= wanted.counts).all())


@dataclass(frozen=True)
class _RisingSteps:
    """Noise multipliers in rising order, and how many steps have each one or a smaller one."""

    noise_multipliers: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]


def _rising_steps(history: History) -> _RisingSteps:
    events = sorted(history, key=lambda event: event.noise_multiplier)
    return _RisingSteps(
        noise_multipliers=np.array([event.noise_multiplier for event in events]),
        counts=np.cumsum([event.steps for event in events], dtype=np.int64),
    )


def has_noise(history: History) -> bool:
    """Say whether every step that cost anything had noise above `LEAST_NOISE`.

    Noise of 1e-150 or less is none in float64.
    """
    return all(event.is_free or event.noise_multiplier > LEAST_NOISE for event in history)


def levels_of(history: History) -> History:
    """Join equal steps, and all steps without subsampling into one Gaussian release.

    The latter compose exactly:

        q = 1:  N(0, sigma_1^2), ..., N(0, sigma_T^2) together cost one release
                with 1/sigma^2 = sum 1/sigma_t^2

    Args:
        history: With noise in every step (see `has_noise`).

    Returns:
        Levels distinct in noise and rate, at most `MOST_LEVELS` for each rate. They are sorted, so
        histories that differ only in order or grouping give the same levels.

    Source:
        Dong, Roth and Su (2022), corollary 3.3.
    """
    steps_by_rate: dict[float, dict[float, int]] = defaultdict(Counter)
    for event in history:
        if not event.is_free:
            sigma = min(event.noise_multiplier, MOST_NOISE)
            steps_by_rate[event.sampling_rate][sigma] += event.steps
    levels = []
    for rate, counts in sorted(steps_by_rate.items()):
        steps_by_sigma = dict(sorted(counts.items()))
        if rate == 1:
            precision = math.fsum(steps / sigma**2 for sigma, steps in steps_by_sigma.items())
            levels.append(GaussianEvent(1 / math.sqrt(precision), 1.0, 1))
            continue
        if len(steps_by_sigma) > MOST_LEVELS:
            steps_by_sigma = _rounded_down(steps_by_sigma)
        levels.extend(GaussianEvent(sigma, rate, steps) for sigma, steps in steps_by_sigma.items())
    return tuple(levels)


def _rounded_down(steps_by_sigma: dict[float, int]) -> dict[float, int]:
    """Round noise down to `MOST_LEVELS` levels, evenly spread in its logarithm."""
    least = min(steps_by_sigma)
    edges = np.geomspace(least, max(steps_by_sigma), MOST_LEVELS)
    # The first edge must not exceed the smallest noise by a rounding error.
    edges[0] = least
    positions = np.searchsorted(edges, list(steps_by_sigma), side="right") - 1
    rounded: dict[float, int] = Counter()
    for edge, steps in zip(edges[positions].tolist(), steps_by_sigma.values(), strict=True):
        rounded[edge] += steps
    return rounded
