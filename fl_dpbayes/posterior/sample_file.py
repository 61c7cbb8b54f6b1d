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
from fl_dpbayes.protocol import Arrays, prefixed, without_prefix

SAMPLES = "samples"


def write_samples(
    path: Path, samples: AnySamples, metadata: Mapping[str, str] | None = None
) -> None:
    """Write weights, temperatures and samples, holding one part of the samples at a time.

    safetensors itself writes only what is in memory as a whole; its format is a length, a JSON
    header, and the arrays' bytes. Source: https://huggingface.co/docs/safetensors.

    Args:
        path: Of the file.
        samples: One or more; they become the arrays `samples/<name>`.
        metadata: Of the file.
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
    header, places = array_header(forms, metadata or {})
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


def open_samples(path: Path) -> SamplePiece:
    """Read weights and temperatures of a file of `write_samples`, and leave its samples there.

    Each reading of samples opens the file anew, so that its pages are not held between them.

    Args:
        path: Of the file.

    Returns:
        The samples.

    Raises:
        UserError: Now or when samples are read, if the file is damaged or a value is not finite or
            beyond float32's range.
    """
    with _readable(path), safe_open(path, framework="numpy") as file:
        check_types(file)
        names = [name for name in file.keys() if name.startswith(f"{SAMPLES}/")]  # noqa: SIM118
        weights = file.get_tensor("weights")
        temperatures = file.get_tensor("temperatures")
        check_values("weights", weights)
        check_values("temperatures", temperatures)
        if weights.ndim != 1 or weights.shape != temperatures.shape:
            raise ValueError("weights and temperatures need one number for each sample")
        if min(weights.min(initial=0), temperatures.min(initial=0)) < 0:
            raise ValueError("a weight or temperature is below 0")

    def rows(numbers: npt.NDArray[np.intp]) -> Arrays:
        with _readable(path), safe_open(path, framework="numpy") as file:
            arrays = {name: _rows(file.get_slice(name), numbers) for name in names}
            for name, values in arrays.items():
                check_values(name, values)
            return without_prefix(SAMPLES, arrays)

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
    """Read rows of ascending numbers from a slice of safetensors, which has no public type."""
    start = int(numbers[0])
    stop = int(numbers[-1]) + 1
    if stop - start == len(numbers):
        return tensor[start:stop]
    return np.concatenate([tensor[int(number) : int(number) + 1] for number in numbers])
