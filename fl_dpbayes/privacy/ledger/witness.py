"""The second place of a ledger: a small file elsewhere that knows its last head, so that an older copy shows.

The ledger is written first, then its second place, and only then does work begin or a reply leave.
So after a crash the ledger may be ahead of its second place, by entries whose work never began or
whose reply was never sent; it is never behind, unless somebody put back, emptied, deleted or
replaced it. docs/ledger.md has the argument.
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
MOST_BYTES, LINE = 65_536, 512
RENEWED = "second place made anew"
# What SQLite can count to.
_POSITIONS = 2**63
_HEAD = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class LedgerPlace:
    """Where a ledger lies.

    `path`: its file, on a local disk; it may hold several cohorts. `witness`: its second place, in
    another folder and best on another disk. `durability`: `full` survives a power cut, `normal` the
    death of the process.
    """

    path: Path
    witness: Path
    durability: Durability

    @cached_property
    def real(self) -> tuple[Path, Path]:
        """Both files behind all links: these stay links, and what they point to, on another disk, is written."""
        return self.path.resolve(), self.witness.resolve()

    @cached_property
    def seen_from_witness(self) -> str:
        """Where the ledger lies, seen from its second place's folder: one that holds both may be moved."""
        return os.path.relpath(self.real[0], self.real[1].parent)


@dataclass(frozen=True)
class Seen:
    """What a second place knows: where its ledger lies, seen from its own folder, and the last entry it saw."""

    ledger: str
    position: int
    head: str


def check_witness(place: LedgerPlace, connection: sqlite3.Connection) -> Seen:
    """Check, under the lock, that a sound chain holds what its second place has seen, else LedgerError; return that."""
    seen = read_witness(place)
    _require_not_behind(place, connection, seen)
    if seen.ledger != place.seen_from_witness:
        raise LedgerError(
            f"the second place {place.witness} belongs to the ledger at "
            f"{outside_text(seen.ledger, 500)} (seen from "
            f"its folder), not to {place.path}: set ledger.path and ledger.witness in the site "
            "file back; if the "
            "ledger was moved for good, run  fl-dpbayes site ledger repair SITE_FILE"
        )
    return seen


def advance_witness(place: LedgerPlace, connection: sqlite3.Connection) -> None:
    """Tell the second place the last head, under the lock, so that it never steps back.

    Raises as `check_witness`.
    """
    seen = check_witness(place, connection)
    position, head = connection.execute(
        "SELECT position, head FROM chain ORDER BY position DESC LIMIT 1"
    ).fetchone()
    if position != seen.position:
        write_witness(place, position, head)


def read_witness(place: LedgerPlace) -> Seen:
    """Read a second place; raises LedgerError if it is missing or unreadable."""
    remedy = (
        "put it back; only if it is lost and the ledger is surely the newest, move what lies "
        "there away and run  "
        "fl-dpbayes site ledger repair SITE_FILE  (docs/ledger.md says what that gives up)"
    )
    try:
        with place.witness.open("rb") as file:
            seen = _parsed(file.read(MOST_BYTES))
    except FileNotFoundError:
        raise LedgerError(
            f"the second place {place.witness} of ledger {place.path} does not exist: {remedy}"
        ) from None
    except OSError as error:
        raise LedgerError(
            f"the second place {place.witness} cannot be read ({error.strerror}): {remedy}"
        ) from None
    if seen is None:
        raise LedgerError(
            f"the second place {place.witness} of ledger {place.path} is unreadable: {remedy}"
        )
    return seen


def write_witness(place: LedgerPlace, position: int, head: str) -> None:
    """Replace a second place, under the lock, by its last entry's, whole even in a crash.

    LedgerError if it fails.
    """
    text = json.dumps(
        {"format": FORMAT, "ledger": place.seen_from_witness, "position": position, "head": head}
    )
    line = f"{text:<{LINE - 1}}\n".encode()
    with ledger_errors():
        witness = place.real[1]
        if (
            place.durability == "normal"
            and witness.is_file()
            and witness.stat().st_size == len(line) == LINE
        ):
            # The death of a process cannot cut off one write within a page.
            with witness.open("r+b", buffering=0) as file:
                file.write(line)
            return
        if not witness.parent.is_dir():
            witness.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replaced(witness, through_power_cut=place.durability == "full") as partial:
            # What a killed process left there, or a link that somebody put there, is not written
            # to.
            partial.unlink(missing_ok=True)
            with os.fdopen(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(line)
                # An administrator's command must not take it from the user that answers requests.
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), (owner := place.path.stat()).st_uid, owner.st_gid)


def repair_witness(place: LedgerPlace) -> bool:
    """Make a second place anew from a ledger, where it is lost or the ledger was moved.

    A file that is there and is no second place is left: the site file may name it by mistake. The
    chain keeps an entry of the repair: from then on only the server's head tells whether the ledger
    was the newest. Raises LedgerError if the ledger is missing or damaged, or is behind its second
    place, or that is unreadable.
    """
    with closing(
        ledger_file.open_ledger_file(place.path, place.durability, create=False)
    ) as connection:
        with transaction(connection):
            ledger_file.read_chain(connection)
            if place.witness.exists():
                seen = read_witness(place)
                _require_not_behind(place, connection, seen)
                if seen.ledger == place.seen_from_witness:
                    return False
            entry = ledger_file.append_entry(connection, RENEWED, {"cohort": ""})
        with transaction(connection):
            write_witness(place, entry.position, entry.head)
        return True


def _parsed(text: bytes) -> Seen | None:
    try:
        content = json.loads(text)
        seen = Seen(content["ledger"], content["position"], content["head"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    placed = (
        isinstance(seen.ledger, str)
        and type(seen.position) is int
        and 0 < seen.position < _POSITIONS
    )
    return (
        seen
        if placed and _HEAD.fullmatch(str(seen.head)) and content.get("format") == FORMAT
        else None
    )


def _require_not_behind(place: LedgerPlace, connection: sqlite3.Connection, seen: Seen) -> None:
    row = connection.execute(
        "SELECT head FROM chain WHERE position = ?", (seen.position,)
    ).fetchone()
    if row is None or row[0] != seen.head:
        raise LedgerError(
            f"ledger {place.path} lacks entry {seen.position}, which its second place "
            f"{place.witness} has seen: it is "
            "an older copy, was emptied or made anew. Put the newest one back; if it is lost, "
            "what was spent since is "
            "unknown, so the whole budget of these records counts as spent"
        )
