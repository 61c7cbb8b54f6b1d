"""Features of a site's records on its own disk, computed once and not in every round.

A cache file holds what was derived from records: it is as confidential as they are, is readable by
its owner only, and never leaves the site.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from fl_dpbayes.files import Config, digest

# Raise it when the code gives other features for the same record, or writes another file.
VERSION = 3
CHECKSUM_BYTES = 32
CHUNK_BYTES = 2**20
# A server names the features: without a bound its requests could fill a site's disk.
MAX_BYTES = 8 * 2**30

Array = npt.NDArray[np.float32]


def cached_features(
    folder: Path, features: Config, records: Array, compute: Callable[[Array], Array]
) -> Array:
    """Return the features of records, (N, D), from the cache if they are there.

    They are read-only and memory-mapped. Their key is the features' settings and the bytes of the
    records. Processes that miss at the same time each compute and write; the last complete file
    stays. Beyond 8 GiB the oldest files make space.

    Args:
        folder: The cache.
        features: The features' settings.
        records: (N, *shape).
        compute: Gives the features, (N, D), where the cache has none.

    Raises:
        OSError: If the folder cannot be written.
    """
    path = folder / f"{_key(features, records)}.npy"
    cached = _read(path)
    if cached is not None:
        return cached
    values = np.ascontiguousarray(compute(records), np.float32)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(path, values)
    _make_space(folder, path)
    stored = _read(path)
    return values if stored is None else stored


def _key(features: Config, records: Array) -> str:
    settings = f"{VERSION}|{digest(features)}|{records.shape}"
    hasher = hashlib.blake2b(settings.encode(), digest_size=16)
    hasher.update(np.ascontiguousarray(records, "<f4").data)
    return hasher.hexdigest()


def _read(path: Path) -> Array | None:
    """Map a file into memory, None if it is absent or not whole."""
    try:
        size = path.stat().st_size - CHECKSUM_BYTES
        # The checksum comes first, as NumPy's reader of headers raises almost anything at a damaged
        # file.
        with path.open("rb") as file:
            if size <= 0 or _checksum(file, size) != file.read():
                return None
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None


def _write(path: Path, values: Array) -> None:
    # mkstemp makes the file readable by its owner only.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(descriptor, "w+b") as file:
            np.save(file, values, allow_pickle=False)
            file.write(_checksum(file, file.tell()))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _make_space(folder: Path, newest: Path) -> None:
    """Delete the files that were written first until the folder holds no more than it may."""
    sizes = []
    for file in folder.glob("*.npy"):
        # Another process that shares the folder may have deleted it since.
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            sizes.append((status.st_mtime, status.st_size, file))
    sizes.sort()
    total = sum(size for _, size, _ in sizes)
    for _, size, file in sizes:
        if total <= MAX_BYTES:
            return
        if file != newest:
            file.unlink(missing_ok=True)
            total -= size


def _checksum(file: BinaryIO, size: int) -> bytes:
    """Hash the first bytes of a file, and leave it standing after them."""
    hasher = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    file.seek(0)
    while size:
        chunk = file.read(min(size, CHUNK_BYTES))
        if not chunk:
            break
        hasher.update(chunk)
        size -= len(chunk)
    return hasher.digest()
