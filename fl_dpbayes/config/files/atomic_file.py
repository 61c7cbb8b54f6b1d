"""Files that a crash cannot leave half written, and whose failure to be written is told in one line."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fl_dpbayes.config.errors import UserError

PARTIAL = ".partial"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Say in one line, with the path and the remedy, why a file or folder that the context writes cannot be.

    Raises UserError for any error of the operating system in the context.
    """
    try:
        yield
    except OSError as error:
        remedy = "free space on its disk" if error.errno in FULL else "see to its disk and its permissions"
        raise UserError(f"{path} cannot be written ({error.strerror or error}): {remedy}") from error


@contextmanager
def replaced(path: Path, *, through_power_cut: bool = True) -> Iterator[Path]:
    """Replace a file; whoever reads it meets the old file or the whole new one.

    Its folder exists, and one process at a time writes it. That holds after a power cut as well, or (with
    `through_power_cut` false) only after the death of the process.

    Raises OSError if it cannot be written.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    try:
        yield partial
        if through_power_cut:
            sync(partial)
        os.replace(partial, path)
        if through_power_cut:
            sync(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Replace a file as `replaced` does, through a power cut too.

    Raises UserError if it cannot be written, for instance on a full disk.
    """
    with written(path), replaced(path) as partial:
        yield partial


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file, written as UTF-8 with line ends unchanged.

    Raises UserError if it cannot be written.
    """
    with replaced_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, and not only in the system's memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
