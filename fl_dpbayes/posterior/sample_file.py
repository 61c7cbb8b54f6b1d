"""A safetensors file of samples, written a few samples at a time, with a checksum in its header.

The checksum is the SHA-256 of the file with zeros in its place, which is the same in every file.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from fl_dpbayes.posterior.samples import AnySamples
from fl_dpbayes.protocol import prefixed

SAMPLES = "samples"
# Types of the format that a file of samples has.
TYPE_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64"}
_CHECKSUM_KEY = "sha256"
_NO_CHECKSUM = "0" * 64
# Behind the eight bytes of the header's length and how the header begins.
_CHECKSUM_PLACE = 8 + len(b'{"__metadata__":{"%s":"' % _CHECKSUM_KEY.encode())
_CHUNK_BYTES = 2**20


def write_samples(path: Path, samples: AnySamples, metadata: Mapping[str, str]) -> None:
    """Write weights, temperatures and samples, holding one part of the samples at a time.

    safetensors itself writes only what is in memory as a whole; its format is a length, a JSON
    header, and the arrays' bytes. Source: https://huggingface.co/docs/safetensors.

    Args:
        path: Of the file.
        samples: One or more; they become the arrays `samples/<name>`.
        metadata: Of the file.

    Raises:
        OSError: If it cannot be written.
    """
    parts = iter(samples.parts())
    first = next(parts)
    vectors = {"temperatures": samples.temperatures, "weights": samples.weights}
    forms: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
        name: (np.dtype(np.float64), (len(samples),)) for name in vectors
    }
    sample_forms = {
        name: (array.dtype, (len(samples), *array.shape[1:]))
        for name, array in sorted(first.arrays.items())
    }
    forms |= prefixed(SAMPLES, sample_forms)
    header, places = array_header(forms, {_CHECKSUM_KEY: _NO_CHECKSUM, **metadata})
    with path.open("wb") as file:
        file.write(header)
        for name, values in vectors.items():
            file.seek(len(header) + places[name])
            file.write(np.ascontiguousarray(values, np.float64).data)
        rows_before = 0
        for part in chain([first], parts):
            for name, array in part.arrays.items():
                row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
                file.seek(len(header) + places[f"{SAMPLES}/{name}"] + rows_before * row_bytes)
                file.write(np.ascontiguousarray(array).data)
            rows_before += len(part)
    seal(path)


def array_header(
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Lay arrays out one after the other.

    Args:
        arrays: Type and shape of each array, by name.
        metadata: Text to be written into the header.

    Returns:
        The bytes before the arrays, and the place of each array after them, by name.
    """
    content: dict[str, object] = {"__metadata__": dict(metadata)}
    places = {}
    end = 0
    for name, (dtype, shape) in arrays.items():
        start = end
        end += dtype.itemsize * math.prod(shape)
        places[name] = start
        content[name] = {
            "dtype": TYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(content, separators=(",", ":")).encode()
    # The format pads the header with blanks, so that the arrays start at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def seal(path: Path) -> None:
    """Put the checksum into a file whose metadata begin with its place."""
    checksum = _checksum(path)
    with path.open("r+b") as file:
        file.seek(_CHECKSUM_PLACE)
        file.write(checksum)


def check_seal(path: Path) -> None:
    """Compare a file with its checksum.

    Args:
        path: Of the file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it has no checksum or another one.
    """
    with path.open("rb") as file:
        file.seek(_CHECKSUM_PLACE)
        stored = file.read(len(_NO_CHECKSUM))
    if not re.fullmatch(rb"[0-9a-f]{64}", stored):
        raise ValueError(
            "it has no checksum: an older version of fl-dpbayes wrote it, or it is damaged"
        )
    if stored != _checksum(path):
        raise ValueError("it was cut off or changed since it was written (its checksum differs)")


def _checksum(path: Path) -> bytes:
    """Return the SHA-256 of a file with zeros in the place of its checksum."""
    with path.open("rb") as file:
        hasher = hashlib.sha256(file.read(_CHECKSUM_PLACE) + _NO_CHECKSUM.encode())
        file.seek(_CHECKSUM_PLACE + len(_NO_CHECKSUM))
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest().encode()
