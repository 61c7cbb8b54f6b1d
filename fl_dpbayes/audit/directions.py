"""Directions along which an auditor looks at noise: sums that a model's numbers have, and random ones."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Layout = Mapping[str, npt.NDArray[np.int64]]

# Of the rows of a tensor and of its columns, and of the random directions of each scale.
MOST_SUMS, RANDOM = 40, 12
# Numbers so far apart, and less, count as neighbours.
NEAREST = 32


def named_directions(columns: Layout, size: int) -> dict[str, Array]:
    """Return the sum of all numbers, of those of each tensor, row and column, their alternating sum, and differences.

    `columns`: tensor -> where its numbers lie among the d = `size`, in its own shape. Returns name
    -> (d,).
    """
    numbers = np.arange(size)
    directions = {
        "the sum of all": np.ones(size),
        "the alternating sum": np.where(numbers % 2 == 0, 1.0, -1.0),
    }
    tensors = {name: _on(places.ravel(), size) for name, places in columns.items()}
    if len(tensors) > 1:
        directions |= {f"the sum of {name}": vector for name, vector in tensors.items()}
    names = list(tensors)
    for first, second in pairwise(names):
        apart = tensors[first] / tensors[first].sum() - tensors[second] / tensors[second].sum()
        directions[f"{first} against {second}"] = apart
    for name, places in columns.items():
        directions |= dict(_sums(name, places, size))
    return directions


def random_directions(size: int, generator: np.random.Generator) -> dict[str, Array]:
    """Draw directions of random signs on 2, 4, 16, ... and of all numbers, and normal ones.

    Name -> (size,).
    """
    directions: dict[str, Array] = {}
    scales = sorted(
        {min(size, 4**power) for power in range(1, math.ceil(math.log(size, 4)) + 1)}
        | {min(size, 2)}
    )
    for scale in scales:
        for number in range(RANDOM):
            chosen = generator.permutation(size)[:scale]
            vector = np.zeros(size)
            vector[chosen] = generator.choice([-1.0, 1.0], scale)
            directions[f"random direction {number + 1} on {scale} numbers"] = vector
    for number in range(RANDOM):
        directions[f"random direction {number + 1}"] = generator.standard_normal(size)
    return directions


def restrictions(name: str, vector: Array, layout: Layout) -> dict[str, Array]:
    """Return a direction and its parts in each tensor and row, where they are not 0.

    Name -> (d,).
    """
    parts = {name: vector}
    for tensor, places in layout.items():
        parts[f"{name} in {tensor}"] = _part(vector, places.ravel())
        if places.ndim > 1:
            for number, row in enumerate(places.reshape(len(places), -1)[:MOST_SUMS]):
                parts[f"{name} in row {number + 1} of {tensor}"] = _part(vector, row)
    return parts


def natural_lags(columns: Layout, size: int) -> list[int]:
    """Return how far neighbours, numbers of neighbouring rows, and those of tensors lie apart, below half of d."""
    lags = {*range(1, NEAREST + 1), *(2**power for power in range(5, 40) if 2**power < size)}
    for places in columns.values():
        lags.add(places.size)
        lags |= {math.prod(places.shape[axis:]) for axis in range(1, places.ndim)}
    return sorted(lag for lag in lags if 2 * lag <= size)


def _part(vector: Array, places: npt.NDArray[np.int64]) -> Array:
    part = np.zeros(len(vector))
    part[places] = vector[places]
    return part


def _on(places: npt.NDArray[np.int64], size: int) -> Array:
    vector = np.zeros(size)
    vector[places] = 1.0
    return vector


def _sums(name: str, places: npt.NDArray[np.int64], size: int) -> Iterator[tuple[str, Array]]:
    if places.ndim < 2:
        return
    matrix = places.reshape(len(places), -1)
    for number in range(min(MOST_SUMS, len(matrix))):
        yield f"row {number + 1} of {name}", _on(matrix[number], size)
    for number in range(min(MOST_SUMS, matrix.shape[1])):
        yield f"column {number + 1} of {name}", _on(matrix[:, number], size)
