"""A chain of entries in an SQLite file: each is bound to all before it by a hash.

A site's ledger and a run's store are kept so.
"""

import os
import sqlite3
import stat
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
# Files that SQLite opens beside a database, by what their names add to its name.
_BESIDE = ("-journal", "-wal", "-shm")
# A journal with this end names a file, anywhere, which SQLite deletes once it has rolled back.
_NAMES_A_FILE = bytes.fromhex("d9d505f920a163d7")


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
        sqlite3.Error: If it cannot be opened, or a file beside it is none that a chain leaves.
    """
    _check_beside(path)
    address = f"{path.as_uri()}?mode={mode}"
    return sqlite3.connect(address, timeout=timeout, isolation_level=None, uri=True)


def _check_beside(path: Path) -> None:
    """Refuse what makes SQLite wait, or write or delete in another place, as soon as it opens.

    Raises:
        sqlite3.DatabaseError: It names the file.
    """
    for ending in _BESIDE:
        beside = path.with_name(path.name + ending)
        try:
            status = beside.lstat()
        except OSError:
            # SQLite says what keeps it from a file that is there.
            continue
        if not stat.S_ISREG(status.st_mode):
            raise sqlite3.DatabaseError(f"{beside.name} beside it is no plain file")
    journal = path.with_name(f"{path.name}-journal")
    if _names_a_file(journal):
        raise sqlite3.DatabaseError(f"{journal.name} beside it names a file to delete")


def _names_a_file(journal: Path) -> bool:
    """Say whether a journal, if it is there, names a file to delete."""
    try:
        file = journal.open("rb")
    except FileNotFoundError:
        # Another process may have ended its transaction since this one looked.
        return False
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_NAMES_A_FILE)))
        return file.read() == _NAMES_A_FILE


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
