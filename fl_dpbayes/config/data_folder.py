"""Find and check the files of a data set that is not shipped."""

import hashlib
import os
from pathlib import Path

from fl_dpbayes.errors import UserError

VARIABLE = "FL_DPBAYES_DATA"
# Set where several processes of a machine answer for the same sites: they map prepared records from
# one file.
SHARED_RECORDS = "FL_DPBAYES_SHARED_RECORDS"


def known_folder(folder: Path | None) -> Path | None:
    """Return `folder`, or else the one that the environment variable FL_DPBAYES_DATA names, or else None."""
    if folder is None and os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return folder


def backbone_folder(folder: Path | None) -> Path | None:
    """Return where the weight files of frozen networks lie: `backbones` in the data folder, or None without one."""
    known = known_folder(folder)
    return None if known is None else known / "backbones"


def data_file(folder: Path | None, name: str, origin: str) -> Path:
    """Find the file of that name in the data folder, `known_folder(folder)`.

    Raises UserError if no folder is known or the file is not in it; `origin` is where it can be
    had.
    """
    folder = known_folder(folder)
    if folder is None:
        problem = (
            f"{name} is needed but no data folder is known: give --data-dir DIR or set {VARIABLE}"
        )
        raise UserError(
            f"{problem} (Python: data_dir); get it there by  fl-dpbayes data fetch  or "
            f"from {origin}"
        )
    path = folder / name
    if not path.is_file():
        problem = f"{path} does not exist: get it by  fl-dpbayes data fetch  or from {origin}"
        raise UserError(
            f"{problem}, or give another folder by --data-dir (Python: data_dir) or {VARIABLE}"
        )
    return path


def check_rows(rows: list[bytes], expected: str, path: Path, origin: str) -> None:
    """Check that a file holds exactly the expected records, one byte string each, in whatever order.

    Raises UserError if the SHA-256 over the sorted rows, in hexadecimal, is not the expected one.
    """
    if hashlib.sha256(b"".join(sorted(rows))).hexdigest() != expected:
        raise damaged(path, "its records are not the published ones", origin)


def damaged(path: Path, problem: str, origin: str) -> UserError:
    """Build the error for a file that is not what it should be."""
    return UserError(f"{path} is damaged or another file ({problem}): get it anew from {origin}")
