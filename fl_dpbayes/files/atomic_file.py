"""Files that a crash cannot leave half written, and whose failure is told in one line."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fl_dpbayes.errors import UserError

PARTIAL = ".partial"
# Keys of a sealed JSON file: its own checksum, and those of files beside it.
CHECKSUM = "checksum"
BESIDE = "checksums_beside"


class DamagedError(ValueError):
    """A stored file is not as it was written; the text says what is wrong, without the path."""


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Say in one line why a file or folder that the context writes cannot be written.

    Args:
        path: Of the file or folder, for the error.

    Raises:
        UserError: With the path and the remedy, for any error of the operating system in the
            context.
    """
    try:
        yield
    except OSError as error:
        disk_is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free space on its disk" if disk_is_full else "see to its disk and its permissions"
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}): {remedy}"
        ) from error


@contextmanager
def replaced(path: Path, *, through_power_cut: bool = True) -> Iterator[Path]:
    """Replace a file; whoever reads it meets the old file or the whole new one.

    Its folder exists, and one process at a time writes it.

    Args:
        path: Of the file.
        through_power_cut: Whether that holds after a power cut as well, and not only after the
            death of the process.

    Yields:
        Where the context writes the new file.

    Raises:
        OSError: If it cannot be written.
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

    Args:
        path: Of the file.

    Yields:
        Where the context writes the new file.

    Raises:
        UserError: If it cannot be written, for instance on a full disk.
    """
    with written(path), replaced(path) as partial:
        yield partial


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file, written as UTF-8 with line ends unchanged.

    Args:
        path: Of the file.
        text: Its new content.

    Raises:
        UserError: If it cannot be written.
    """
    with replaced_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, and not only in the system's memory.

    Args:
        path: Of the file or folder.

    Raises:
        OSError: If something could not be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_sealed_json(
    path: Path, content: Mapping[str, Any], *, indent: int | None = None, beside: Sequence[str] = ()
) -> None:
    """Write a JSON object with the SHA-256 of its canonical form.

    A reader meets the old file or the whole new one.

    Args:
        path: Of the file.
        content: Ready for JSON.
        indent: As for `json.dumps`.
        beside: Names of files in the same folder whose checksums are kept too, where they exist.

    Raises:
        UserError: If it cannot be written.
    """
    sealed = dict(content)
    if beside:
        files = {name: path.parent / name for name in beside}
        sealed[BESIDE] = {name: file_sha256(file) for name, file in files.items() if file.is_file()}
    sealed[CHECKSUM] = _checksum(sealed)
    text = json.dumps(sealed, indent=indent, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text + "\n")


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Read the content of a file of `write_sealed_json`, without its own checksum.

    Args:
        path: Of the file.

    Returns:
        Its content.

    Raises:
        OSError: If it cannot be read.
        DamagedError: If it is no JSON object, has no checksum, or was changed since it was written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it cannot be read as JSON ({str(error)[:80]})") from None
    if not isinstance(content, dict):
        raise DamagedError("expected a JSON object")
    stored = content.pop(CHECKSUM, None)
    if stored is None:
        raise DamagedError(
            "it has no checksum: an older version of fl-dpbayes wrote it, or it is damaged"
        )
    if stored != _checksum(content):
        raise DamagedError("it was changed since it was written (its checksum differs)")
    return content


def check_beside(path: Path, content: Mapping[str, Any], name: str) -> None:
    """Compare a file beside a sealed one with the checksum in its content.

    A file that the content does not list is not compared.

    Args:
        path: Of the sealed file.
        content: Of the sealed file.
        name: Of the file beside it.

    Raises:
        OSError: If it cannot be read.
        DamagedError: If it is missing, or not as it was written.
    """
    stored = content.get(BESIDE, {}).get(name)
    if stored is None:
        return
    file = path.parent / name
    if not file.is_file():
        raise DamagedError("it is missing")
    if file_sha256(file) != stored:
        raise DamagedError("it was changed since it was written (its checksum differs)")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal (64 characters)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, whose keys are strings, in canonical form."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
