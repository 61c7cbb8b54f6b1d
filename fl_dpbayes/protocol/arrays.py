"""Named arrays from outside: bounded in number and size, finite, of the expected names, shapes and type.

What a message says of its arrays is compared and never followed: nothing is allocated before the
size is known to be the expected one, and no general reader of the format is called.
"""

from collections.abc import Mapping
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import outside_text

Arrays = dict[str, npt.NDArray[np.float32]]
ValueT = TypeVar("ValueT")
STYPE = "numpy.ndarray"
MAGIC = b"\x93NUMPY\x01\x00"
# numpy pads its header with blanks to a multiple of 64 bytes, and leaves space for a first axis
# that grows.
MOST_HEADER = 512


def prefixed(prefix: str, arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Put `prefix/` before every name of arrays or of their shapes, to carry several sets in one message."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, npt.NDArray]) -> dict[str, npt.NDArray]:
    """Take out the arrays whose name starts with `prefix/`, and drop that prefix."""
    start = f"{prefix}/"
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


class SentArray(Protocol):
    """An array of a message, as Flower hands it over."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


def read_sent_arrays(
    sent: Mapping[str, SentArray], layout: Mapping[str, tuple[tuple[int, ...], np.dtype]]
) -> dict[str, npt.NDArray]:
    """Read exactly the arrays of this layout, all finite, each into memory of its own.

    ValueError at a difference.
    """
    if len(sent) > len(layout) or set(sent) != set(layout):
        missing = next((repr(name) for name in layout if name not in sent), "none")
        extra = next((repr(outside_text(name, 24)) for name in sent if name not in layout), "none")
        raise ValueError(f"array names differ: missing {missing}, unexpected {extra}")
    return {name: _read(name, sent[name], shape, dtype) for name, (shape, dtype) in layout.items()}


def _read(name: str, sent: SentArray, shape: tuple[int, ...], dtype: np.dtype) -> npt.NDArray:
    if sent.stype != STYPE:
        raise ValueError(f"array {name!r} is not stored as {STYPE}")
    if tuple(sent.shape) != tuple(shape):
        raise ValueError(f"array {name!r} declares a shape other than {tuple(shape)}")
    if sent.dtype != dtype.name:
        raise ValueError(f"array {name!r} declares another type, not {dtype}")
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    start = len(sent.data) - size
    if not len(MAGIC) + 2 < start <= MOST_HEADER:
        raise ValueError(f"array {name!r} does not have the {size} bytes of its shape")
    length = start - len(MAGIC) - 2
    header, lengths = sent.data[len(MAGIC) + 2 : start], tuple(map(int, shape))
    expected = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {lengths}, }}".encode()
    if (
        sent.data[: len(MAGIC) + 2] != MAGIC + length.to_bytes(2, "little")
        or header.rstrip() != expected
    ):
        raise ValueError(f"the data of array {name!r} are not {dtype} of shape {tuple(shape)}")
    array = np.frombuffer(sent.data, dtype, offset=start).reshape(shape).copy()
    if not np.isfinite(array).all():
        raise ValueError(f"array {name!r} has a value that is not finite")
    return array
