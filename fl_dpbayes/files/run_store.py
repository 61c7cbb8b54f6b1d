"""The one file of a run: what happened, entry by entry, and the arrays that came with it.

An entry and its arrays are one transaction, and its hash covers all entries and arrays so far.
Whoever opens the file checks all of it: it may be damaged, or come from a stranger.
"""

import errno
import hashlib
import json
import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, TypeAdapter

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.array_values import check_values
from fl_dpbayes.files.atomic_file import written
from fl_dpbayes.files.hash_chain import FIRST_HEAD, chain_head
from fl_dpbayes.files.record import Config
from fl_dpbayes.files.sqlite_chain import CHAIN_TABLE, append_row, connect, read_rows

STORE_FILE = "run.sqlite"
REMEDY = (
    "put back a copy of it, or start anew with another --out (a new run spends privacy "
    f"budget again; what was released is in privacy.csv and {STORE_FILE})"
)
# Files of versions that kept a run in many files.
_EARLIER_FILES = ("journal.jsonl", "checkpoint.safetensors")
_TABLES = {
    "arrays": "CREATE TABLE arrays (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, owner TEXT "
    "NOT NULL, chain INTEGER NOT NULL, round INTEGER NOT NULL, layout TEXT NOT NULL, sha256 TEXT "
    "NOT NULL, body BLOB NOT NULL)",
    "arrays_by_owner": "CREATE INDEX arrays_by_owner ON arrays (kind, owner, chain, round)",
    "chain": CHAIN_TABLE,
}
_COLUMNS = "kind, owner, chain, round, layout, sha256"
_COLUMN_TYPES = [str, str, int, int, str, str]
_SAMPLES = "samples"
# Of these the newest of each owner and chain is there alone.
_STATE = "state"
# What a store says of itself; the application is "flDP".
_IDENTITY = {"journal_mode": "delete", "application_id": 0x666C4450, "user_version": 1}
_SETTINGS = (
    # What a file from a stranger could make SQLite do.
    "trusted_schema = OFF",
    "cell_size_check = ON",
    "mmap_size = 0",
    # A file may ask for as much memory as it is large.
    "cache_size = -2000",
    # FULL, and the folder too: after a power cut a round that sites were told of is there.
    "synchronous = EXTRA",
    "temp_store = MEMORY",
    # Some builds of SQLite write zeros over all that is deleted.
    "secure_delete = OFF",
)
# In all statements before the file is checked. A file that holds one page many times could keep
# SQLite busy for years with its tables' names; those of a store need a few hundred.
_MOST_STEPS = 100_000
_LOCK_SECONDS = 60.0
_CHUNK_BYTES = 2**20
# Of a text, or of the arrays of a row: a reply has 512 MiB at most.
_MOST_BYTES = 2**29 + 2**20
# Of what an error says.
_MOST_LETTERS = 200
_DAMAGES = (sqlite3.Error, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)


class _ArrayForm(Config):
    """Name, type and shape of an array in a row's body, one after the other."""

    name: Annotated[str, Field(max_length=2**10)]
    type: Literal["float32", "float64"]
    shape: Annotated[tuple[NonNegativeInt, ...], Field(max_length=32)]

    @property
    def bytes(self) -> int:
        """How many the array takes."""
        return np.dtype(self.type).itemsize * math.prod(self.shape)


_LAYOUT = TypeAdapter(tuple[_ArrayForm, ...])


@dataclass(frozen=True)
class StoredArrays:
    """Named arrays that were put together, left in the file.

    Attributes:
        store: In whose file they are.
        number: Of their row.
        chain: Number of the chain that they belong to.
        round: In which they came.
        layout: Names, types and shapes, as the row has them.
    """

    store: "RunStore"
    number: int
    chain: int
    round: int
    layout: str

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of an array -> its shape, as the row has it; a UserError if that is damaged."""
        with self.store.reading():
            return {form.name: form.shape for form in _LAYOUT.validate_json(self.layout)}

    def read(self, names: Collection[str] | None = None) -> dict[str, npt.NDArray]:
        """Read arrays into memory.

        Args:
            names: Which; None for all.

        Returns:
            The arrays by name, all of whose values are finite and within float32's range.

        Raises:
            UserError: If they are damaged.
        """
        arrays: dict[str, npt.NDArray] = {}
        with self.store.reading(), self.store.opened_body(self.number) as body:
            forms = _LAYOUT.validate_json(self.layout)
            if sum(form.bytes for form in forms) != len(body):
                raise ValueError("arrays have another size than their row says")
            start = 0
            for form in forms:
                if names is None or form.name in names:
                    body.seek(start)
                    # Writable, unlike bytes.
                    content = bytearray(body.read(form.bytes))
                    array = np.frombuffer(content, form.type).reshape(form.shape)
                    check_values(form.name, array)
                    arrays[form.name] = array
                start += form.bytes
        return arrays


class RunStore:
    """The store of a run directory: a context manager, not shared between threads.

    Attributes:
        path: Of the file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Take over an open connection: see `make` and `open`."""
        self.path = path
        self._connection = connection
        self._head = FIRST_HEAD
        # Digest of all rows of samples, as of the last entry and with those put since.
        self._committed_samples = ""
        self._samples = ""

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Make the store of a run directory, or open the one that is there.

        Raises:
            UserError: If it cannot be made, is damaged, or an older version's run is there.
        """
        refuse_earlier_run(folder)
        path = folder / STORE_FILE
        with _writing(path):
            connection = connect(path.resolve(), "rwc", _LOCK_SECONDS)
            try:
                _make_tables(connection)
            finally:
                connection.close()
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path, *, to_read: bool = False) -> Self:
        """Open the store of a run directory, and check all of it.

        Args:
            folder: The run directory.
            to_read: Nothing can then be changed through it.

        Returns:
            The open store.

        Raises:
            UserError: If it is missing, damaged or of an older version, or another process holds
                it.
        """
        require_store(folder)
        path = folder / STORE_FILE
        with _reading(path):
            connection = connect(path.resolve(), "ro" if to_read else "rw", _LOCK_SECONDS)
            store = cls(path, connection)
            try:
                _prepare(connection)
                store._check()
            except BaseException:
                connection.close()
                raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was put since the last entry goes."""
        self._connection.close()

    # Entries.

    def append(self, **content: object) -> None:
        """Append an entry; with all that was put since the last one it is then on the disk.

        Args:
            **content: What it says by key, ready for JSON.

        Raises:
            UserError: If it cannot be written; nothing since the last entry is then kept.
        """
        with self._changing():
            digests = {"samples": self._samples, "states": self._states_digest()}
            content = {**content, "arrays": digests}
            text = json.dumps(content, separators=(",", ":"), allow_nan=False)
            row = append_row(self._connection, text)
            self._connection.execute("COMMIT")
        self._head = row.head
        self._committed_samples = self._samples

    def values(self, key: str) -> list[Any]:
        """Return what the entries say under a key, those that say it, in their order."""
        with self.reading():
            entries = [json.loads(row.text) for row in read_rows(self._connection)]
        return [entry[key] for entry in entries if key in entry]

    def latest(self, key: str) -> Any:
        """Return what the last entry that has a key says under it; None if there is none."""
        values = self.values(key)
        return values[-1] if values else None

    def clear(self) -> None:
        """Let the next entry be the first one again.

        Raises:
            UserError: If there are arrays: a run has begun, which must not be lost.
        """
        with self._changing():
            if self._connection.execute("SELECT count(*) FROM arrays").fetchone()[0]:
                raise UserError(
                    f"{self.path.parent} holds a run that has begun: give another folder"
                )
            self._connection.execute("DELETE FROM chain")

    # Arrays.

    def add_samples(
        self, owner: str, chain: int, round_number: int, arrays: Mapping[str, npt.NDArray]
    ) -> None:
        """Put arrays that stay for ever, with the next entry.

        Args:
            owner: Whose they are.
            chain: Number of the chain that they belong to.
            round_number: In which they came.
            arrays: float32 or float64, by name.

        Raises:
            UserError: If they cannot be written; nothing since the last entry is then kept.
        """
        with self._changing():
            row = self._insert((_SAMPLES, owner, chain, round_number), arrays)
            self._samples = _next_digest(self._samples, row)

    def replace_state(
        self, owner: str, chain: int, round_number: int, arrays: Mapping[str, npt.NDArray]
    ) -> None:
        """Put arrays in the place of those that the owner's chain had, with the next entry.

        Args:
            owner: Whose they are.
            chain: Number of the chain.
            round_number: In which they came.
            arrays: float32 or float64, by name.

        Raises:
            UserError: As by `add_samples`.
        """
        with self._changing():
            self._connection.execute(
                "DELETE FROM arrays WHERE kind = ? AND owner = ? AND chain = ?",
                (_STATE, owner, chain),
            )
            self._insert((_STATE, owner, chain, round_number), arrays)

    def samples(self, owner: str) -> list[StoredArrays]:
        """Return an owner's samples in the order of chains and rounds."""
        return self._stored(_SAMPLES, owner)

    def states(self, owner: str) -> list[StoredArrays]:
        """Return an owner's newest states in the order of chains."""
        return self._stored(_STATE, owner)

    def state(self, owner: str, chain: int) -> StoredArrays | None:
        """Return the newest state of one of an owner's chains; None before the first."""
        return next((state for state in self.states(owner) if state.chain == chain), None)

    def opened_body(self, number: int) -> sqlite3.Blob:
        """Open the body of a row, which a context then closes."""
        return self._connection.blobopen("arrays", "body", number, readonly=True)

    def reading(self) -> AbstractContextManager[None]:
        """Say in one line what is wrong with the file where something in it is not as it must be.

        Returns:
            A context, which turns any error of the database, and those by which a value is refused,
            into a UserError.
        """
        return _reading(self.path)

    # Inside.

    def _insert(
        self, place: tuple[str, str, int, int], arrays: Mapping[str, npt.NDArray]
    ) -> Sequence[object]:
        """Insert a row, array by array, and return what it says of them."""
        layout = [
            {"name": name, "type": array.dtype.name, "shape": array.shape}
            for name, array in arrays.items()
        ]
        contents = [np.ascontiguousarray(array).data for array in arrays.values() if array.size]
        hasher = hashlib.sha256()
        for content in contents:
            hasher.update(content)
        row = (*place, json.dumps(layout, separators=(",", ":")), hasher.hexdigest())
        size = sum(content.nbytes for content in contents)
        number = self._connection.execute(
            f"INSERT INTO arrays ({_COLUMNS}, body) VALUES (?, ?, ?, ?, ?, ?, zeroblob(?))",
            (*row, size),
        ).lastrowid
        assert number is not None
        with self._connection.blobopen("arrays", "body", number) as body:
            for content in contents:
                body.write(content)
        return row

    def _stored(self, kind: str, owner: str) -> list[StoredArrays]:
        with self.reading():
            rows = self._connection.execute(
                "SELECT number, chain, round, layout FROM arrays WHERE kind = ? AND owner = ? "
                "ORDER BY chain, round",
                (kind, owner),
            ).fetchall()
        return [StoredArrays(self, *row) for row in rows]

    def _states_digest(self) -> str:
        digest = ""
        for row in self._connection.execute(
            f"SELECT {_COLUMNS} FROM arrays WHERE kind = ? ORDER BY owner, chain", (_STATE,)
        ):
            digest = _next_digest(digest, row)
        return digest

    def _check(self) -> None:
        """Check everything in the file, and take over where its entries end.

        Raises:
            Any of `_DAMAGES`: If it is not as it was written.
        """
        problem = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise ValueError(str(problem)[:80])
        stored = {"samples": "", "states": ""}
        for entry in read_rows(self._connection):
            stored = json.loads(entry.text)["arrays"]
            self._head = entry.head
        rows = self._connection.execute(f"SELECT number, {_COLUMNS} FROM arrays ORDER BY number")
        for number, *row in rows:
            if [type(value) for value in row] != _COLUMN_TYPES:
                raise ValueError(f"a value of row {number} has another type")
            kind, owner, *_, digest = row
            if self._body_digest(number) != digest:
                raise ValueError(f"arrays of {owner[:60]!r} were changed")
            if kind != _STATE:
                self._samples = _next_digest(self._samples, row)
        if stored != {"samples": self._samples, "states": self._states_digest()}:
            raise ValueError("arrays are missing or were put in")
        self._committed_samples = self._samples

    def _body_digest(self, number: int) -> str:
        hasher = hashlib.sha256()
        with self.opened_body(number) as body:
            while chunk := body.read(_CHUNK_BYTES):
                hasher.update(chunk)
        return hasher.hexdigest()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Be in a transaction, which the next entry commits and an error ends."""
        try:
            with _writing(self.path):
                if not self._connection.in_transaction:
                    self._connection.execute("BEGIN IMMEDIATE")
                    self._check_nobody_else_wrote()
                yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._samples = self._committed_samples
            raise

    def _check_nobody_else_wrote(self) -> None:
        last = self._connection.execute(
            "SELECT head FROM chain ORDER BY position DESC LIMIT 1"
        ).fetchone()
        if (FIRST_HEAD if last is None else last[0]) != self._head:
            raise _busy(self.path)


def require_store(folder: Path) -> None:
    """Say what to do about a run directory without a store.

    Raises:
        UserError: If it has none.
    """
    if not (folder / STORE_FILE).is_file():
        refuse_earlier_run(folder)
        raise UserError(f"{folder / STORE_FILE} is missing: {REMEDY}")


def refuse_earlier_run(folder: Path) -> None:
    """Refuse a run directory of a version that kept a run in many files.

    Raises:
        UserError: If it is one.
    """
    for name in _EARLIER_FILES:
        if (folder / name).is_file():
            raise UserError(
                f"{folder} holds a run of an older version of fl-dpbayes ({name}): finish it with "
                "the version that began it, or run its scenario again"
            )


def _prepare(connection: sqlite3.Connection) -> None:
    """Set what a connection does and trusts; refuse a file that is no store of this version."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
    connection.set_progress_handler(lambda: 1, _MOST_STEPS)
    for setting in _SETTINGS:
        connection.execute(f"PRAGMA {setting}")
    identity = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _IDENTITY}
    # A list: a trigger may have the name of a table.
    tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    if identity != _IDENTITY or tables != sorted(_TABLES.items()):
        raise ValueError("it is no store of this version")
    connection.set_progress_handler(None, 0)


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in _TABLES.values():
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_IDENTITY['application_id']}")
        connection.execute(f"PRAGMA user_version = {_IDENTITY['user_version']}")
    connection.execute("COMMIT")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        _raise_if_busy(path, error)
        reason = _first_line(error)
        raise UserError(f"{path} is not as it was written ({reason}): {REMEDY}") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one line why the file cannot be written."""
    with written(path):
        try:
            yield
        except sqlite3.Error as error:
            _raise_if_busy(path, error)
            if _code(error) == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, "No space left on device") from error
            raise OSError(errno.EIO, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Return what an error says, as printable text: parts of it may be a stranger's file's own."""
    lines = str(error)[:_MOST_LETTERS].splitlines() or [type(error).__name__]
    return "".join(letter if letter.isprintable() else "?" for letter in lines[0])


def _raise_if_busy(path: Path, error: Exception) -> None:
    if _code(error) == sqlite3.SQLITE_BUSY:
        raise _busy(path) from None


def _busy(path: Path) -> UserError:
    return UserError(f"another process works on {path.parent}: wait for it, or end it first")


def _code(error: Exception) -> int:
    """Return SQLite's primary code of an error; 0 for another error."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _next_digest(digest: str, row: Sequence[object]) -> str:
    """Return the digest of rows that had this digest, with one more."""
    return chain_head(digest, json.dumps(row))
