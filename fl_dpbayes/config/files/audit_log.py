"""A site's audit log: a line of JSON for each request and each decision on it, kept at the site and never sent.

It needs nothing but Python, so that a broken installation has its lines too. docs/steward.md lists the keys.
"""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MOST_BYTES = 8 * 2**20
FILES_KEPT = 20


class AuditLogError(Exception):
    """The audit log cannot be written; nothing may leave without its line."""


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


def record(site_file: str | Path, event: Mapping[str, Any]) -> None:
    """Append a line to the audit log of a site file, with the time; on the disk when this returns.

    `event`: JSON values, under 1 MiB. A full log becomes `<name>.audit.1.jsonl`, which becomes `.2.`, and so on; the
    oldest of `FILES_KEPT` goes. Raises AuditLogError if the line cannot be written.
    """
    path = audit_log_path(Path(site_file))
    # It begins with a line end, so that it is whole even behind one that was cut off.
    text = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), **event}, allow_nan=False)
    line = f"\n{text}\n"
    try:
        # A ledger that is not made yet is told by its own code.
        if path.parent != Path(site_file).parent:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(path):
            if path.exists() and path.stat().st_size + len(line) > MOST_BYTES:
                for number in range(FILES_KEPT - 1, 0, -1):
                    if (older := _numbered(path, number - 1)).exists():
                        os.replace(older, _numbered(path, number))
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                if os.write(file, line.encode()) < len(line):
                    raise OSError("the line was cut off")
                os.fsync(file)
            finally:
                os.close(file)
    except OSError as error:
        remedy = "see to its disk and its permissions"
        raise AuditLogError(f"the audit log {path} cannot be written ({error}): {remedy}") from error


def read_audit_log(site_file: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a site's audit log, the oldest first; a line that a crash cut off is passed over.

    Raises OSError if a file cannot be read.
    """
    path = audit_log_path(site_file)
    for number in range(FILES_KEPT - 1, -1, -1):
        if (file := _numbered(path, number)).exists():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield event


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name.removesuffix('.jsonl')}.{number}.jsonl") if number else path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
