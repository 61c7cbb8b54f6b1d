"""A folder that others may have written, before a command writes into it."""

import os
import stat
from pathlib import Path

from fl_dpbayes.errors import UserError


def check_plain(folder: Path) -> None:
    """Check that a folder holds files and folders alone, at any depth.

    What is written through a link lands where it leads, and a pipe is waited for without end.

    Args:
        folder: Of a run.

    Raises:
        UserError: Names what is something else.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) or stat.S_ISFIFO(mode):
                raise UserError(
                    f"{path} is {'a link' if stat.S_ISLNK(mode) else 'a pipe'}: a run goes on in "
                    "files and folders of its own; put back what was there, or move it out of "
                    "the folder"
                )
