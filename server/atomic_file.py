"""Files that a crash cannot leave half written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Replace a file; whoever reads it, after a power cut as well, meets the old file or the whole new one.

    Args:
        path: the file; its folder exists, and one process at a time writes it.

    Yields:
        The path to write to; what stands there takes the file's place when the context ends well.
    """
    partial = path.with_name(f".{path.name}.partial")
    yield partial
    _sync(partial)
    os.replace(partial, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
