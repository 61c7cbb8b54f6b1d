"""A file of JSON lines that only grows, and the files that it lists.

Each line has the hash of itself and of all lines before it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.atomic_file import file_sha256, sync, written
from fl_dpbayes.files.record import Config

JOURNAL_FILE = "journal.jsonl"
REMEDY = (
    "put back a copy of it, or start anew with another --out (a new run spends privacy "
    "budget again; what was released is in privacy.csv and bank/)"
)
Entry = Mapping[str, Any]
_FIRST_HEAD = hashlib.sha256(b"fl-dpbayes journal 1").hexdigest()
# A line of the file is these, with the line's hash and its entry between them.
_BEFORE_HEAD = b'{"sha256":"'
_BEFORE_ENTRY = b'","entry":'
_LINE_END = b"}\n"


class JournalMark(Config):
    """A place in a journal.

    Attributes:
        bytes: How many are before it.
        head: Hash of the last line before it.
    """

    bytes: Annotated[int, Field(ge=0)] = 0
    head: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = _FIRST_HEAD


class Journal:
    """Appends to a journal after a mark; what stood beyond the mark goes with the next lines."""

    def __init__(self, path: Path, mark: JournalMark) -> None:
        """Append to the file at `path` after `mark`; nothing is written yet."""
        self._path = path
        self._mark = mark

    def append(self, entries: Iterable[Entry]) -> JournalMark:
        """Append JSON objects, one a line, and wait until they are on the disk.

        Args:
            entries: Ready for JSON.

        Returns:
            The place after them.

        Raises:
            UserError: If the file cannot be written; the mark then stays where it was.
        """
        lines = []
        head = self._mark.head
        for entry in entries:
            body = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()
            head = _hash(head, body)
            lines.append(_line(head, body))
        content = b"".join(lines)
        with written(self._path):
            self._path.touch()
            with self._path.open("r+b") as file:
                file.truncate(self._mark.bytes)
                file.seek(self._mark.bytes)
                file.write(content)
            sync(self._path)
        self._mark = JournalMark(bytes=self._mark.bytes + len(content), head=head)
        return self._mark


def read_journal(
    path: Path, until: JournalMark | None = None
) -> tuple[list[dict[str, Any]], JournalMark]:
    """Read a journal, comparing every line's hash.

    Args:
        path: Of the file; an absent one has no entries.
        until: The place up to which it must hold; None: as far as it does, since a crash may have
            cut it off.

    Returns:
        The entries, and the place after them.

    Raises:
        UserError: If the file cannot be read, or a line before the place was changed or is missing.
    """
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {REMEDY}") from None
    if until is not None:
        if len(content) < until.bytes:
            raise UserError(
                f"{path} is missing or was cut off: {len(content)} of {until.bytes} bytes: {REMEDY}"
            )
        content = content[: until.bytes]
    entries = []
    mark = JournalMark()
    for line in content.splitlines(keepends=True):
        body_start = len(_BEFORE_HEAD) + len(mark.head) + len(_BEFORE_ENTRY)
        body = line[body_start : -len(_LINE_END)]
        head = _hash(mark.head, body)
        if line != _line(head, body):
            break
        entries.append(json.loads(body))
        mark = JournalMark(bytes=mark.bytes + len(line), head=head)
    if until is not None and mark != until:
        raise UserError(f"line {len(entries) + 1} of {path} is not as it was written: {REMEDY}")
    return entries, mark


def file_entry(name: str, content: Path, replaces: str | None = None) -> dict[str, Any]:
    """Return a journal's entry for a file.

    Args:
        name: The file's path in the run directory, with `/`.
        content: Where its content lies now.
        replaces: Name of an earlier file whose place it takes.

    Returns:
        `file`, `bytes`, `sha256`, and `replaces` where there is one.
    """
    entry = {"file": name, "bytes": content.stat().st_size, "sha256": file_sha256(content)}
    if replaces is not None:
        entry["replaces"] = replaces
    return entry


def listed_files(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the last entry of each file that a journal's entries say is there, by its name."""
    listed: dict[str, Entry] = {}
    for entry in entries:
        if "file" in entry:
            listed[entry["file"]] = entry
            listed.pop(entry.get("replaces", ""), None)
    return listed


def check_files(folder: Path, listed: Mapping[str, Entry]) -> None:
    """Compare files of a run directory with a journal's entries.

    Args:
        folder: The run directory.
        listed: The entries by the files' names.

    Raises:
        UserError: At the first file that is missing, of another size or of other content.
    """
    for name, entry in listed.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise UserError(
                    f"{path} has {size} bytes, it was written with {entry['bytes']}: {REMEDY}"
                )
            if file_sha256(path) != entry["sha256"]:
                raise UserError(f"{path} is not as it was written (its SHA-256 differs): {REMEDY}")
        except FileNotFoundError:
            raise UserError(f"{path} is missing: {REMEDY}") from None
        except OSError as error:
            raise UserError(
                f"{path} cannot be read ({error.strerror or error}): {REMEDY}"
            ) from None


def check_no_others(folder: Path, pattern: str, listed: Mapping[str, Entry]) -> None:
    """Check that only listed files lie where a run directory's files are looked up.

    Args:
        folder: The run directory.
        pattern: The glob pattern by which they are looked up.
        listed: The entries by the files' names.

    Raises:
        UserError: Naming the first file that is not listed.
    """
    for path in sorted(folder.glob(pattern)):
        if path.relative_to(folder).as_posix() not in listed:
            raise UserError(f"{path} is no file of this run: move it out of the folder, then go on")


def _line(head: str, body: bytes) -> bytes:
    return _BEFORE_HEAD + head.encode() + _BEFORE_ENTRY + body + _LINE_END


def _hash(head: str, body: bytes) -> str:
    return hashlib.sha256(head.encode() + b"\n" + body).hexdigest()
