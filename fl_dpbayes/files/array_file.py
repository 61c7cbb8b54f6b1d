"""Safetensors files laid out by this program, with a checksum of their own where they stand alone.

The checksum is the SHA-256 of the file with zeros in its place, which is the same in every file.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

_TYPE_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64"}
_CHECKSUM_KEY = "sha256"
_NO_CHECKSUM = "0" * 64
# How the header of a sealed file begins, after the eight bytes of its length.
_SEALED_START = b'{"__metadata__":{"%s":"' % _CHECKSUM_KEY.encode()
_CHECKSUM_PLACE = 8 + len(_SEALED_START)
_CHUNK_BYTES = 2**20
LARGEST_VALUE = float(np.finfo(np.float32).max)
# What a reader may meet in a file that is not as it was written.
DAMAGED = (SafetensorError, ValueError, OSError)


@dataclass(frozen=True)
class _Checksums:
    """The checksum that a file should have, and the bytes in its place: none if it has no place."""

    computed: str
    stored: bytes


def array_header(
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Lay arrays out one after the other.

    Args:
        arrays: Type and shape of each array, by name.
        metadata: Text to be written into the header.

    Returns:
        The bytes before the arrays, and the place of each array after them, by name.

    Source:
        The safetensors format, https://huggingface.co/docs/safetensors.
    """
    content: dict[str, object] = {"__metadata__": dict(metadata)}
    places = {}
    end = 0
    for name, (dtype, shape) in arrays.items():
        start = end
        end += dtype.itemsize * math.prod(shape)
        places[name] = start
        content[name] = {
            "dtype": _TYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(content, separators=(",", ":")).encode()
    # The format pads the header with blanks, so that the arrays start at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def write_arrays(
    path: Path, arrays: Mapping[str, npt.NDArray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays and text as one safetensors file.

    Args:
        path: Of the file.
        arrays: float32 or float64, by name.
        metadata: Text by name.

    Raises:
        OSError: If it cannot be written.
    """
    layout = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    header, _ = array_header(layout, metadata or {})
    with path.open("wb") as file:
        file.write(header)
        for array in arrays.values():
            # A view is written as what it shows.
            file.write(np.ascontiguousarray(array).data)


def sealable(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata that begins with the place of a checksum, which `seal` fills in."""
    return {_CHECKSUM_KEY: _NO_CHECKSUM, **metadata}


def seal(path: Path) -> None:
    """Put the checksum into a file that was written with `sealable` metadata.

    Args:
        path: Of the file.

    Raises:
        OSError: If it cannot be written.
    """
    checksum = _checksums(path).computed
    with path.open("r+b") as file:
        file.seek(_CHECKSUM_PLACE)
        file.write(checksum.encode())


def check_seal(path: Path) -> None:
    """Compare a sealed file with its checksum.

    Args:
        path: Of the file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it has no checksum or another one.
    """
    checksums = _checksums(path)
    if not re.fullmatch(rb"[0-9a-f]{64}", checksums.stored):
        raise ValueError(
            "it has no checksum: an older version of fl-dpbayes wrote it, or it is damaged"
        )
    if checksums.stored != checksums.computed.encode():
        raise ValueError("it was cut off or changed since it was written (its checksum differs)")


def read_arrays(path: Path) -> tuple[dict[str, str], dict[str, npt.NDArray]]:
    """Read a file of `write_arrays`.

    Args:
        path: Of the file.

    Returns:
        The metadata, and the arrays by name.

    Raises:
        SafetensorError, ValueError, OSError: If it is no such file.
    """
    with safe_open(path, framework="numpy") as file:
        check_types(file)
        metadata = file.metadata() or {}
        return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def check_types(file: safe_open) -> None:
    """Check the stored types of a file's arrays before one is read.

    The format has types that NumPy has not.

    Args:
        file: An open safetensors file.

    Raises:
        ValueError: If an array is neither float32 nor float64.
    """
    for name in file.keys():  # noqa: SIM118
        stored_type = file.get_slice(name).get_dtype()
        if stored_type not in _TYPE_NAMES.values():
            raise ValueError(f"array {name!r} is {stored_type}: it must be float32 or float64")


def check_values(name: str, values: npt.NDArray) -> None:
    """Check that an array holds plain numbers, which float64 computations cannot make infinite.

    Args:
        name: Of the array, for the error.
        values: The array.

    Raises:
        ValueError: If it is neither float32 nor float64, or a value is NaN, infinite or beyond
            float32's range.
    """
    if values.dtype not in _TYPE_NAMES:
        raise ValueError(f"array {name!r} is {values.dtype}: it must be float32 or float64")
    # A comparison with NaN is false.
    if not (np.abs(values) <= LARGEST_VALUE).all():
        raise ValueError(
            f"array {name!r} has a value that is not finite, or beyond float32's range "
            f"({LARGEST_VALUE:.2g})"
        )


def _checksums(path: Path) -> _Checksums:
    with path.open("rb") as file:
        start = file.read(_CHECKSUM_PLACE + 64)
        stored = b""
        if start[8:_CHECKSUM_PLACE] == _SEALED_START:
            stored = start[_CHECKSUM_PLACE:]
        hasher = hashlib.sha256(start[:_CHECKSUM_PLACE] + _NO_CHECKSUM.encode())
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return _Checksums(computed=hasher.hexdigest(), stored=stored)
