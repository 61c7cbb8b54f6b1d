"""What an auditor asks of noise: a matrix that has a row for each step, request or release."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit.directions import (
    Layout,
    named_directions,
    natural_lags,
    random_directions,
    restrictions,
)
from fl_dpbayes.privacy import noise_statistics as statistics
from fl_dpbayes.privacy.audit_statistics import Finding, Questions, correlation_tests, variance_test

Array = npt.NDArray[np.float64]

# Of a number whose rounding reaches this share of its noise, the rounding would be tested, not the
# noise.
LARGEST_ROUNDING = 0.01
AGAIN = "no number of noise comes again, in a step or in another"
EVERY_STEP = "noise has the accounted deviation in every step"
STEPS_ALIKE = "the deviation of noise is the same in all steps, whoever joins"


@dataclass(frozen=True)
class Release:
    """Noised numbers that a site let out.

    Attributes:
        sums: As they were released, of any shape.
        noise_std: Standard deviation of the noise on each, as the site accounts for it.
    """

    sums: Array
    noise_std: float


def noise_of(releases: Sequence[Release], exact: Array) -> Array:
    """Return the noise of releases, N(0, 1) at a sound site.

    Args:
        releases: Of equal shape.
        exact: What a sound site adds noise to.

    Returns:
        Shape (releases, d).
    """
    return np.stack([((one.sums - exact) / one.noise_std).ravel() for one in releases])


def mean_noise_std(noise_stds: Sequence[float]) -> float:
    """Return the standard deviation of the noise in the mean of releases.

    Args:
        noise_stds: Of each release.

    Returns:
        sqrt(sum s^2) / number.
    """
    return math.sqrt(sum(noise_std**2 for noise_std in noise_stds)) / len(noise_stds)


def noise_questions(
    noise: Array,
    layout: Layout,
    directions: dict[str, Array],
    name: str,
    generator: np.random.Generator,
    *,
    slack: float = 0.0,
) -> Questions:
    """Ask for the law of noise, its deviation in every direction, and what its numbers share.

    Args:
        noise: Shape (T, d), N(0, 1) at a sound site.
        layout: Tensor -> places of its numbers.
        directions: Further ones to look along, name -> shape (d,).
        name: Of where the noise is from.
        generator: Draws random directions, and blocks of steps and places.
        slack: By how much a mean may be off.

    Returns:
        Findings by question.
    """
    rows, size = noise.shape
    row_squares = np.square(noise).sum(axis=1)
    column_squares = np.square(noise).sum(axis=0)
    all_directions = named_directions(layout, size) | random_directions(size, generator)
    for direction_name, vector in directions.items():
        all_directions |= restrictions(direction_name, vector, layout)
    deviation, offset = statistics.direction_tests(noise, all_directions, name, slack=slack)
    means = noise.mean(axis=0)
    offsets = statistics.mean_tests(
        means, lambda place: f"{name}, mean of number {place + 1}", rows, slack=slack
    )
    excess = np.maximum(0.0, np.abs(means) - slack)
    return {
        "noise has the accounted deviation on the whole": [
            variance_test(float(row_squares.sum()), noise.size, name)
        ],
        "the means of noise at all places are no larger than chance": [
            statistics.excess_test(float(np.square(excess).sum()) * rows, size, name)
        ],
        **law_questions(noise, name),
        EVERY_STEP: [place_tests(noise.T, f"{name}, step")],
        STEPS_ALIKE: [statistics.spread_test(row_squares, size, name)],
        "noise has the accounted deviation at every place of the state": [
            place_tests(noise, f"{name}, number")
        ],
        "the deviation of noise is the same at all places of the state": [
            statistics.spread_test(column_squares, rows, name)
        ],
        "noise has no offset, at any place and along any direction": [offset, offsets],
        "noise has the accounted deviation in every direction, known and random": [deviation],
        "noise is no larger or smaller along the leading directions of other noise": [
            statistics.leading_test(noise, name)
        ],
        "numbers of noise at no distance have anything in common": [
            statistics.correlation_test(_distance_pairs(noise, layout), name)
        ],
        "no two steps, and no two places of the state, share noise": _pair_tests(
            noise, name, generator
        ),
    }


def law_questions(noise: Array, where: str) -> Questions:
    """Ask whether noise, N(0, 1) at a sound site, is normal to its tails.

    Args:
        noise: Of any shape.
        where: It is from, in words.

    Returns:
        A question on the law and one on its tails.
    """
    return {
        "noise is normal": [statistics.distance_test(noise, where)],
        "noise is neither cut off nor of heavier tails": [statistics.tail_test(noise, where)],
    }


def place_tests(noise: Array, place: str) -> Finding:
    """Test the deviation of noise at each place.

    Args:
        noise: N(0, 1) at a sound site, shape (rows, places).
        place: What a place is, in words.

    Returns:
        The joint finding.
    """
    squares = np.square(noise).sum(axis=0)
    return statistics.deviation_tests(squares, len(noise), lambda number: f"{place} {number + 1}")


def release_questions(
    noise: Mapping[str, Array],
    layout: Layout,
    generator: np.random.Generator,
    *,
    release: str,
    number: str,
    deviation: str = "noise has the accounted deviation",
) -> Questions:
    """Ask for the noise of releases: its deviation, its law, and what any two have in common.

    Args:
        noise: Kind of release -> N(0, 1) at a sound site, shape (releases, d); of each kind equally
            many.
        layout: Where the numbers of a release lie, of each kind.
        generator: Draws random directions.
        release: What a release is called.
        number: What one of its numbers is called.
        deviation: How the question of the deviation is put.

    Returns:
        Findings by question.
    """
    everything = np.concatenate([values.ravel() for values in noise.values()])
    side_by_side = np.concatenate(list(noise.values()), axis=1)
    deviations = []
    along_directions = []
    correlations = []
    for name, values in noise.items():
        size = values.shape[1]
        deviations.append(variance_test(float(np.square(values).sum()), values.size, name))
        directions = named_directions(layout, size) | random_directions(size, generator)
        along_directions += statistics.direction_tests(values, directions, name)
        rows = {f"{name} {row + 1}": vector for row, vector in enumerate(values)}
        correlations += correlation_tests(rows)
    return {
        deviation: deviations,
        **law_questions(everything, f"all {release}s"),
        "noise has the accounted deviation in every direction, and no offset": along_directions,
        f"no two {release}s share noise": correlations,
        f"noise has the accounted deviation in every {number}": [place_tests(side_by_side, number)],
        f"no two numbers of a {release} share noise": [
            statistics.pair_test(np.ascontiguousarray(side_by_side.T), f"{number}s")
        ],
    }


def again_question(
    noise: Array, resolution: Array, name: str, generator: np.random.Generator
) -> Questions:
    """Ask whether a number comes again.

    Args:
        noise: Shape (T, d).
        resolution: Distance of the numbers that float32 lets it take, shape (T, d).
        name: Of where the noise is from.
        generator: Dithers the resolution away.

    Returns:
        One question.
    """
    dithered = noise + resolution * generator.uniform(-0.5, 0.5, noise.shape)
    return {AGAIN: [statistics.collision_test(dithered, name)]}


def beside_questions(sums: Array, gradients: Array, name: str) -> Questions:
    """Ask for the noise beside the gradients of all units, whoever joined.

    Beside them lie d - rank(gradients) numbers of each step.

    Args:
        sums: Over the noise's deviation, shape (T, d).
        gradients: Of units, in any scale, shape (units, d).
        name: Of where the sums are from.

    Returns:
        Two questions on the deviation of each step; none where gradients span everything.
    """
    _, singular, basis = np.linalg.svd(gradients, full_matrices=False)
    basis = basis[singular > 1e-6 * singular[0]]
    squares = np.square(sums).sum(axis=1) - np.square(sums @ basis.T).sum(axis=1)
    degrees = sums.shape[1] - len(basis)
    if degrees < 1:
        return {}
    return {
        EVERY_STEP: [
            statistics.deviation_tests(squares, degrees, lambda step: f"{name}, step {step + 1}")
        ],
        STEPS_ALIKE: [statistics.spread_test(squares, degrees, name)],
    }


def _distance_pairs(noise: Array, layout: Layout) -> Iterator[statistics.VectorPair]:
    """Pair numbers, and their sizes, at all natural distances in a step and between steps."""
    size = noise.shape[1]
    compared = {"numbers": noise, "sizes of numbers": statistics.size_scores(noise)}
    for what, values in compared.items():
        for lag in natural_lags(layout, size):
            yield from statistics.lagged(values, lag, what)
        by_place = np.ascontiguousarray(values.T)
        for lag in natural_lags({}, len(values)):
            yield from statistics.lagged(by_place, lag, f"{what} of steps")
        if size > 1:
            yield from statistics.mirrored(values, what)


def _pair_tests(noise: Array, name: str, generator: np.random.Generator) -> list[Finding]:
    """Compare every two steps, and places, of a block of at most MOST_VECTORS of them."""
    rows = _block(len(noise), generator)
    columns = _block(noise.shape[1], generator)
    findings = [statistics.pair_test(np.ascontiguousarray(noise[:, columns].T), f"{name}, numbers")]
    if noise.shape[1] > 2:
        findings.append(statistics.pair_test(noise[rows], f"{name}, steps"))
    return findings


def _block(size: int, generator: np.random.Generator) -> slice:
    """Draw where a block of at most MOST_VECTORS begins."""
    first = int(generator.integers(max(1, size - statistics.MOST_VECTORS + 1)))
    return slice(first, first + statistics.MOST_VECTORS)
