"""Checks on made-up rows that NumPy computes each row of a piece by itself.

Its place and its neighbours must not matter.
"""

import logging
from collections.abc import Callable, Hashable
from functools import partial

import numpy as np
import numpy.typing as npt

RowFunction = Callable[..., npt.NDArray]
# Stand in the place of the rows that are not kept.
NEIGHBOURS = (0.0, np.nan, 1e30)
PERMUTATIONS = 4

logger = logging.getLogger("fl_dpbayes.site")
_checked: dict[Hashable, bool] = {}


def checked_piece(function: RowFunction, arrays: tuple[npt.NDArray, ...], rows: int) -> int:
    """Return how many rows a piece has.

    Tried once per process and function.

    Args:
        function: Arrays (P, ...) -> shape (P, ...), row by row.
        arrays: Those of the records, of which only shapes and types are read.
        rows: P, >= 1.

    Returns:
        `rows` where each stands alone, else 1.
    """
    forms = tuple((array.shape[1:], array.dtype.str) for array in arrays)
    key = (_name(function), forms, rows)
    if key not in _checked:
        _checked[key] = rows_stand_alone(function=function, arrays=arrays, rows=rows)
        if not _checked[key]:
            logger.warning(
                "rows of a piece depend on each other in NumPy: records are computed one by one"
            )
    return rows if _checked[key] else 1


def rows_stand_alone(function: RowFunction, arrays: tuple[npt.NDArray, ...], rows: int) -> bool:
    """Say whether made-up rows keep every bit, whatever their places and neighbours.

    They are moved, and half of them replaced by 0, NaN or 1e30.

    Args:
        function: As for `checked_piece`.
        arrays: As for `checked_piece`.
        rows: As for `checked_piece`.

    Returns:
        True if they do.
    """
    generator = np.random.default_rng(0)
    made_up = [_made_up(array, rows, generator) for array in arrays]
    with np.errstate(all="ignore"):
        expected = function(*(array.copy() for array in made_up))
        for _ in range(PERMUTATIONS):
            order = generator.permutation(rows)
            moved = [array[order] for array in made_up]
            if not _same_bits(function(*moved), expected[order]):
                return False
        for neighbour in NEIGHBOURS:
            half = np.sort(generator.choice(rows, max(1, rows // 2), replace=False))
            replaced = [_with_neighbours(array, half, neighbour) for array in made_up]
            if not _same_bits(function(*replaced)[half], expected[half]):
                return False
    return True


def _name(function: RowFunction) -> Hashable:
    while isinstance(function, partial):
        function = function.func
    return function.__module__, function.__qualname__


def _made_up(array: npt.NDArray, rows: int, generator: np.random.Generator) -> npt.NDArray:
    shape = (rows, *array.shape[1:])
    if not np.issubdtype(array.dtype, np.floating):
        return generator.integers(0, 2, shape).astype(array.dtype)
    values = generator.random(shape) + 1e-3
    if array.ndim > 1:
        # Rows that are probabilities, as most functions take.
        values = values / values.sum(axis=-1, keepdims=True)
    return values.astype(array.dtype)


def _with_neighbours(
    array: npt.NDArray, kept_rows: npt.NDArray[np.int64], neighbour: float
) -> npt.NDArray:
    floating = np.issubdtype(array.dtype, np.floating)
    replaced = np.full_like(array, neighbour if floating else 0)
    replaced[kept_rows] = array[kept_rows]
    return replaced


def _same_bits(first: npt.NDArray, second: npt.NDArray) -> bool:
    bits = f"u{first.dtype.itemsize}"
    return bool((first.view(bits) == second.view(bits)).all())
