"""What an auditor asks of a matrix of noise, a row for each step or request."""

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
from fl_dpbayes.privacy.audit_statistics import Questions, variance_test
from fl_dpbayes.privacy.noise_statistics import excess_test

Array = npt.NDArray[np.float64]

AGAIN = "no number of noise comes again, in a step or in another"
EVERY_STEP = "noise has the accounted deviation in every step"
STEPS_ALIKE = "the deviation of noise is the same in all steps, whoever joins"


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
    deviation, offset = statistics.direction_tests(
        noise, all_directions, name, slack=dict.fromkeys(all_directions, slack)
    )
    means = noise.mean(axis=0)
    offsets = statistics.mean_tests(
        means, lambda place: f"{name}, mean of number {place + 1}", rows, slack=slack
    )
    excess = np.maximum(0.0, np.abs(means) - slack)
    distance, tails = statistics.law_tests(noise, name)
    return {
        "noise has the accounted deviation on the whole": [
            variance_test(float(row_squares.sum()), noise.size, name)
        ],
        "the means of noise at all places are no larger than chance": [
            excess_test(float(np.square(excess).sum()) * rows, size, name)
        ],
        "noise is normal": [distance],
        "noise is neither cut off nor of heavier tails": [tails],
        EVERY_STEP: [
            statistics.deviation_tests(row_squares, size, lambda step: f"{name}, step {step + 1}")
        ],
        STEPS_ALIKE: [statistics.spread_test(row_squares, size, name)],
        "noise has the accounted deviation at every place of the state": [
            statistics.deviation_tests(
                column_squares, rows, lambda place: f"{name}, number {place + 1}"
            )
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
            _distance_test(noise, layout, name)
        ],
        "no two steps, and no two places of the state, share noise": _pair_tests(
            noise, name, generator
        ),
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


def tested_layout(
    layout: Layout, tested: npt.NDArray[np.bool_]
) -> dict[str, npt.NDArray[np.int64]]:
    """Number the tested places anew.

    Args:
        layout: Tensor -> places of its numbers, in its own shape.
        tested: Which places are, shape (d,).

    Returns:
        Tensor -> its tested places among all that are; where some are not, in one dimension.
    """
    numbers = np.cumsum(tested) - 1
    new_layout = {}
    for name, places in layout.items():
        inside = tested[places]
        if inside.all():
            new_layout[name] = numbers[places]
        elif inside.any():
            new_layout[name] = numbers[places[inside]]
    return new_layout


def _distance_test(noise: Array, layout: Layout, name: str) -> statistics.Finding:
    """Pair numbers, and their sizes, at all natural distances in a step and between steps."""
    pairs = []
    size = noise.shape[1]
    compared = {"numbers": noise, "sizes of numbers": statistics.size_scores(noise)}
    for what, values in compared.items():
        for lag in natural_lags(layout, size):
            pairs += statistics.lagged(values, lag, what)
        for lag in natural_lags({}, len(values)):
            pairs += statistics.lagged(np.ascontiguousarray(values.T), lag, f"{what} of steps")
        if size > 1:
            pairs += statistics.mirrored(values, what)
    return statistics.correlation_test(pairs, name)


def _pair_tests(
    noise: Array, name: str, generator: np.random.Generator
) -> list[statistics.Finding]:
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
