"""Where the numbers of a model lie, and directions along which an auditor looks at their noise."""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.config import Scenario
from fl_dpbayes.models import model_shapes, vector_views

Array = npt.NDArray[np.float64]
Layout = Mapping[str, npt.NDArray[np.int64]]

# Of the rows of a tensor, and of its columns.
MOST_SUMS = 40
# Random directions of each scale.
RANDOM = 12
# Numbers so far apart, and less, count as neighbours.
NEAREST = 32


def state_size(scenario: Scenario) -> int:
    """Return the number d of the model's parameters.

    Args:
        scenario: Whose model it is.

    Returns:
        d > 0.
    """
    shapes = model_shapes(scenario.model, scenario.data.source.task)
    return sum(math.prod(shape) for shape in shapes.values())


def noise_layout(scenario: Scenario) -> dict[str, npt.NDArray[np.int64]]:
    """Return where the numbers of each tensor lie in what is read.

    Args:
        scenario: Whose model and sampler decide.

    Returns:
        Tensor -> places, in its own shape.
    """
    size = state_size(scenario)
    shapes = model_shapes(scenario.model, scenario.data.source.task)
    views = vector_views(torch.arange(size), shapes)
    layout = {name: view.numpy() for name, view in views.items()}
    if "spread" in scenario.sampler.position:
        layout |= {f"spread of {name}": places + size for name, places in layout.items()}
    return layout


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


def named_directions(layout: Layout, size: int) -> dict[str, Array]:
    """Return sums of all numbers, of each tensor, row and column, and differences of tensors.

    Args:
        layout: Tensor -> where its numbers lie, in its own shape.
        size: d, of all numbers.

    Returns:
        Name -> direction of shape (d,).
    """
    ones = np.ones(size)
    directions = {
        "the sum of all": ones,
        "the alternating sum": np.where(np.arange(size) % 2 == 0, 1.0, -1.0),
    }
    tensors = {name: _part(ones, places.ravel()) for name, places in layout.items()}
    if len(tensors) > 1:
        directions |= {f"the sum of {name}": vector for name, vector in tensors.items()}
    means = {name: vector / vector.sum() for name, vector in tensors.items()}
    for first, second in pairwise(tensors):
        directions[f"{first} against {second}"] = means[first] - means[second]
    for name, places in layout.items():
        for number, row in _rows(places):
            directions[f"row {number} of {name}"] = _part(ones, row)
        for number, column in _columns(places):
            directions[f"column {number} of {name}"] = _part(ones, column)
    return directions


def random_directions(size: int, generator: np.random.Generator) -> dict[str, Array]:
    """Draw directions of random signs on 2, 4, 16, ... and all numbers, and normal ones.

    Args:
        size: d, of all numbers.
        generator: Draws signs, places and normal numbers.

    Returns:
        Name -> direction of shape (d,); none where there is but one number.
    """
    directions: dict[str, Array] = {}
    if size < 2:
        return directions
    scales = {min(size, 2)}
    for power in range(1, math.ceil(math.log(size, 4)) + 1):
        scales.add(min(size, 4**power))
    for scale in sorted(scales):
        for number in range(RANDOM):
            places = generator.permutation(size)[:scale]
            vector = np.zeros(size)
            vector[places] = generator.choice([-1.0, 1.0], scale)
            directions[f"random direction {number + 1} on {scale} numbers"] = vector
    for number in range(RANDOM):
        directions[f"random direction {number + 1}"] = generator.standard_normal(size)
    return directions


def restrictions(name: str, vector: Array, layout: Layout) -> dict[str, Array]:
    """Return a direction and its parts in each tensor and row.

    Args:
        name: Of the direction.
        vector: The direction, shape (d,).
        layout: Tensor -> where its numbers lie, in its own shape.

    Returns:
        Name -> direction of shape (d,), 0 elsewhere.
    """
    parts = {name: vector}
    for tensor, places in layout.items():
        parts[f"{name} in {tensor}"] = _part(vector, places.ravel())
        for number, row in _rows(places):
            parts[f"{name} in row {number} of {tensor}"] = _part(vector, row)
    return parts


def natural_lags(layout: Layout, size: int) -> list[int]:
    """Return distances of neighbours, of neighbouring rows and of tensors, up to half of d.

    Args:
        layout: Tensor -> where its numbers lie, in its own shape.
        size: d, of all numbers.

    Returns:
        Distances in numbers, increasing.
    """
    lags = set(range(1, NEAREST + 1))
    lags |= {2**power for power in range(5, 40)}
    for places in layout.values():
        lags.add(places.size)
        lags |= {math.prod(places.shape[axis:]) for axis in range(1, places.ndim)}
    return sorted(lag for lag in lags if 2 * lag <= size)


def _part(vector: Array, places: npt.NDArray[np.int64]) -> Array:
    part = np.zeros(len(vector))
    part[places] = vector[places]
    return part


def _rows(places: npt.NDArray[np.int64]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Number the first rows of a tensor, from 1; a vector has none."""
    if places.ndim < 2:
        return []
    return list(enumerate(places.reshape(len(places), -1)[:MOST_SUMS], start=1))


def _columns(places: npt.NDArray[np.int64]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Number the first columns of a tensor, its first axis against all others."""
    return _rows(places.reshape(len(places), -1).T) if places.ndim > 1 else []
