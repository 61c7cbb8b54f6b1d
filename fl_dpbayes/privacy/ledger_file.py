"""The SQLite file of a ledger: where it may lie, who may read it, when it is on disk."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fl_dpbayes.errors import UserError

Durability = Literal["full", "normal"]
FORMAT_VERSION = 1
LOCK_TIMEOUT_SECONDS = 600.0
RETRY_SECONDS = 0.01
NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs",
    "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "davfs", "fuse.davfs2", "lustre", "beegfs", "gpfs", "vboxsf",
})  # fmt: skip
_TABLES = """
CREATE TABLE chain (position INTEGER PRIMARY KEY, previous TEXT NOT NULL, content TEXT NOT NULL, head TEXT NOT NULL);
CREATE TABLE reply (reservation INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""


class LedgerError(Exception):
    """The ledger could not be read or written, or is damaged; nothing may be released without it."""


def open_ledger_file(path: Path, durability: Durability, *, create: bool) -> sqlite3.Connection:
    """Open the database of a ledger, in write-ahead mode, readable by its owner only.

    `full` waits for the disk at every change and survives a power cut; `normal` survives the death of the process.

    Args:
        path: the file.
        durability: when a change counts as written.
        create: whether a missing file is made.

    Returns:
        A connection without automatic transactions, holding the two tables.

    Raises:
        UserError: if the file is absent and not to be made, lies on a network file system (whose locks SQLite cannot
            trust), or is no ledger of this version.
        LedgerError: if it cannot be opened or is damaged.
    """
    path = path.resolve()
    if not create and not path.exists():
        raise UserError(f"ledger {path} does not exist: it is made by the first request that a site accepts")
    with ledger_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_network(path)
        if not path.exists():
            path.touch(mode=0o600)
        path.chmod(0o600)
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    try:
        with ledger_errors():
            _write_ahead(connection)
            connection.execute(f"PRAGMA synchronous = {durability.upper()}")
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
        raise LedgerError(f"the ledger failed: {error}") from error


def network_file_system(path: Path, mounts: str) -> str | None:
    """Name the network file system that a path lies on.

    Args:
        path: absolute, without links.
        mounts: the text of /proc/self/mounts.

    Returns:
        Its type, such as `nfs4`; None for a local one.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # The kernel writes a blank in a mount point as \040.
        point = Path(fields[1].encode().decode("unicode_escape"))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def _refuse_network(path: Path) -> None:
    mounts = Path("/proc/self/mounts")
    kind = network_file_system(path, mounts.read_text()) if mounts.exists() else None
    if kind is not None:
        raise UserError(f"ledger {path} lies on a network file system ({kind}), whose locks are not safe: "
                        "set ledger.path in the site file to a local disk")  # fmt: skip


def _write_ahead(connection: sqlite3.Connection) -> None:
    # SQLite does not wait where two processes switch the mode of a new file at once: one is told that it is busy.
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


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == FORMAT_VERSION:
        return
    if version != 0 or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise UserError(
            f"{path} is a database but no ledger of format {FORMAT_VERSION}: set ledger.path to another file"
        )
    for statement in _TABLES.strip().splitlines():
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
