"""A history as the few kinds of step that its privacy loss depends on."""

import math
from dataclasses import dataclass

import numpy as np

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.events import History

# More kinds of step than this share noise levels, rounded down: an upper bound, at most 1 % apart in noise over four
# decades of it.
MOST_LEVELS = 1000
# Between these the square of a noise multiplier stays inside float64. More noise is counted as this much.
LEAST_NOISE, MOST_NOISE = 1e-150, 1e100


@dataclass(frozen=True)
class Level:
    """`steps` steps of the Poisson-subsampled Gaussian mechanism with one noise multiplier and sampling rate."""

    noise_multiplier: float
    sampling_rate: float
    steps: int


def has_noise(history: History) -> bool:
    """Say whether every step that cost anything had noise, more than 1e-150: less is none in float64."""
    return all(event.is_free or event.noise_multiplier > LEAST_NOISE for event in history)


def levels_of(history: History) -> tuple[Level, ...]:
    """Join equal steps, and all steps without subsampling into one Gaussian release, which composes exactly.

        q = 1:  N(0, sigma_1^2), ..., N(0, sigma_T^2) together cost one release with 1/sigma^2 = sum 1/sigma_t^2

    Sorted, so that histories that differ only in order or grouping give the same levels.

    Args:
        history: what was done, with noise in every step (see `has_noise`).

    Returns:
        Levels with distinct (noise_multiplier, sampling_rate), at most `MOST_LEVELS` per sampling rate.

    Source:
        Dong, Roth and Su (2022), corollary 3.3, for the joining of Gaussian releases.
    """
    steps: dict[tuple[float, float], int] = {}
    for event in history:
        if not event.is_free:
            key = (event.sampling_rate, min(event.noise_multiplier, MOST_NOISE))
            steps[key] = steps.get(key, 0) + event.steps
    levels = []
    for rate in sorted({q for q, _ in steps}):
        of_rate = {sigma: count for (q, sigma), count in sorted(steps.items()) if q == rate}
        if rate == 1:
            precision = math.fsum(count / sigma**2 for sigma, count in of_rate.items())
            levels.append(Level(1 / math.sqrt(precision), 1.0, 1))
            continue
        if len(of_rate) > MOST_LEVELS:
            of_rate = _rounded_down(of_rate)
        levels.extend(Level(sigma, rate, count) for sigma, count in of_rate.items())
    return tuple(levels)


def without_subsampling(levels: tuple[Level, ...], adjacency: Adjacency) -> float:
    """Return the mu of the same steps if every unit took part in each: subsampling only lowers the cost.

    Args:
        levels: what was done.
        adjacency: which data sets count as neighbours.

    Returns:
        mu of Gaussian differential privacy, an upper bound for the levels.
    """
    shift = 2.0 if adjacency == "replace_one" else 1.0
    return shift * math.sqrt(math.fsum(level.steps / level.noise_multiplier**2 for level in levels))


def chance_of_use(levels: tuple[Level, ...]) -> float:
    """Return 1 - prod (1 - q_t), the chance that a unit joins any step: no delta above it needs an epsilon."""
    if any(level.sampling_rate == 1 for level in levels):
        return 1.0
    return -math.expm1(math.fsum(level.steps * math.log1p(-level.sampling_rate) for level in levels))


def _rounded_down(steps: dict[float, int]) -> dict[float, int]:
    edges = np.geomspace(min(steps), max(steps), MOST_LEVELS)
    # The first edge must not exceed the smallest noise by a rounding error.
    edges[0] = min(steps)
    rounded: dict[float, int] = {}
    below = edges[np.searchsorted(edges, list(steps), side="right") - 1]
    for edge, count in zip(below.tolist(), steps.values(), strict=True):
        rounded[edge] = rounded.get(edge, 0) + count
    return rounded
