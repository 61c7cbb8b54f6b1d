"""The files of a run directory as a journal lists them: their names, sizes and SHA-256."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.journal import REMEDY, Entry


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal (64 characters)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(name: str, content: Path, replaces: str | None = None) -> dict[str, Any]:
    """Return a journal's entry for a file.

    Args:
        name: the file's path in the run directory, with `/`.
        content: where the bytes lie now: the file itself, or what is about to take its place.
        replaces: the file that is needed no more once this one is there.

    Returns:
        `file`, `bytes` and `sha256`; `replaces` where given.
    """
    entry = {"file": name, "bytes": content.stat().st_size, "sha256": file_sha256(content)}
    return entry if replaces is None else entry | {"replaces": replaces}


def listed_files(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return name -> last entry of the files that a journal's entries say are there."""
    listed: dict[str, Entry] = {}
    for entry in entries:
        if "file" in entry:
            listed[entry["file"]] = entry
            listed.pop(entry.get("replaces", ""), None)
    return listed


def check_files(folder: Path, listed: Mapping[str, Entry]) -> None:
    """Compare files with a journal's entries.

    Args:
        folder: the run directory.
        listed: name -> entry.

    Raises:
        UserError: at the first file that is missing, of another size or of other content.
    """
    for name, entry in listed.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise UserError(f"{path} has {size} bytes, it was written with {entry['bytes']}: {REMEDY}")
            if file_sha256(path) != entry["sha256"]:
                raise UserError(f"{path} is not as it was written (its SHA-256 differs): {REMEDY}")
        except FileNotFoundError:
            raise UserError(f"{path} is missing: {REMEDY}") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror or error}): {REMEDY}") from None


def check_no_others(folder: Path, pattern: str, listed: Mapping[str, Entry]) -> None:
    """Check that no file lies beside the listed ones where files are looked up by pattern.

    Args:
        folder: the run directory.
        pattern: of paths in it, as for `Path.glob`.
        listed: name -> entry.

    Raises:
        UserError: naming the first that is not listed.
    """
    for path in sorted(folder.glob(pattern)):
        if path.relative_to(folder).as_posix() not in listed:
            raise UserError(f"{path} is no file of this run: move it out of the folder, then go on")
