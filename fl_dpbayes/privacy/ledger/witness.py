"""The second place of a ledger: a small file elsewhere that knows its last head.

So an older copy of the ledger shows. The ledger is written first, then its second place, and only
then does work begin or a reply leave. After a crash the ledger may be ahead of its second place, by
entries whose work never began or whose reply was never sent. It is never behind, unless somebody
put back, emptied, deleted or replaced it. docs/ledger.md has the argument.
"""

import json
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fl_dpbayes.config import outside_text
from fl_dpbayes.files import replaced
from fl_dpbayes.privacy.ledger import file as ledger_file
from fl_dpbayes.privacy.ledger.file import Durability, LedgerError, ledger_errors, transaction

FORMAT = 1
MOST_BYTES = 65_536
RENEWED = "second place made anew"
# What SQLite can count to.
_POSITIONS = 2**63
_HEAD = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class LedgerPlace:
    """Where a ledger lies.

    Attributes:
        path: Its file, on a local disk; it may hold several cohorts.
        witness: Its second place, in another folder and best on another disk.
        durability: `full` survives a power cut, `normal` the death of the process.
    """

    path: Path
    witness: Path
    durability: Durability

    @cached_property
    def real_path(self) -> Path:
        """The ledger's file behind all links."""
        return self.path.resolve()

    @cached_property
    def real_witness(self) -> Path:
        """The second place behind all links, which stay links: what they point to is written."""
        return self.witness.resolve()

    @cached_property
    def seen_from_witness(self) -> str:
        """Path of the ledger from its second place's folder, so a folder of both may be moved."""
        return os.path.relpath(self.real_path, self.real_witness.parent)


@dataclass(frozen=True)
class WitnessRecord:
    """What a second place knows.

    Attributes:
        ledger: Where its ledger lies, seen from its own folder.
        position: Of the last entry that it saw.
        head: Of that entry.
    """

    ledger: str
    position: int
    head: str


def check_witness(place: LedgerPlace, connection: sqlite3.Connection) -> WitnessRecord:
    """Check, under the lock, that a sound chain holds what its second place has seen.

    Args:
        place: Of the ledger.
        connection: To its file, in a transaction.

    Returns:
        What the second place knows.

    Raises:
        LedgerError: If the ledger is behind its second place, or that one is missing, unreadable
            or another ledger's.
    """
    record = read_witness(place)
    _require_not_behind(place, connection, record)
    if record.ledger != place.seen_from_witness:
        raise LedgerError(
            f"the second place {place.witness} belongs to the ledger at "
            f"{outside_text(record.ledger, 500)} (seen from its folder), not to {place.path}: set "
            "ledger.path and ledger.witness in the site file back; if the ledger was moved for "
            "good, run  fl-dpbayes site ledger repair SITE_FILE"
        )
    return record


def advance_witness(place: LedgerPlace, connection: sqlite3.Connection) -> None:
    """Tell the second place the last head, under the lock, so that it never steps back.

    Args:
        place: Of the ledger.
        connection: To its file, in a transaction.

    Raises:
        LedgerError: As by `check_witness`, or if it cannot be written.
    """
    record = check_witness(place, connection)
    position, head = connection.execute(
        "SELECT position, head FROM chain ORDER BY position DESC LIMIT 1"
    ).fetchone()
    if position != record.position:
        write_witness(place, position=position, head=head)


def read_witness(place: LedgerPlace) -> WitnessRecord:
    """Read a second place.

    Args:
        place: Of the ledger.

    Returns:
        What it knows.

    Raises:
        LedgerError: If it is missing or unreadable.
    """
    remedy = (
        "put it back; only if it is lost and the ledger is surely the newest, move what lies "
        "there away and run  "
        "fl-dpbayes site ledger repair SITE_FILE  (docs/ledger.md says what that gives up)"
    )
    record = None
    try:
        # Whoever opens a pipe waits for its other end.
        if not place.witness.is_fifo():
            with place.witness.open("rb") as file:
                record = _parse_record(file.read(MOST_BYTES))
    except FileNotFoundError:
        raise LedgerError(
            f"the second place {place.witness} of ledger {place.path} does not exist: {remedy}"
        ) from None
    except OSError as error:
        raise LedgerError(
            f"the second place {place.witness} cannot be read ({error.strerror}): {remedy}"
        ) from None
    if record is None:
        raise LedgerError(
            f"the second place {place.witness} of ledger {place.path} is unreadable: {remedy}"
        )
    return record


def write_witness(place: LedgerPlace, position: int, head: str) -> None:
    """Replace a second place, under the lock, whole even in a crash.

    Args:
        place: Of the ledger.
        position: Of the chain's last entry.
        head: Of that entry.

    Raises:
        LedgerError: If it cannot be written.
    """
    text = json.dumps(
        {"format": FORMAT, "ledger": place.seen_from_witness, "position": position, "head": head}
    )
    with ledger_errors():
        _replace_witness(place, f"{text}\n".encode())


def repair_witness(place: LedgerPlace) -> bool:
    """Make a second place anew from a ledger, where it is lost or the ledger was moved.

    A file that is there and is no second place is left: the site file may name it by mistake. The
    chain keeps an entry of the repair: from then on only the server's head tells whether the ledger
    was the newest.

    Args:
        place: Of the ledger.

    Returns:
        Whether there was anything to repair.

    Raises:
        LedgerError: If the ledger is missing or damaged, or is behind its second place, or that is
            unreadable.
    """
    connection = ledger_file.open_ledger_file(place.path, place.durability, create=False)
    with closing(connection):
        with transaction(connection):
            ledger_file.read_chain(connection)
            if place.witness.exists():
                record = read_witness(place)
                _require_not_behind(place, connection, record)
                if record.ledger == place.seen_from_witness:
                    return False
            entry = ledger_file.append_entry(connection, RENEWED, {"cohort": ""})
        with transaction(connection):
            write_witness(place, position=entry.position, head=entry.head)
        return True


def _parse_record(text: bytes) -> WitnessRecord | None:
    """Read the text of a second place; None where it is no such text."""
    try:
        content = json.loads(text)
        ledger = content["ledger"]
        position = content["position"]
        head = content["head"]
        is_format = content.get("format") == FORMAT
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not is_format or not isinstance(ledger, str) or not _HEAD.fullmatch(str(head)):
        return None
    # A boolean is no position.
    if type(position) is not int or not 0 < position < _POSITIONS:
        return None
    return WitnessRecord(ledger=ledger, position=position, head=head)


def _replace_witness(place: LedgerPlace, line: bytes) -> None:
    witness = place.real_witness
    if not witness.parent.is_dir():
        witness.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replaced(witness, through_power_cut=place.durability == "full") as partial:
        # What a killed process left there, or a link that somebody put there, is not written to.
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(line)
            # An administrator's command must not take it from the user that answers requests.
            if os.geteuid() == 0:
                owner = place.path.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)


def _require_not_behind(
    place: LedgerPlace, connection: sqlite3.Connection, record: WitnessRecord
) -> None:
    row = connection.execute(
        "SELECT head FROM chain WHERE position = ?", (record.position,)
    ).fetchone()
    if row is None or row[0] != record.head:
        raise LedgerError(
            f"ledger {place.path} lacks entry {record.position}, which its second place "
            f"{place.witness} has seen: it is an older copy, was emptied or made anew. Put the "
            "newest one back; if it is lost, what was spent since is unknown, so the whole budget "
            "of these records counts as spent"
        )
