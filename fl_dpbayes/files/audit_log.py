"""A site's audit log: a line of JSON for each request and each decision on it.

It is kept at the site and never sent. Each line has a number and a hash over itself and all lines
before it. It needs nothing but Python, so that a broken installation has its lines too.
docs/steward.md lists the keys.
"""

import errno
import fcntl
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fl_dpbayes.files.hash_chain import FIRST_HEAD, chain_head

MOST_BYTES = 8 * 2**20
FILES_KEPT = 20
MOST_LINE_BYTES = 2**20
# The decision of a line that is written before anything is paid for; another, which names it, says
# what became of it.
ASKED = "asked"
# Numbers have 18 digits at most.
MOST_LINES = 10**18
_CHAINED = re.compile(r'(\{"number": ([1-9][0-9]{0,17}), .*), "head": "([0-9a-f]{64})"\}')
# What the mark of the last line takes, which is overwritten in one piece.
_MARK_BYTES = 128


class AuditLogError(Exception):
    """The audit log cannot be written; nothing may be paid for or leave without its line."""


@dataclass(frozen=True)
class AuditLine:
    """Which line of an audit log.

    Attributes:
        number: From 1.
        head: Hash over it and all lines before it.
    """

    number: int
    head: str


@dataclass(frozen=True)
class LogText:
    """One non-empty line as it stands in a file of the log.

    Attributes:
        file: In which it stands.
        text: All of it.
        line: Its number and hash; None where it has none.
    """

    file: Path
    text: str
    line: AuditLine | None = None

    @property
    def event(self) -> dict[str, Any] | None:
        """What the line says; None where it is no JSON object."""
        try:
            event = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None

    def follows(self, head: str) -> bool:
        """Say whether the line's hash is that over its text and all before it, hashed to `head`."""
        assert self.line is not None
        text_before_head = self.text[: -len(_tail(self.line.head))]
        return self.line.head == chain_head(head, text_before_head)


def audit_log_path(site_file: Path) -> Path:
    """Say where a site's audit log lies.

    It is beside the ledger that the site file names, else beside the site file. A site file that is
    missing or broken has one too, as far as it can be read.
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

        head_n = SHA-256(head_(n-1), line feed, the line's text up to its head)

    It is on the disk when this returns. The line is written first, then the mark beside the log
    that knows the last line: a crash leaves the log one line ahead of its mark, never behind.

    Args:
        site_file: The site file whose log it is.
        event: JSON values, under 1 MiB. A full log becomes `<name>.audit.1.jsonl`, which becomes
            `.2.`, and so on; the oldest of `FILES_KEPT` goes.

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
            time = datetime.now(UTC).isoformat(timespec="seconds")
            content = json.dumps({"number": number, "time": time, **event}, allow_nan=False)
            text = content.removesuffix("}")
            line = AuditLine(number, chain_head(last.head, text))
            _append(path, f"{text}{_tail(line.head)}")
            _write_mark(mark, line)
    except OSError as error:
        raise AuditLogError(
            f"the audit log {path} cannot be written ({error}): see to its disk and its permissions"
        ) from error
    return line


def read_audit_log(site_file: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a site's audit log, passing over those that a crash cut off.

    Args:
        site_file: The site file whose log it is.

    Yields:
        What each line says, the oldest first.

    Raises:
        OSError: If a file cannot be read.
    """
    for text in read_texts(site_file):
        event = text.event
        if event is not None:
            yield event


def read_texts(site_file: Path) -> Iterator[LogText]:
    """Read every non-empty line as it stands in the log's files.

    Args:
        site_file: The site file whose log it is.

    Yields:
        The lines, the oldest first.

    Raises:
        OSError: If a file cannot be read.
    """
    path = audit_log_path(site_file)
    for number in range(FILES_KEPT - 1, -1, -1):
        file = numbered(path, number)
        if file.exists():
            with os.fdopen(_open_regular(file, os.O_RDONLY), "rb") as stream:
                texts = stream.read().decode("utf-8", errors="replace").split("\n")
            for text in texts:
                if text:
                    yield LogText(file, text, _line_of(text))


def read_mark(site_file: Path) -> AuditLine | None:
    """Read which line the mark beside a site's log knows as the last.

    Args:
        site_file: The site file whose log it is.

    Returns:
        The line; None where the mark is missing or unreadable.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        mark = _open_regular(mark_path(audit_log_path(site_file)), os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(mark, "rb") as stream:
        return _parse_mark(stream.read())


@contextmanager
def held_still(site_file: Path) -> Iterator[None]:
    """Let nobody write into a site's log while the context lasts, if there is a mark to lock."""
    try:
        mark = _open_regular(mark_path(audit_log_path(site_file)), os.O_RDONLY | os.O_NOFOLLOW)
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
    if number == 0:
        return path
    return path.with_name(f"{path.name.removesuffix('.jsonl')}.{number}.jsonl")


def is_full(size: int) -> bool:
    """Say whether a file of a log may have become an older one with so many bytes of lines."""
    return size > MOST_BYTES - MOST_LINE_BYTES


def _open_regular(path: Path, flags: int) -> int:
    """Open a file of the log, or raise OSError: a pipe in its place would wait for a reader."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def _append(path: Path, text: str) -> None:
    # It begins with a line end, so that it is whole even behind one that was cut off.
    line = f"\n{text}\n".encode()
    if path.exists() and path.stat().st_size + len(line) > MOST_BYTES:
        _rotate(path)
    file = _open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    try:
        if os.write(file, line) < len(line):
            raise OSError("the line was cut off")
        os.fsync(file)
    finally:
        os.close(file)


def _rotate(path: Path) -> None:
    for number in range(FILES_KEPT - 1, 0, -1):
        newer = numbered(path, number - 1)
        if newer.exists():
            os.replace(newer, numbered(path, number))


def _last_line(path: Path, mark: int) -> AuditLine:
    """Find the line that the next one follows: the log's last, or the mark's if that is later.

    Where lines were removed, or the mark, a number is left out, so that the gap stays to be seen.
    """
    last_in_log = _last_line_in(path) or _last_line_in(numbered(path, 1))
    last_in_mark = _parse_mark(os.pread(mark, _MARK_BYTES, 0))
    if last_in_mark is None:
        if last_in_log is not None:
            # From the first line on there is a mark: no crash makes it go missing.
            return AuditLine(last_in_log.number + 1, FIRST_HEAD)
        last_in_mark = AuditLine(0, FIRST_HEAD)
        _write_mark(mark, last_in_mark)
    if last_in_log is not None and last_in_log.number > last_in_mark.number:
        # Else a second crash at the same place would leave the log two lines ahead.
        _write_mark(mark, last_in_log)
        return last_in_log
    return last_in_mark


def _last_line_in(file: Path) -> AuditLine | None:
    if not file.exists():
        return None
    with os.fdopen(_open_regular(file, os.O_RDONLY), "rb") as stream:
        stream.seek(max(0, file.stat().st_size - 2 * MOST_LINE_BYTES))
        texts = stream.read().decode("utf-8", errors="replace").split("\n")
    for text in reversed(texts):
        line = _line_of(text)
        if line is not None:
            return line
    return None


def _line_of(text: str) -> AuditLine | None:
    match = _CHAINED.fullmatch(text)
    return AuditLine(number=int(match[2]), head=match[3]) if match else None


def _tail(head: str) -> str:
    """Return how a line ends, behind the text that is hashed."""
    return f', "head": "{head}"}}'


def _write_mark(mark: int, line: AuditLine) -> None:
    text = json.dumps({"number": line.number, "head": line.head})
    os.pwrite(mark, text.ljust(_MARK_BYTES).encode(), 0)
    os.fsync(mark)


def _parse_mark(content: bytes) -> AuditLine | None:
    try:
        fields = json.loads(content)
        number = fields["number"]
        head = str(fields["head"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    # A boolean is no number.
    if type(number) is not int or not 0 <= number < MOST_LINES:
        return None
    if not re.fullmatch("[0-9a-f]{64}", head):
        return None
    return AuditLine(number, head)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the lock of a log; yield the open file of its mark."""
    mark = _open_regular(mark_path(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX)
        yield mark
    finally:
        os.close(mark)
