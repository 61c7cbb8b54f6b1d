"""Named arrays from outside: bounded in number and size, finite, of the expected names, shapes and type."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[np.float32]]
ValueT = TypeVar("ValueT")


def check_arrays(arrays: Mapping[str, npt.NDArray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that arrays are exactly the expected ones: same names, shapes, float32, finite.

    Args:
        arrays: name -> array, from a message.
        shapes: name -> expected shape.

    Raises:
        ValueError: at the first array that is missing, unexpected, of another shape or type, or not finite.
    """
    if set(arrays) != set(shapes):
        missing, extra = sorted(set(shapes) - set(arrays))[:3], sorted(set(arrays) - set(shapes))[:3]
        raise ValueError(f"array names differ: missing {missing}, unexpected {extra}")
    for name, shape in shapes.items():
        array = arrays[name]
        if array.dtype != np.float32:
            raise ValueError(f"array {name!r} is {array.dtype}, not float32")
        if array.shape != tuple(shape):
            raise ValueError(f"array {name!r} has shape {array.shape}, not {tuple(shape)}")
        if not np.isfinite(array).all():
            raise ValueError(f"array {name!r} has a value that is not finite")


def prefixed(prefix: str, arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Put `prefix/` before every name of arrays or of their shapes, to carry several sets in one message."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, npt.NDArray]) -> dict[str, npt.NDArray]:
    """Take out the arrays whose name starts with `prefix/`, and drop that prefix."""
    start = f"{prefix}/"
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}
