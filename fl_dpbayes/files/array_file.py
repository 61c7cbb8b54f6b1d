"""Safetensors files laid out by this program, with a checksum of their own where they stand alone.

The checksum is the SHA-256 of the file with zeros in its place, which is the same in every file.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

_TYPE_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64"}
_SEAL, _NO_SUM = "sha256", "0" * 64
_START = b'{"__metadata__":{"%s":"' % _SEAL.encode()
_PLACE = 8 + len(_START)
_CHUNK = 2**20
LARGEST_VALUE = float(np.finfo(np.float32).max)
# What a reader may meet in a file that is not as it was written.
DAMAGED = (SafetensorError, ValueError, OSError)


def array_header(
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Lay arrays, name -> type and shape, out one after the other, with text to keep in the header.

    References:
        The safetensors format, https://huggingface.co/docs/safetensors.

    Returns the bytes before the arrays, and name -> place of an array after them.
    """
    content: dict[str, object] = {"__metadata__": dict(metadata)}
    places, end = {}, 0
    for name, (dtype, shape) in arrays.items():
        places[name] = end
        end += dtype.itemsize * math.prod(shape)
        content[name] = {
            "dtype": _TYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [places[name], end],
        }
    text = json.dumps(content, separators=(",", ":")).encode()
    # The format pads the header with blanks, so that the arrays start at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def write_arrays(
    path: Path, arrays: Mapping[str, npt.NDArray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write float32 or float64 arrays by name, and text, as one safetensors file.

    Raises OSError if it cannot be written.
    """
    header, _ = array_header(
        {name: (array.dtype, array.shape) for name, array in arrays.items()}, metadata or {}
    )
    with path.open("wb") as file:
        file.write(header)
        for array in arrays.values():
            # A view is written as what it shows.
            file.write(np.ascontiguousarray(array).data)


def sealable(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata that begins with the place of a checksum, which `seal` fills in."""
    return {_SEAL: _NO_SUM, **metadata}


def seal(path: Path) -> None:
    """Put the checksum into a file that was written with `sealable` metadata.

    Raises OSError if it cannot be written.
    """
    checksum, _ = _sums(path)
    with path.open("r+b") as file:
        file.seek(_PLACE)
        file.write(checksum.encode())


def check_seal(path: Path) -> None:
    """Compare a sealed file with its checksum.

    Raises OSError if it cannot be read. Raises ValueError if it has no checksum or another one.
    """
    checksum, stored = _sums(path)
    if not re.fullmatch(rb"[0-9a-f]{64}", stored):
        raise ValueError(
            "it has no checksum: an older version of fl-dpbayes wrote it, or it is damaged"
        )
    if stored != checksum.encode():
        raise ValueError("it was cut off or changed since it was written (its checksum differs)")


def read_arrays(path: Path) -> tuple[dict[str, str], dict[str, npt.NDArray]]:
    """Read a file of `write_arrays`: metadata, and name -> array.

    Raises SafetensorError, ValueError, OSError if it is no such file.
    """
    with safe_open(path, framework="numpy") as file:
        check_types(file)
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def check_types(file: safe_open) -> None:
    """Check the stored types of a file's arrays before one is read: the format has types that NumPy has not.

    Args:
        file: An open safetensors file.

    Raises:
        ValueError: If an array is neither float32 nor float64.
    """
    for name in file.keys():  # noqa: SIM118
        stored = file.get_slice(name).get_dtype()
        if stored not in _TYPE_NAMES.values():
            raise ValueError(f"array {name!r} is {stored}: it must be float32 or float64")


def check_values(name: str, values: npt.NDArray) -> None:
    """Check that an array of a file holds plain numbers that computations in float64 cannot make infinite.

    Args:
        name: Of the array, for the error.
        values: The array.

    Raises:
        ValueError: If it is neither float32 nor float64, or a value is NaN, infinite or beyond float32's range.
    """
    if values.dtype not in _TYPE_NAMES:
        raise ValueError(f"array {name!r} is {values.dtype}: it must be float32 or float64")
    # A comparison with NaN is false.
    if not (np.abs(values) <= LARGEST_VALUE).all():
        allowed = f"a value that is not finite, or beyond float32's range ({LARGEST_VALUE:.2g})"
        raise ValueError(f"array {name!r} has {allowed}")


def _sums(path: Path) -> tuple[str, bytes]:
    """Return the checksum that a file should have, and the bytes where it stands.

    None where no place is for it.
    """
    with path.open("rb") as file:
        start = file.read(_PLACE + 64)
        stored = start[_PLACE:] if start[8:_PLACE] == _START else b""
        hasher = hashlib.sha256(start[:_PLACE] + _NO_SUM.encode())
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest(), stored
