"""Functions of rows, evaluated at one number of rows however many records there are.

What vectorised code computes for a row could differ in its last bits with the row's place among others, and the last
bit of a probability decides on which side of a bin's edge it lies (docs/sensitivity.md).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

ROWS = 1024


def in_fixed_pieces(function: Callable[..., npt.NDArray], *arrays: npt.NDArray) -> npt.NDArray:
    """Apply a function of rows to pieces of 1024 rows, missing rows being zero, and join what it gives.

    Args:
        function: arrays of shapes (1024, ...) -> shape (1024, ...), row by row.
        arrays: each of shape (N, ...), cut alike.

    Returns:
        Shape (N, ...).
    """
    count = len(arrays[0])
    found = []
    # Where there is no record, a piece of padding alone says what shape a row has.
    for start in range(0, max(1, count), ROWS):
        buffers = [np.zeros((ROWS, *array.shape[1:]), array.dtype) for array in arrays]
        for buffer, array in zip(buffers, arrays, strict=True):
            part = array[start : start + ROWS]
            buffer[: len(part)] = part
        found.append(function(*buffers))
    return np.concatenate(found)[:count]
