"""How many bits of each released number travel.

Rounding is a fixed function of what a site releases, so it costs no privacy. Last states always travel as float32: the
chains go on from them.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix

Precision = Literal["float32", "bfloat16", "int8"]
STORED: dict[Precision, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
}
LEVELS = 127
# 127 of them, and their rounding, stay within float32.
MAX_SCALE = np.float32(np.finfo(np.float32).max / 128)
_BFLOAT16_MAX = np.uint16(0x7F7F)


def encode_samples(samples: Arrays, precision: Precision) -> dict[str, npt.NDArray]:
    """Round samples for transport, the same way at every call.

    `bfloat16` keeps the upper 16 bits of a float32, rounded to the nearest, ties to even (2 to 3 digits). `int8` keeps
    w = s q with q in -127 .. 127 and one scale s = max |w| / 127 for each sample of each array: an error of at most
    s/2.

    Args:
        samples: name -> shape (M, *shape), finite.
        precision: the request's choice.

    Returns:
        Arrays `samples/<name>`, for `int8` also `scales/<name>` of shape (M,).
    """
    match precision:
        case "float32":
            return prefixed("samples", samples)
        case "bfloat16":
            return prefixed("samples", {name: _to_bfloat16(array) for name, array in samples.items()})
        case "int8":
            scales = {name: _scales(array) for name, array in samples.items()}
            levels = {name: _to_levels(array, scales[name]) for name, array in samples.items()}
            return prefixed("samples", levels) | prefixed("scales", scales)


def encoded_layout(
    shapes: Mapping[str, tuple[int, ...]], samples: int, precision: Precision
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the name, shape and type of each array that `encode_samples` gives.

    Args:
        shapes: parameter name -> shape.
        samples: number of samples M; with none, no array travels.
        precision: the request's choice.

    Returns:
        Name -> shape and type.
    """
    if not samples:
        return {}
    stored = {name: ((samples, *shape), STORED[precision]) for name, shape in shapes.items()}
    scales = {name: ((samples,), np.dtype(np.float32)) for name in shapes} if precision == "int8" else {}
    return prefixed("samples", stored) | prefixed("scales", scales)


def decode_samples(arrays: Mapping[str, npt.NDArray], precision: Precision) -> Arrays:
    """Undo `encode_samples`, up to its rounding, for arrays of the right layout.

    Args:
        arrays: `samples/<name>` and, for `int8`, `scales/<name>`.
        precision: how they were encoded.

    Returns:
        Name -> float32 samples, all finite.

    Raises:
        ValueError: if a value is not finite, a scale is negative or too large, or a level is not -127 .. 127.
    """
    stored, scales = without_prefix("samples", arrays), without_prefix("scales", arrays)
    samples = {}
    for name, array in stored.items():
        if precision == "int8":
            if not ((scales[name] >= 0) & (scales[name] <= MAX_SCALE)).all() or (array < -LEVELS).any():
                raise ValueError(f"array {name!r} has a scale or a level that no rounding gives")
            array = array * _columns(scales[name], array)
        elif precision == "bfloat16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        if not np.isfinite(array).all():
            raise ValueError(f"array {name!r} has a value that is not finite")
        samples[name] = array
    return samples


def rounding_error(sample: Arrays, precision: Precision) -> float:
    """Bound how far a sample that travelled lies from the one that was encoded.

    |w' - w| <= 2^-8 |w'| for `bfloat16`, and s/2 = max |w'| / 254 for each value of an array for `int8`.

    Args:
        sample: name -> array as decoded, w'.
        precision: how it was encoded.

    Returns:
        A bound on the Euclidean distance.
    """
    match precision:
        case "float32":
            return 0.0
        case "bfloat16":
            squares = [float(np.square(array, dtype=np.float64).sum()) for array in sample.values()]
            return float(np.sqrt(sum(squares))) / 2**8
        case "int8":
            errors = [float(np.abs(array).max()) / (2 * LEVELS) for array in sample.values()]
            sizes = [array.size for array in sample.values()]
            return float(np.sqrt(sum(size * error**2 for size, error in zip(sizes, errors, strict=True))))


def _to_bfloat16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(array).view(np.uint32)
    upper = (bits >> 16).astype(np.uint16)
    half, rest = np.uint32(0x8000), bits & np.uint32(0xFFFF)
    up = (rest > half) | ((rest == half) & (upper & 1 == 1))
    # The largest values would round to infinity.
    return upper + (up & (upper & 0x7FFF < _BFLOAT16_MAX))


def _scales(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    largest = np.abs(array.reshape(len(array), -1)).max(axis=1)
    return np.minimum(largest / np.float32(LEVELS), MAX_SCALE)


def _to_levels(array: npt.NDArray[np.float32], scales: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    divisors = _columns(np.where(scales > 0, scales, np.float32(1)), array)
    return np.clip(np.rint(array / divisors), -LEVELS, LEVELS).astype(np.int8)


def _columns(scales: npt.NDArray[np.float32], array: npt.NDArray) -> npt.NDArray[np.float32]:
    return scales.reshape(-1, *(1,) * (array.ndim - 1))
