"""What was done to the records: the only thing that is ever turned into an epsilon."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class GaussianEvent:
    """Steps of the Poisson-subsampled Gaussian mechanism with equal noise.

    Attributes:
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients, over the clip norm; >= 0
            (0: no noise, epsilon is infinite).
        sampling_rate: probability with which each privacy unit joins a batch, in [0, 1] (0: nothing was used).
        steps: how many such steps, >= 0.

    Raises:
        ValueError: if a value lies outside its range or is not a number.
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
    """Turn per-step noise multipliers at one sampling rate into a history, joining equal neighbours.

    Args:
        noise_multipliers: sigma_t of each step in turn.
        sampling_rate: probability with which each unit joins a batch.

    Returns:
        Events in the order of the steps.
    """
    return tuple(
        GaussianEvent(float(sigma), sampling_rate, len(list(group))) for sigma, group in groupby(noise_multipliers)
    )


def joined(history: Iterable[GaussianEvent]) -> History:
    """Join neighbours of equal noise and sampling rate into one event."""
    kinds = groupby(history, key=lambda event: (event.noise_multiplier, event.sampling_rate))
    return tuple(GaussianEvent(*kind, sum(event.steps for event in group)) for kind, group in kinds)


def read_history(rows: Sequence[Sequence[float]]) -> History:
    """Read the history format `[[noise_multiplier, sampling_rate, steps], ...]`.

    Args:
        rows: parsed JSON.

    Returns:
        One event per row.

    Raises:
        ValueError: if a row has another form or a value outside its range.
    """
    events = []
    for position, row in enumerate(rows):
        if not isinstance(row, (list, tuple)) or len(row) != 3:
            raise ValueError(f"row {position} is {row!r}: expected [noise_multiplier, sampling_rate, steps]")
        sigma, rate, steps = row
        if isinstance(steps, float) and steps.is_integer():
            steps = int(steps)
        events.append(GaussianEvent(float(sigma), float(rate), steps))  # type: ignore[arg-type]
    return tuple(events)


def write_history(history: History) -> list[list[float]]:
    """Write a history as rows `[noise_multiplier, sampling_rate, steps]`."""
    return [[event.noise_multiplier, event.sampling_rate, event.steps] for event in history]
