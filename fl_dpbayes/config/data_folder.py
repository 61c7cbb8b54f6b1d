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
    """Return the data folder: the one given, or the environment's FL_DPBAYES_DATA, or None.

    Args:
        folder: The folder that a person named, if any.
    """
    if folder is None and os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return folder


def backbone_folder(folder: Path | None) -> Path | None:
    """Return where the weight files of frozen networks lie: `backbones` in the data folder.

    Args:
        folder: As of `known_folder`; without a data folder the result is None.
    """
    data_folder = known_folder(folder)
    return None if data_folder is None else data_folder / "backbones"


def data_file(folder: Path | None, name: str, origin: str) -> Path:
    """Find a file in the data folder.

    Args:
        folder: As of `known_folder`.
        name: The file's path inside the folder.
        origin: Where it can be had.

    Raises:
        UserError: If no folder is known or the file is not in it.
    """
    folder = known_folder(folder)
    if folder is None:
        raise UserError(
            f"{name} is needed but no data folder is known: give --data-dir DIR or set {VARIABLE} "
            f"(Python: data_dir); get it there by  fl-dpbayes data fetch  or from {origin}"
        )
    path = folder / name
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: get it by  fl-dpbayes data fetch  or from {origin}, or give "
            f"another folder by --data-dir (Python: data_dir) or {VARIABLE}"
        )
    return path


def check_rows(rows: list[bytes], expected: str, path: Path, origin: str) -> None:
    """Check that a file holds exactly the expected records, in whatever order.

    Args:
        rows: One byte string for each record.
        expected: The SHA-256 over the sorted rows, in hexadecimal.
        path: The file.
        origin: Where it can be had.

    Raises:
        UserError: If the rows have another SHA-256.
    """
    if hashlib.sha256(b"".join(sorted(rows))).hexdigest() != expected:
        raise damaged(path, "its records are not the published ones", origin)


def damaged(path: Path, problem: str, origin: str) -> UserError:
    """Build the error for a file that is not what it should be."""
    return UserError(f"{path} is damaged or another file ({problem}): get it anew from {origin}")
