"""The chain of a ledger's entries: each is bound to all before it by a hash, so none can be changed or dropped."""

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fl_dpbayes.privacy.ledger.file import PUT_BACK, LedgerError

FIRST_PREVIOUS = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One change of a ledger.

    Attributes:
        position: 1, 2, 3, ...
        previous: head of the entry before, 64 zeros for the first.
        content: what changed; `kind` and `time` are always there.
        head: SHA-256 of `previous`, a line feed and the content's text.
    """

    position: int
    previous: str
    content: dict[str, Any]
    head: str


def append_entry(connection: sqlite3.Connection, kind: str, content: dict[str, Any]) -> Entry:
    """Append an entry, inside the caller's transaction.

    Args:
        connection: to the ledger's file.
        kind: what kind of change.
        content: JSON-ready values.

    Returns:
        The entry as written. Its time makes two chains that part from one another have different heads.
    """
    row = connection.execute("SELECT position, head FROM chain ORDER BY position DESC LIMIT 1").fetchone()
    position, previous = (row[0] + 1, row[1]) if row else (1, FIRST_PREVIOUS)
    content = {"kind": kind, "time": datetime.now(UTC).isoformat(), **content}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    head = _head(previous, text)
    connection.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (position, previous, text, head))
    return Entry(position, previous, content, head)


def read_chain(connection: sqlite3.Connection) -> list[Entry]:
    """Read all entries in turn and check each link.

    Args:
        connection: to the ledger's file.

    Returns:
        The entries.

    Raises:
        LedgerError: at the first entry that does not follow from the one before.
    """
    entries: list[Entry] = []
    previous = FIRST_PREVIOUS
    for position, stated, text, head in connection.execute("SELECT * FROM chain ORDER BY position"):
        if position != len(entries) + 1 or stated != previous or head != _head(previous, text):
            raise LedgerError(
                f"entry {position} of the ledger does not follow from the one before: it was changed: {PUT_BACK}"
            )
        entries.append(Entry(position, previous, json.loads(text), head))
        previous = head
    return entries


def _head(previous: str, text: str) -> str:
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()
