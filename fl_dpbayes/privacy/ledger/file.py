"""The SQLite file of a ledger, and the chain of entries in it.

Here is decided where the file may lie, who may read it, and when a change is on the disk. Each
entry is bound to all before it by a hash, so none can be changed or dropped.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import CHAIN_TABLE, BrokenChainError, append_row, connect, read_rows
from fl_dpbayes.files.hash_chain import FIRST_HEAD

Durability = Literal["full", "normal"]
FORMAT_VERSION = 2
KEY_BYTES = 32
LOCK_TIMEOUT_SECONDS = 600.0
RETRY_SECONDS = 0.01
# A log takes a mebibyte on the disk, and a tenth of that in memory.
LOG_PAGES = 250
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "fuse.ceph",
        "glusterfs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.gcsfuse",
        "davfs",
        "fuse.davfs2",
        "lustre",
        "beegfs",
        "gpfs",
        "vboxsf",
    }
)
FIRST_PREVIOUS = FIRST_HEAD
_TABLES = (
    CHAIN_TABLE,
    "CREATE TABLE reply (reservation INTEGER PRIMARY KEY, body BLOB NOT NULL);",
    "CREATE TABLE secret (key BLOB NOT NULL);",
)
HOW_TO_MAKE = "fl-dpbayes site ledger create SITE_FILE"
PUT_BACK = "put the ledger's newest copy back and leave its second place as it is"


class LedgerError(Exception):
    """The ledger could not be read or written, or is damaged.

    Nothing may be released without it.
    """


class LedgerPlaceError(UserError):
    """A ledger, or its second place, may not lie where the site file says."""


@dataclass(frozen=True)
class Entry:
    """One change of a ledger.

    Attributes:
        position: 1, 2, 3, ...
        previous: The head before, 64 zeros for the first.
        content: JSON, which always holds `kind` and `time`.
        head: SHA-256 of `previous`, a line feed and the content's text.
    """

    position: int
    previous: str
    content: dict[str, Any]
    head: str


def open_ledger_file(path: Path, durability: Durability, *, create: bool) -> sqlite3.Connection:
    """Open the database of a ledger, in write-ahead mode and without automatic transactions.

    Only its owner may read the file.

    Args:
        path: Of the file.
        durability: `full` waits for the disk at every change and survives a power cut; `normal`
            survives the death of the process.
        create: Whether a missing or empty file becomes a ledger.

    Returns:
        The connection, which the caller closes.

    Raises:
        UserError: If the file lies on a network file system, whose locks SQLite cannot trust.
        LedgerError: If it cannot be opened, is damaged or no ledger of this version, or is absent
            or empty and not to be made.
    """
    path = path.resolve()
    with ledger_errors():
        if not create:
            _require_made(path)
        _refuse_network(path)
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
        path.chmod(0o600)
        connection = connect(path, "rw", LOCK_TIMEOUT_SECONDS)
    try:
        with ledger_errors():
            if not create:
                _require_format(connection, path)
            _write_ahead(connection)
            # Without it nothing waits for the disk: what a dead process wrote is in the system's
            # memory.
            synchronous = "FULL" if durability == "full" else "OFF"
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            # Some builds of SQLite write zeros over all that is deleted. Here that protects
            # nothing: a bank on the same disk holds it as well.
            connection.execute("PRAGMA secure_delete = FAST")
            if create:
                with transaction(connection):
                    _create_tables(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock from the first line, so that what is read stays true until its commit."""
    with ledger_errors():
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def ledger_errors() -> Iterator[None]:
    """Turn errors of the database and the file into `LedgerError`."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(
            f"the ledger failed ({error}): see to its disk and permissions; if the file is "
            f"damaged, {PUT_BACK}"
        ) from error


def ledger_key(connection: sqlite3.Connection) -> bytes:
    """Return the secret key that a ledger was made with.

    Raises:
        LedgerError: If it is gone.
    """
    row = connection.execute("SELECT key FROM secret").fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != KEY_BYTES:
        raise LedgerError(f"the ledger's secret key is missing or was changed: {PUT_BACK}")
    return row[0]


def data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another connection has changed the file."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def append_entry(connection: sqlite3.Connection, kind: str, content: dict[str, Any]) -> Entry:
    """Append an entry in the caller's transaction.

    Its time tells chains apart that parted.

    Args:
        connection: To the ledger's file.
        kind: Of the entry.
        content: What it says beside its kind and time, ready for JSON.

    Returns:
        The entry.
    """
    content = {"kind": kind, "time": datetime.now(UTC).isoformat(), **content}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    row = append_row(connection, text)
    return Entry(position=row.position, previous=row.previous, content=content, head=row.head)


def read_chain(
    connection: sqlite3.Connection, after: int = 0, previous: str = FIRST_PREVIOUS
) -> list[Entry]:
    """Read the entries after a position, all by default, and check their links.

    Args:
        connection: To the ledger's file.
        after: Position of the last entry that is not read.
        previous: The head of that entry.

    Returns:
        The entries in the order of the chain.

    Raises:
        LedgerError: If an entry does not follow from the one before.
    """
    entries = []
    try:
        for row in read_rows(connection, after=after, previous=previous):
            content = json.loads(row.text)
            entries.append(
                Entry(position=row.position, previous=row.previous, content=content, head=row.head)
            )
    except BrokenChainError as error:
        raise LedgerError(
            f"entry {error.position} of the ledger does not follow from the one before: it was "
            f"changed: {PUT_BACK}"
        ) from None
    return entries


def cohorts_of(entries: Iterable[Entry]) -> list[str]:
    """Name the cohorts of a chain, in the order in which they were made."""
    return [entry.content["cohort"] for entry in entries if entry.content["kind"] == "cohort"]


def network_file_system(path: Path, mounts: str) -> str | None:
    """Name the network file system on which a path lies.

    Args:
        path: Absolute and without links.
        mounts: Text of /proc/self/mounts.

    Returns:
        A name such as `nfs4`; None if it lies on another file system.
    """
    holding = [point for point in _mount_points(mounts) if path.is_relative_to(point[0])]
    if not holding:
        return None
    # Of two mounts at one place the later one counts, and sorting keeps their order.
    _, kind = sorted(holding, key=lambda point: len(point[0].parts))[-1]
    return kind if kind in NETWORK_FILE_SYSTEMS else None


@lru_cache(maxsize=1)
def _mount_points(mounts: str) -> list[tuple[Path, str]]:
    """List where file systems are mounted, and the kind of each."""
    points = []
    for line in mounts.splitlines():
        if line.count(" ") > 1:
            _, place, kind, *_ = line.split(" ")
            # The kernel writes a blank in a mount point as \040.
            points.append((Path(place.encode().decode("unicode_escape")), kind))
    return points


def _refuse_network(path: Path) -> None:
    mounts = Path("/proc/self/mounts")
    kind = network_file_system(path, mounts.read_text()) if mounts.exists() else None
    if kind is not None:
        raise LedgerPlaceError(
            f"ledger {path} lies on a network file system ({kind}), whose locks are not safe: "
            "set ledger.path in the site file to a local disk"
        )


def _write_ahead(connection: sqlite3.Connection) -> None:
    # SQLite does not wait where two processes switch the mode of a new file at once: it tells one
    # of them that the file is busy.
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


def _require_made(path: Path) -> None:
    """Raise LedgerError for a file that is absent or empty: opening would make it a database."""
    if not path.exists() or not path.stat().st_size:
        problem = "is empty" if path.exists() else "does not exist"
        raise LedgerError(
            f"ledger {path} {problem}: no request makes one. Put its newest copy back; a new site "
            f"makes it once, with  {HOW_TO_MAKE}"
        )


def _require_format(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] != FORMAT_VERSION:
        raise LedgerError(
            f"{path} is a database but no ledger of format {FORMAT_VERSION}: set ledger.path in "
            "the site file to the ledger, or put its newest copy back; a new site makes one once, "
            f"with  {HOW_TO_MAKE}"
        )


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    # An empty database has neither tables nor a version.
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _require_format(connection, path)
        return
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(KEY_BYTES),))
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
