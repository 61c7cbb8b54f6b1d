"""A safetensors file of samples that is written and read a few samples at a time."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import DAMAGED, array_header, check_types, check_values, read_arrays
from fl_dpbayes.posterior.samples import AnySamples, SamplePiece
from fl_dpbayes.protocol import Arrays, prefixed

SAMPLES = "samples"


def write_samples(
    path: Path, samples: AnySamples, metadata: Mapping[str, str] | None = None
) -> None:
    """Write weights, temperatures and samples `samples/<name>`, holding one part of the samples at a time.

    safetensors itself writes only what is in memory as a whole; its format is a length, a JSON
    header, and the arrays' bytes. Source: https://huggingface.co/docs/safetensors.
    """
    count, parts = len(samples), iter(samples.parts())
    first = next(parts)
    whole = {"temperatures": samples.temperatures, "weights": samples.weights}
    arrays: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
        name: (np.dtype(np.float64), (count,)) for name in whole
    }
    forms = {
        name: (array.dtype, (count, *array.shape[1:]))
        for name, array in sorted(first.arrays.items())
    }
    arrays |= prefixed(SAMPLES, forms)
    header, places = array_header(arrays, metadata or {})
    with path.open("wb") as file:
        file.write(header)
        for name, values in whole.items():
            file.seek(len(header) + places[name])
            file.write(np.ascontiguousarray(values, np.float64).data)
        written = 0
        for part in chain([first], parts):
            for name, array in part.arrays.items():
                row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
                file.seek(len(header) + places[f"{SAMPLES}/{name}"] + written * row_bytes)
                file.write(np.ascontiguousarray(array).data)
            written += len(part)


def open_samples(path: Path) -> SamplePiece:
    """Read the weights and temperatures of a file of `write_samples`, and leave its samples on the disk.

    Each reading of samples opens the file anew, so that its pages are not held between them. It
    raises UserError, now or when samples are read, if the file is damaged or a value is not finite
    or beyond float32's range.
    """
    with _readable(path), safe_open(path, framework="numpy") as file:
        check_types(file)
        names = [name for name in file.keys() if name.startswith(f"{SAMPLES}/")]  # noqa: SIM118
        weights, temperatures = file.get_tensor("weights"), file.get_tensor("temperatures")
        check_values("weights", weights)
        check_values("temperatures", temperatures)
        if weights.ndim != 1 or weights.shape != temperatures.shape:
            raise ValueError("weights and temperatures need one number for each sample")
        if min(weights.min(initial=0), temperatures.min(initial=0)) < 0:
            raise ValueError("a weight or temperature is below 0")

    def rows(numbers: npt.NDArray[np.intp]) -> Arrays:
        with _readable(path), safe_open(path, framework="numpy") as file:
            read = {name: _rows(file.get_slice(name), numbers) for name in names}
            for name, values in read.items():
                check_values(name, values)
            return {name[len(SAMPLES) + 1 :]: values for name, values in read.items()}

    return SamplePiece(weights, temperatures, rows)


def read_state(path: Path) -> Arrays:
    """Read all arrays of a file of the bank.

    Raises:
        UserError: If the file is damaged, or a value is not finite or beyond float32's range.
    """
    with _readable(path):
        _, arrays = read_arrays(path)
        for name, values in arrays.items():
            check_values(name, values)
    return arrays


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{path} cannot be read ({reason}): put back a copy of it, or run its scenario again"
        ) from None


def _rows(tensor, numbers: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:  # type: ignore[no-untyped-def]
    start, stop = int(numbers[0]), int(numbers[-1]) + 1
    if stop - start == len(numbers):
        return tensor[start:stop]
    return np.concatenate([tensor[int(number) : int(number) + 1] for number in numbers])
