"""A chain of entries in an SQLite file: each is bound to all before it by a hash.

A site's ledger and a run's store are kept so.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fl_dpbayes.files.hash_chain import FIRST_HEAD, chain_head

CHAIN_TABLE = (
    "CREATE TABLE chain (position INTEGER PRIMARY KEY, previous TEXT NOT NULL, "
    "content TEXT NOT NULL, head TEXT NOT NULL)"
)
# SQLite's positions start here, so that an entry before the first one is read, and noticed, too.
_LEAST_POSITION = -(2**63)


class BrokenChainError(ValueError):
    """An entry does not follow from the one before.

    Attributes:
        position: Of the entry.
    """

    def __init__(self, position: int) -> None:
        super().__init__(f"entry {position} does not follow from the one before")
        self.position = position


@dataclass(frozen=True)
class ChainRow:
    """One entry as it stands in the file.

    Attributes:
        position: 1, 2, 3, ...
        previous: The head before, 64 zeros for the first.
        text: What it says, as JSON.
        head: SHA-256 of `previous`, a line feed and the text.
    """

    position: int
    previous: str
    text: str
    head: str


def connect(path: Path, mode: Literal["rw", "ro", "rwc"], timeout: float) -> sqlite3.Connection:
    """Connect to a database file without automatic transactions.

    Args:
        path: Of the file, absolute.
        mode: `ro` to read a file that is there, `rw` to change it, `rwc` to make it if need be.
        timeout: Seconds to wait for another process's lock.

    Returns:
        The connection, which the caller closes.

    Raises:
        sqlite3.Error: If it cannot be opened.
    """
    address = f"{path.as_uri()}?mode={mode}"
    return sqlite3.connect(address, timeout=timeout, isolation_level=None, uri=True)


def append_row(connection: sqlite3.Connection, text: str) -> ChainRow:
    """Append an entry in the caller's transaction.

    Args:
        connection: To the file.
        text: What it says, as JSON.

    Returns:
        The entry.
    """
    last = connection.execute(
        "SELECT position, head FROM chain ORDER BY position DESC LIMIT 1"
    ).fetchone()
    last_position, previous = last or (0, FIRST_HEAD)
    row = ChainRow(
        position=last_position + 1,
        previous=previous,
        text=text,
        head=chain_head(previous, text),
    )
    connection.execute(
        "INSERT INTO chain VALUES (?, ?, ?, ?)", (row.position, row.previous, row.text, row.head)
    )
    return row


def read_rows(
    connection: sqlite3.Connection, after: int = 0, previous: str = FIRST_HEAD
) -> Iterator[ChainRow]:
    """Read the entries after a position, all by default, and check their links.

    Args:
        connection: To the file.
        after: Position of the last entry that is not read.
        previous: The head of that entry.

    Yields:
        The entries in the order of the chain.

    Raises:
        BrokenChainError: If an entry does not follow from the one before.
    """
    rows = connection.execute(
        "SELECT position, previous, content, head FROM chain WHERE position > ? ORDER BY position",
        (after or _LEAST_POSITION,),
    )
    for expected_position, fields in enumerate(rows, start=after + 1):
        row = ChainRow(*fields)
        follows = row.position == expected_position and row.previous == previous
        if not follows or row.head != chain_head(previous, row.text):
            raise BrokenChainError(row.position)
        yield row
        previous = row.head
