"""One command at a time on a run directory."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.atomic_file import written

LOCK_FILE = "run.lock"


@contextmanager
def folder_lock(folder: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """Hold a run directory while the context lasts.

    The system lets go of it when the process dies, however it dies.

    Args:
        folder: The run directory.
        name: Of the lock's file in it.

    Raises:
        UserError: If another process holds it, or the lock's file cannot be written.
    """
    with written(folder / name):
        file = (folder / name).open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process works on {folder}: wait for it, or end it first"
            ) from None
        yield
