"""Named arrays from outside: bounded, finite, of the expected names, shapes and types.

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
# Between MAGIC and the header stands the header's length, little-endian.
LENGTH_BYTES = 2
# numpy pads its header with blanks to a multiple of 64 bytes, and leaves space for a first axis
# that grows.
MOST_HEADER = 512


def prefixed(prefix: str, arrays: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Put `prefix/` before every name, to carry several sets of arrays in one message.

    Args:
        prefix: The set's name.
        arrays: Name -> array, or its shape.
    """
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, npt.NDArray]) -> dict[str, npt.NDArray]:
    """Take out the arrays whose name starts with `prefix/`, and drop that prefix.

    Args:
        prefix: The set's name.
        arrays: Name -> array, of all sets of a message.
    """
    start = f"{prefix}/"
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }


class SentArray(Protocol):
    """An array of a message, as Flower hands it over."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


def read_sent_arrays(
    sent: Mapping[str, SentArray], layout: Mapping[str, tuple[tuple[int, ...], np.dtype]]
) -> dict[str, npt.NDArray]:
    """Read exactly the arrays of a layout, all finite, each into memory of its own.

    Args:
        sent: Name -> array of a message.
        layout: Name -> expected shape and type.

    Raises:
        ValueError: If the message differs from the layout, or a value is not finite.
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
    values_start = len(sent.data) - size
    header_start = len(MAGIC) + LENGTH_BYTES
    if not header_start < values_start <= MOST_HEADER:
        raise ValueError(f"array {name!r} does not have the {size} bytes of its shape")
    header_length = (values_start - header_start).to_bytes(LENGTH_BYTES, "little")
    header = sent.data[header_start:values_start]
    if sent.data[:header_start] != MAGIC + header_length or header.rstrip() != _header(
        shape, dtype
    ):
        raise ValueError(f"the data of array {name!r} are not {dtype} of shape {tuple(shape)}")
    array = np.frombuffer(sent.data, dtype, offset=values_start).reshape(shape).copy()
    if not np.isfinite(array).all():
        raise ValueError(f"array {name!r} has a value that is not finite")
    return array


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Return numpy's header of an array, without its padding."""
    lengths = tuple(int(length) for length in shape)
    return f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {lengths}, }}".encode()
