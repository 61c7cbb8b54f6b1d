"""A site's audit log: a line of JSON for each request and each decision on it, kept at the site and never sent.

Each line has a number and a hash over itself and all lines before it. It needs nothing but Python,
so that a broken installation has its lines too. docs/steward.md lists the keys.
"""

import fcntl
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MOST_BYTES = 8 * 2**20
FILES_KEPT = 20
MOST_LINE_BYTES = 2**20
# The decision of a line that is written before anything is paid for; another, which names it, says
# what became of it.
ASKED = "asked"
FIRST_HEAD = "0" * 64
# Numbers have 18 digits at most.
MOST_LINES = 10**18
_CHAINED = re.compile(r'(\{"number": ([1-9][0-9]{0,17}), .*), "head": "([0-9a-f]{64})"\}')
# What the mark of the last line takes, which is overwritten in one piece.
_MARK_BYTES = 128


class AuditLogError(Exception):
    """The audit log cannot be written; nothing may be paid for or leave without its line."""


@dataclass(frozen=True)
class AuditLine:
    """Which line of an audit log: its number, from 1, and the hash over it and all lines before it."""

    number: int
    head: str


@dataclass(frozen=True)
class WrittenText:
    """One non-empty line as it stands in a file of the log.

    `line` is None where it has no number and hash.
    """

    file: Path
    text: str
    line: AuditLine | None = None

    @property
    def event(self) -> dict[str, Any] | None:
        """Return what the line says, None where it is no JSON object."""
        try:
            event = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None

    def follows(self, head: str) -> bool:
        """Say whether the line's hash is that over its text and all before it, whose hash is `head`."""
        assert self.line is not None
        return self.line.head == _head(head, self.text[: -len(_tail(self.line.head))])


def audit_log_path(site_file: Path) -> Path:
    """Say where a site's audit log lies: beside the ledger that the site file names, else beside the site file.

    A site file that is missing or broken has one too, as far as it can be read.
    """
    folder = site_file.parent
    try:
        ledger = tomllib.loads(site_file.read_text(encoding="utf-8"))["ledger"]["path"]
        folder = (folder / ledger).parent
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return folder / f"{site_file.stem}.audit.jsonl"


def mark_path(path: Path) -> Path:
    """Say where the mark of a log's last line lies, which is also its lock."""
    return path.with_name(f".{path.name}.lock")


def record(site_file: str | Path, event: Mapping[str, Any]) -> AuditLine:
    """Append a line to the audit log of a site file, with number, time and hash.

    On the disk when this returns.

        head_n = SHA-256(head_(n-1), line feed, the line's text up to its head)

    The line is written first, then the mark beside the log that knows the last line: a crash leaves
    the log one line ahead of its mark, never behind.

    Args:
        site_file: The site file whose log it is.
        event: JSON values, under 1 MiB. A full log becomes `<name>.audit.1.jsonl`, which becomes `.2.`, and so on; the
            oldest of `FILES_KEPT` goes.

    Returns:
        The line's number and hash.

    Raises:
        AuditLogError: If the line cannot be written.
    """
    path = audit_log_path(Path(site_file))
    try:
        # A ledger that is not made yet is told by its own code.
        if path.parent != Path(site_file).parent:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(path) as mark:
            last = _last_line(path, mark)
            number = last.number + 1
            stated = {
                "number": number,
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                **event,
            }
            text = json.dumps(stated, allow_nan=False)[:-1]
            line = AuditLine(number, _head(last.head, text))
            _append(path, f"{text}{_tail(line.head)}")
            _write_mark(mark, line)
    except OSError as error:
        remedy = "see to its disk and its permissions"
        raise AuditLogError(
            f"the audit log {path} cannot be written ({error}): {remedy}"
        ) from error
    return line


def read_audit_log(site_file: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a site's audit log, the oldest first.

    A line that a crash cut off is passed over.

    Raises OSError if a file cannot be read.
    """
    for written in read_texts(site_file):
        event = written.event
        if event is not None:
            yield event


def read_texts(site_file: Path) -> Iterator[WrittenText]:
    """Read every non-empty line as it stands in the log's files, the oldest file first.

    OSError as `read_audit_log`.
    """
    path = audit_log_path(site_file)
    for number in range(FILES_KEPT - 1, -1, -1):
        file = numbered(path, number)
        if file.exists():
            for text in file.read_text(encoding="utf-8", errors="replace").split("\n"):
                if text:
                    yield WrittenText(file, text, _line_of(text))


def read_mark(site_file: Path) -> AuditLine | None:
    """Read which line the mark beside a site's log knows as the last.

    None where it is missing or unreadable.
    """
    try:
        content = mark_path(audit_log_path(site_file)).read_bytes()
    except FileNotFoundError:
        return None
    return _mark_of(content)


@contextmanager
def held_still(site_file: Path) -> Iterator[None]:
    """Let nobody write into a site's log while the context lasts, as far as there is a mark to lock."""
    try:
        mark = os.open(mark_path(audit_log_path(site_file)), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        yield
        return
    try:
        fcntl.flock(mark, fcntl.LOCK_SH)
        yield
    finally:
        os.close(mark)


def numbered(path: Path, number: int) -> Path:
    """Name the file of a log that was full so many files ago, 0 for the one that is written."""
    return path.with_name(f"{path.name.removesuffix('.jsonl')}.{number}.jsonl") if number else path


def is_full(size: int) -> bool:
    """Say whether a file of a log may have become an older one with so many bytes of lines."""
    return size > MOST_BYTES - MOST_LINE_BYTES


def _append(path: Path, text: str) -> None:
    # It begins with a line end, so that it is whole even behind one that was cut off.
    line = f"\n{text}\n".encode()
    if path.exists() and path.stat().st_size + len(line) > MOST_BYTES:
        for number in range(FILES_KEPT - 1, 0, -1):
            older = numbered(path, number - 1)
            if older.exists():
                os.replace(older, numbered(path, number))
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if os.write(file, line) < len(line):
            raise OSError("the line was cut off")
        os.fsync(file)
    finally:
        os.close(file)


def _last_line(path: Path, mark: int) -> AuditLine:
    """Find the line that the next one follows: the last one that stands, or that the mark knows, whichever is later.

    Where lines were removed, or the mark, a number is left out, so that the gap stays to be seen.
    """
    standing = _last_standing(path) or _last_standing(numbered(path, 1))
    marked = _mark_of(os.pread(mark, _MARK_BYTES, 0))
    if marked is None and standing is None:
        # From the first line on there is a mark: that it is missing is never a crash's doing.
        marked = AuditLine(0, FIRST_HEAD)
        _write_mark(mark, marked)
    if marked is None:
        assert standing is not None
        return AuditLine(standing.number + 1, FIRST_HEAD)
    if standing is not None and standing.number > marked.number:
        # Else a second crash at the same place would leave the log two lines ahead.
        _write_mark(mark, standing)
        return standing
    return marked


def _write_mark(mark: int, line: AuditLine) -> None:
    text = json.dumps({"number": line.number, "head": line.head})
    os.pwrite(mark, text.ljust(_MARK_BYTES).encode(), 0)
    os.fsync(mark)


def _last_standing(file: Path) -> AuditLine | None:
    if not file.exists():
        return None
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 2 * MOST_LINE_BYTES))
        texts = opened.read().decode("utf-8", errors="replace").split("\n")
    return next((line for text in reversed(texts) if (line := _line_of(text)) is not None), None)


def _line_of(text: str) -> AuditLine | None:
    match = _CHAINED.fullmatch(text)
    return AuditLine(int(match[2]), match[3]) if match else None


def _tail(head: str) -> str:
    return f', "head": "{head}"}}'


def _head(previous: str, text: str) -> str:
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def _mark_of(content: bytes) -> AuditLine | None:
    try:
        stated = json.loads(content)
        line = AuditLine(stated["number"], str(stated["head"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_number = type(line.number) is int and 0 <= line.number < MOST_LINES
    return line if is_number and re.fullmatch("[0-9a-f]{64}", line.head) else None


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the lock of a log; yield the open file of its mark."""
    mark = os.open(mark_path(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX)
        yield mark
    finally:
        os.close(mark)
