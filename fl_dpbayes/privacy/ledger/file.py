"""The SQLite file of a ledger: where it may lie, who may read it, when it is on disk.

And the chain of entries in it.

Each entry is bound to all before it by a hash, so none can be changed or dropped.
"""

import hashlib
import json
import resource
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fl_dpbayes.errors import UserError

Durability = Literal["full", "normal"]
FORMAT_VERSION = 2
KEY_BYTES = 32
LOCK_TIMEOUT_SECONDS = 600.0
RETRY_SECONDS = 0.01
LOG_PAGES, MOST_LOGS = 250, 1000  # a mebibyte each on the disk, a tenth of that in memory
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
FIRST_PREVIOUS = "0" * 64
_TABLES = """
CREATE TABLE chain (position INTEGER PRIMARY KEY, previous TEXT NOT NULL, content TEXT NOT NULL, head TEXT NOT NULL);
CREATE TABLE reply (reservation INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE secret (key BLOB NOT NULL);
"""
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
    """One change of a ledger, at position 1, 2, 3, ....

    `kind` and `time` are always in its content.

    `head` is the SHA-256 of `previous` (the head before, 64 zeros for the first), a line feed and
    the content's text.
    """

    position: int
    previous: str
    content: dict[str, Any]
    head: str


def open_ledger_file(path: Path, durability: Durability, *, create: bool) -> sqlite3.Connection:
    """Open the database of a ledger, in write-ahead mode, readable by its owner only, without automatic transactions.

    `full` waits for the disk at every change and survives a power cut; `normal` survives the death
    of the process. `create` makes a missing or empty file into a ledger. Raises UserError if the
    file lies on a network file system, whose locks SQLite cannot trust. Raises LedgerError if it
    cannot be opened, is damaged or no ledger of this version, or is absent or empty and not to be
    made.
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
        address = f"{path.as_uri()}?mode=rw"
        connection = sqlite3.connect(
            address, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, uri=True
        )
    try:
        with ledger_errors():
            if not create:
                _require_format(connection, path)
            _write_ahead(connection)
            connection.execute(f"PRAGMA synchronous = {durability.upper()}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            # Some builds of SQLite write zeros over all that is deleted, here what a bank on this
            # disk holds as well.
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
    """Hold the write lock from the first line, so that what is read stays true until it is acted on."""
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
        said = f"the ledger failed ({error}): see to its disk and permissions"
        raise LedgerError(f"{said}; if the file is damaged, {PUT_BACK}") from error


def ledger_key(connection: sqlite3.Connection) -> bytes:
    """Return the secret key that a ledger was made with; raises LedgerError if it is gone."""
    row = connection.execute("SELECT key FROM secret").fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != KEY_BYTES:
        raise LedgerError(f"the ledger's secret key is missing or was changed: {PUT_BACK}")
    return row[0]


def data_version(connection: sqlite3.Connection) -> int:
    """Return a number that is another one once another connection has changed the file."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def append_entry(connection: sqlite3.Connection, kind: str, content: dict[str, Any]) -> Entry:
    """Append an entry of JSON-ready content in the caller's transaction.

    Its time tells chains apart that parted.
    """
    row = connection.execute(
        "SELECT position, head FROM chain ORDER BY position DESC LIMIT 1"
    ).fetchone()
    position, previous = (row[0] + 1, row[1]) if row else (1, FIRST_PREVIOUS)
    content = {"kind": kind, "time": datetime.now(UTC).isoformat(), **content}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    head = _head(previous, text)
    connection.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (position, previous, text, head))
    return Entry(position, previous, content, head)


def read_chain(
    connection: sqlite3.Connection, after: int = 0, previous: str = FIRST_PREVIOUS
) -> list[Entry]:
    """Read the entries after a position, whose head is `previous`, all by default.

    LedgerError at a broken link.
    """
    entries: list[Entry] = []
    # One before the first is found as well.
    rows = connection.execute(
        "SELECT * FROM chain WHERE position > ? ORDER BY position", (after or -(2**63),)
    )
    for position, stated, text, head in rows:
        if (
            position != after + len(entries) + 1
            or stated != previous
            or head != _head(previous, text)
        ):
            said = f"entry {position} of the ledger does not follow from the one before"
            raise LedgerError(f"{said}: it was changed: {PUT_BACK}")
        entries.append(Entry(position, previous, json.loads(text), head))
        previous = head
    return entries


def cohorts_of(entries: Iterable[Entry]) -> list[str]:
    """Name the cohorts of a chain, in the order in which they were made."""
    return [entry.content["cohort"] for entry in entries if entry.content["kind"] == "cohort"]


def network_file_system(path: Path, mounts: str) -> str | None:
    """Name the network file system, such as `nfs4`, of an absolute path without links, by /proc/self/mounts' text."""
    best, kind, parts = -1, "", path.parts
    for point, its_kind in _mount_points(mounts):
        if parts[: len(point)] == point and len(point) >= best:
            best, kind = len(point), its_kind
    return kind if kind in NETWORK_FILE_SYSTEMS else None


@lru_cache(maxsize=1)
def _mount_points(mounts: str) -> list[tuple[tuple[str, ...], str]]:
    lines = (line.split(" ") for line in mounts.splitlines() if line.count(" ") > 1)
    # The kernel writes a blank in a mount point as \040.
    return [
        (Path(fields[1].encode().decode("unicode_escape")).parts, fields[2]) for fields in lines
    ]


class KeptLogs(threading.local):
    """Connections that keep simulated ledgers' write-ahead logs, each thread its own.

    Where the last one is closed, at every message, SQLite folds the log in and removes it: three
    waits for the disk. A log that is kept survives the death of the process as one does between two
    changes.
    """

    _most, _connections = 0, dict[Path, sqlite3.Connection]()

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Keep the logs of as many ledgers as open files allow, until the context ends."""
        self._most, self._connections = (
            min(MOST_LOGS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8),
            {},
        )
        try:
            yield
        finally:
            self._most = 0
            while self._connections:
                self._connections.popitem()[1].close()

    def close(self, path: Path, connection: sqlite3.Connection) -> None:
        """Close a connection, or keep it if it is the first of its file."""
        # A log that cannot be kept costs time alone.
        with closing(connection), suppress(sqlite3.Error):
            if path not in self._connections and len(self._connections) < self._most:
                # A fresh one: statements that the other has prepared hold the last reply that was
                # bound to them.
                kept = sqlite3.connect(
                    f"{path.resolve().as_uri()}?mode=rw", isolation_level=None, uri=True
                )
                self._connections[path] = kept
                kept.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()


KEPT_LOGS = KeptLogs()


def _head(previous: str, text: str) -> str:
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def _refuse_network(path: Path) -> None:
    mounts = Path("/proc/self/mounts")
    kind = network_file_system(path, mounts.read_text()) if mounts.exists() else None
    if kind is not None:
        raise LedgerPlaceError(
            f"ledger {path} lies on a network file system ({kind}), whose locks are not safe: "
            "set ledger.path in the site file to a local disk"
        )


def _write_ahead(connection: sqlite3.Connection) -> None:
    # SQLite does not wait where two processes switch the mode of a new file at once: one is told
    # that it is busy.
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


def _require_made(path: Path) -> None:
    # Opening it would turn an empty file into a database.
    if not path.exists() or not path.stat().st_size:
        raise LedgerError(
            f"ledger {path} {'is empty' if path.exists() else 'does not exist'}: no request makes "
            "one. Put its newest "
            f"copy back; a new site makes it once, with  {HOW_TO_MAKE}"
        )


def _require_format(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] != FORMAT_VERSION:
        raise LedgerError(
            f"{path} is a database but no ledger of format {FORMAT_VERSION}: set ledger.path in "
            "the site file to the "
            f"ledger, or put its newest copy back; a new site makes one once, with  {HOW_TO_MAKE}"
        )


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    # An empty database has neither tables nor a version.
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _require_format(connection, path)
        return
    for statement in _TABLES.strip().splitlines():
        connection.execute(statement)
    connection.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(KEY_BYTES),))
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
