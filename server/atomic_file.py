"""Arrays on disk that a crash cannot leave half written."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy.typing as npt
from safetensors.numpy import save_file


def save_atomically(path: Path, arrays: Mapping[str, npt.NDArray], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; whoever reads it, after a power cut as well, meets the old file or the whole new one.

    Args:
        path: the file; its folder exists, and one process at a time writes it.
        arrays: name -> array.
        metadata: texts beside them.
    """
    partial = path.with_name(f".{path.name}.partial")
    save_file(dict(arrays), partial, metadata)
    _sync(partial)
    os.replace(partial, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
