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
    """Ask for the law of noise, its deviation in every direction, and what its numbers have in common.

    `noise`: (T, d), N(0, 1) at a sound site. `layout`: tensor -> places of its numbers.
    `directions`: further ones to look along, name -> (d,); random ones are drawn by `generator`.
    `slack`: by how much a mean may be off.
    """
    rows, size = noise.shape
    of_rows = np.square(noise).sum(axis=1)
    of_columns = np.square(noise).sum(axis=0)
    along = named_directions(layout, size) | random_directions(size, generator)
    for name_of_vector, vector in directions.items():
        along |= restrictions(name_of_vector, vector, layout)
    deviation, offset = statistics.direction_tests(
        noise, along, name, slack=dict.fromkeys(along, slack)
    )
    offsets = statistics.mean_tests(
        noise.mean(axis=0), lambda place: f"{name}, mean of number {place + 1}", rows, slack=slack
    )
    distance, tails = statistics.law_tests(noise, name)
    means = float(np.square(np.maximum(0.0, np.abs(noise.mean(axis=0)) - slack)).sum()) * rows
    return {
        "noise has the accounted deviation on the whole": [
            variance_test(float(of_rows.sum()), noise.size, name)
        ],
        "the means of noise at all places are no larger than chance": [
            excess_test(means, size, name)
        ],
        "noise is normal": [distance],
        "noise is neither cut off nor of heavier tails": [tails],
        EVERY_STEP: [
            statistics.deviation_tests(of_rows, size, lambda step: f"{name}, step {step + 1}")
        ],
        STEPS_ALIKE: [statistics.spread_test(of_rows, size, name)],
        "noise has the accounted deviation at every place of the state": [
            statistics.deviation_tests(
                of_columns, rows, lambda place: f"{name}, number {place + 1}"
            )
        ],
        "the deviation of noise is the same at all places of the state": [
            statistics.spread_test(of_columns, rows, name)
        ],
        "noise has no offset, at any place and along any direction": [offset, offsets],
        "noise has the accounted deviation in every direction, known and random": [deviation],
        "noise is no larger or smaller along the leading directions of other noise": [
            statistics.leading_test(noise, name)
        ],
        "numbers of noise at no distance have anything in common": [
            _at_distances(noise, layout, name)
        ],
        "no two steps, and no two places of the state, share noise": _pairs(noise, name, generator),
    }


def again_question(
    noise: Array, resolution: Array, name: str, generator: np.random.Generator
) -> Questions:
    """Ask whether a number comes again.

    `resolution` of float32, (T, d), is dithered away by `generator`.
    """
    dithered = noise + resolution * generator.uniform(-0.5, 0.5, noise.shape)
    return {AGAIN: [statistics.collision_test(dithered, name)]}


def beside_questions(sums: Array, gradients: Array, name: str) -> Questions:
    """Ask for the noise beside the gradients of all units, whoever joined: squares of d - rank numbers.

    `sums`: over the noise's deviation, (T, d). `gradients`: of units, in any scale, (units, d).
    """
    _, singular, basis = np.linalg.svd(gradients, full_matrices=False)
    basis = basis[singular > 1e-6 * singular[0]]
    left = np.square(sums).sum(axis=1) - np.square(sums @ basis.T).sum(axis=1)
    degrees = sums.shape[1] - len(basis)
    if degrees < 1:
        return {}
    return {
        EVERY_STEP: [
            statistics.deviation_tests(left, degrees, lambda step: f"{name}, step {step + 1}")
        ],
        STEPS_ALIKE: [statistics.spread_test(left, degrees, name)],
    }


def tested_layout(
    layout: Layout, tested: npt.NDArray[np.bool_]
) -> dict[str, npt.NDArray[np.int64]]:
    """Number the tested places anew; a tensor that is not tested as a whole loses its shape."""
    numbers = np.cumsum(tested) - 1
    kept = {}
    for name, places in layout.items():
        inside = tested[places]
        if inside.all():
            kept[name] = numbers[places]
        elif inside.any():
            kept[name] = numbers[places[inside]]
    return kept


def _at_distances(noise: Array, layout: Layout, name: str) -> statistics.Finding:
    """Pair numbers, and how large they are, at all natural distances in a step and between steps."""
    pairs = []
    size = noise.shape[1]
    for values, said in ((noise, "numbers"), (statistics.size_scores(noise), "sizes of numbers")):
        for lag in natural_lags(layout, size):
            pairs += statistics.lagged(values, lag, said)
        for lag in natural_lags({}, len(values)):
            pairs += statistics.lagged(np.ascontiguousarray(values.T), lag, f"{said} of steps")
        if size > 1:
            pairs += statistics.mirrored(values, said)
    return statistics.correlation_test(pairs, name)


def _pairs(noise: Array, name: str, generator: np.random.Generator) -> list[statistics.Finding]:
    """Compare every two of at most MOST_VECTORS neighbouring steps, and places, from one that `generator` draws."""
    rows = _block(len(noise), generator)
    columns = _block(noise.shape[1], generator)
    findings = [statistics.pair_test(np.ascontiguousarray(noise[:, columns].T), f"{name}, numbers")]
    if noise.shape[1] > 2:
        findings.append(statistics.pair_test(noise[rows], f"{name}, steps"))
    return findings


def _block(size: int, generator: np.random.Generator) -> slice:
    first = int(generator.integers(max(1, size - statistics.MOST_VECTORS + 1)))
    return slice(first, first + statistics.MOST_VECTORS)
