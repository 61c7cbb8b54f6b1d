"""A site's ledger: what a cohort spends is written down before it is spent, and never forgotten.

Every change is one entry of a hash chain in one SQLite file, and the ledger's state is what the
entries add up to. Steps count from their reservation on, whatever becomes of them. A completed
request is answered again from its stored reply, at no cost. docs/ledger.md says what stands against
a second budget.
"""

import dataclasses
import hashlib
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, AuditLine
from fl_dpbayes.privacy.events import write_history
from fl_dpbayes.privacy.filter import SpendingRule
from fl_dpbayes.privacy.ledger import file as ledger_file
from fl_dpbayes.privacy.ledger.account import Spent, ledger_problems, reply_body, spent
from fl_dpbayes.privacy.ledger.cohort_creation import Describe, create_cohort, require_other_units
from fl_dpbayes.privacy.ledger.decision import Admitted, Completed, LeftOpen, Refused, decide
from fl_dpbayes.privacy.ledger.file import (
    Entry,
    LedgerError,
    append_entry,
    ledger_errors,
    read_chain,
    transaction,
)
from fl_dpbayes.privacy.ledger.state import (
    Cohort,
    LedgerState,
    Part,
    Reservation,
    Spending,
    VerifiedChain,
)
from fl_dpbayes.privacy.ledger.takeover import this_process
from fl_dpbayes.privacy.ledger.witness import LedgerPlace, advance_witness, check_witness
from fl_dpbayes.protocol import RefusalCode


class CohortChangedError(UserError):
    """A cohort is stated otherwise than when it was made."""


@dataclass(frozen=True)
class Reserved:
    """Steps that may now run, from the request's first on.

    Attributes:
        reservation: Its identity, to commit or fail.
        steps: How many; fewer than were asked for where the budget ends.
        head: The chain's, to be sent with the reply.
    """

    reservation: int
    steps: int
    head: str


@dataclass(frozen=True)
class StoredReply:
    """The reply to the same request, sent before."""

    body: bytes


class Ledger:
    """The ledger of one cohort: a context manager, safe across processes.

    It is not shared between threads.

    Attributes:
        cohort: As it was made.
        asked_in: The line of the site's audit log that tells the request for which entries are
            made; each entry names it.
    """

    asked_in: AuditLine | None = None

    def __init__(
        self,
        connection: sqlite3.Connection,
        cohort: Cohort,
        place: LedgerPlace,
        chain: VerifiedChain,
        data_version: int,
    ) -> None:
        """Take over an open connection: see `open`.

        Args:
            connection: To the ledger's file.
            cohort: As it was made.
            place: Of the ledger.
            chain: What was read of the file.
            data_version: The file's, when it was read.
        """
        self.cohort = cohort
        self._connection = connection
        self._place = place
        self._chain = chain
        self._data_version = data_version
        self._held = set[int]()

    @classmethod
    def create(
        cls, place: LedgerPlace, cohort: Cohort, describe: Describe | None = None
    ) -> "Ledger":
        """Make a cohort and open it: see `create_cohort`."""
        create_cohort(place, cohort, describe)
        return cls.open(place, cohort)

    @classmethod
    def open(cls, place: LedgerPlace, cohort: Cohort) -> "Ledger":
        """Open the ledger of a cohort that was made before.

        Args:
            place: Of the ledger.
            cohort: With the budget that was stated when it was made.

        Returns:
            The open ledger.

        Raises:
            UserError: If the cohort was made with another budget, or the file may not serve as a
                ledger.
            LedgerError: If there is no such ledger or cohort, the file cannot be read or is
                damaged, or the ledger is not the one that its second place knows.
        """
        ledger = cls.open_existing(place, cohort.name)
        try:
            with transaction(ledger._connection):
                check_witness(place, ledger._connection)
            _require_same(ledger.cohort, cohort, place.path)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def open_existing(cls, place: LedgerPlace, name: str) -> "Ledger":
        """Open the ledger of a cohort, with the budget that it was made with, to look into it.

        Its second place is checked when something is to change, and by `verify`.

        Args:
            place: Of the ledger.
            name: Of the cohort.

        Returns:
            The open ledger.

        Raises:
            UserError: If the file may not serve as a ledger.
            LedgerError: If there is no such ledger or cohort, or the file cannot be read or is
                damaged.
        """
        known_chain = None
        if place.durability == "normal":
            # A simulation's ledger is read whole once in a process, as long as its files are as
            # the process left them.
            known_chain = KEPT.look(_cache_key(place, name), _ledger_files(place))
        connection = ledger_file.open_ledger_file(place.path, place.durability, create=False)
        try:
            with ledger_errors():
                data_version = ledger_file.data_version(connection)
                chain = known_chain or VerifiedChain()
                chain = chain.with_new_entries(connection, name)
            cohort = chain.state.cohort
            if cohort is None:
                _refuse_unknown_cohort(place, connection, name)
        except BaseException:
            connection.close()
            raise
        return cls(connection, cohort=cohort, place=place, chain=chain, data_version=data_version)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            # The interrupt itself must come through; without the note its request waits until this
            # process ends.
            with suppress(LedgerError):
                if error is not None:
                    self._note_interrupted()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        if self._place.durability == "normal":
            KEPT.put(
                _cache_key(self._place, self.cohort.name),
                value=self._chain,
                size=self._chain.size,
                files=_ledger_files(self._place),
            )

    def reserve(
        self, spending: Spending, echoed_head: str | None = None
    ) -> Reserved | StoredReply | Refused:
        """Set steps aside for a request, before any of them runs.

        Args:
            spending: What the request asks to spend.
            echoed_head: The last head that the server says it saw.

        Returns:
            The reservation: of the longest prefix that the budget admits, or the one that a dead
            process left open for this very request. Or the stored reply, if this very request was
            completed before. Or the refusal.

        Raises:
            LedgerError: If the ledger cannot be read or written, or is damaged.
        """
        with self._change() as state:
            if echoed_head is not None and echoed_head not in self._chain.heads:
                return Refused(RefusalCode.LEDGER_ROLLED_BACK, "ledger_head")
            if state.closed:
                return Refused(RefusalCode.COHORT_CLOSED)
            decision = decide(state, spending)
            match decision:
                case Refused():
                    return decision
                case Completed(earlier):
                    return self._stored_reply(state, earlier)
                case LeftOpen(earlier):
                    reserved = self._take_over(earlier)
                case Admitted(rule, steps):
                    reserved = self._reserve(state, spending, rule, steps)
            before_round = spending.round if spending.part == "train" else math.inf
            self._delete_replies(state, spending.run, before_round)
            return reserved

    def count_evaluation(
        self, run: str, request_digest: str, per_run: float, life: float
    ) -> int | Refused:
        """Count an evaluation, once for each request.

        Args:
            run: Identifies the run.
            request_digest: SHA-256 of the request.
            per_run: How many evaluations a run may ask for.
            life: How many evaluations the cohort allows in all.

        Returns:
            How many there were, with this one; or the refusal.

        Raises:
            LedgerError: If the ledger cannot be read or written, or is damaged.
        """
        with self._change() as state:
            if state.closed:
                return Refused(RefusalCode.COHORT_CLOSED)
            counted = len(state.evaluations)
            if (run, request_digest) in state.evaluations:
                return counted
            counted_in_run = sum(counted_run == run for counted_run, _ in state.evaluations)
            if counted_in_run >= per_run or counted >= life:
                return Refused(RefusalCode.EVALUATIONS_EXHAUSTED)
            self._append("evaluation", {"run": run, "request_digest": request_digest})
            self._delete_replies(state, run, math.inf)
            return counted + 1

    def restrict(self, epsilon: float | None) -> None:
        """Lower what each part may ever spend, for good, or close the cohort to every request.

        Args:
            epsilon: The new budget of each part; None closes the cohort.

        Raises:
            UserError: If `epsilon` is not below what may be spent now, or the cohort is closed.
            LedgerError: If the ledger cannot be read or written, or is damaged.
        """
        with self._change() as state:
            if state.closed:
                raise UserError(
                    f"cohort {self.cohort.name!r} is closed: nothing is spent on it any more"
                )
            most = state.most().epsilon
            if epsilon is not None and not 0 < epsilon < most:
                raise UserError(
                    f"epsilon {epsilon:g} is not between 0 and {most:g}, what each part may spend "
                    "now: a budget is lowered for good and never raised"
                )
            self._append("restricted", {"epsilon": epsilon})

    def commit(self, reservation: int, reply: bytes) -> str:
        """Store the whole reply to a reserved request; only then may it be sent.

        Args:
            reservation: Its identity.
            reply: All that is sent.

        Returns:
            The new head.

        Raises:
            LedgerError: If it cannot be written, or the reservation is not open or not held by
                this process.
        """
        digest = hashlib.sha256(reply).hexdigest()
        with self._end_of(reservation):
            self._connection.execute("INSERT INTO reply VALUES (?, ?)", (reservation, reply))
            return self._append("done", {"reservation": reservation, "reply_digest": digest}).head

    def fail(self, reservation: int) -> str:
        """Note that a reserved request came to nothing; its steps stay spent.

        Args:
            reservation: Its identity.

        Returns:
            The new head.

        Raises:
            LedgerError: As by `commit`.
        """
        with self._end_of(reservation):
            return self._append("failed", {"reservation": reservation}).head

    def record_data_version(self, describe: Describe) -> None:
        """Note which version of the records is used from now on.

        Args:
            describe: Gives the version under the ledger's secret key.

        Raises:
            LedgerError: If another cohort of the ledger has these records, or as by `reserve`.
        """
        with ledger_errors():
            version = describe(ledger_file.ledger_key(self._connection))
            versions = self.state().data_versions
            if versions and versions[-1] == version:
                return
        with self._change():
            require_other_units(
                read_chain(self._connection),
                cohort=self.cohort.name,
                version=version,
                place=self._place,
            )
            self._append("data version", dataclasses.asdict(version))

    def rows(self) -> list[Reservation]:
        """Return the cohort's reservations in the order in which they were made."""
        return list(self.state().reservations.values())

    def head(self) -> str:
        """Return the head of the file's chain."""
        self.state()
        return self._chain.heads[-1]

    def state(self) -> LedgerState:
        """Return what the entries add up to."""
        with ledger_errors():
            data_version = ledger_file.data_version(self._connection)
            if data_version != self._data_version:
                # Another connection has written: nothing that was checked before counts.
                self._chain = VerifiedChain()
                self._data_version = data_version
            self._chain = self._chain.with_new_entries(self._connection, self.cohort.name)
        return self._chain.state

    def spent(self, part: Part) -> Spent:
        """Account for everything spent on a part so far, with the method that holds for it."""
        return spent(self.state(), part)

    def verify(self) -> list[str]:
        """Check file, chain, stored replies, sums and second place.

        Returns:
            One line of text for each problem; an empty list means that all is sound.
        """
        problems = ledger_problems(self._connection, self.cohort.name)
        if not problems:
            try:
                with transaction(self._connection):
                    check_witness(self._place, self._connection)
            except LedgerError as error:
                problems.append(str(error))
        return problems

    def entries(self) -> list[Entry]:
        """Return the file's entries, of every cohort in it, for an auditor to hash again."""
        with ledger_errors():
            return read_chain(self._connection)

    @contextmanager
    def _change(self) -> Iterator[LedgerState]:
        with transaction(self._connection):
            # Nothing is read between an entry and its commit, so what was read is never rolled
            # back.
            state = self.state()
            check_witness(self._place, self._connection)
            yield state
        # The second place follows before any step runs or any reply leaves. The ledger is written
        # first, so it is never behind.
        with transaction(self._connection):
            advance_witness(self._place, self._connection)

    @contextmanager
    def _end_of(self, reservation: int) -> Iterator[None]:
        with self._change() as state:
            _require_held(state, reservation)
            yield
        self._held.discard(reservation)

    def _append(self, kind: str, content: dict[str, Any]) -> Entry:
        context: dict[str, Any] = {"cohort": self.cohort.name}
        if self.asked_in is not None:
            context["log"] = dataclasses.asdict(self.asked_in)
        return append_entry(self._connection, kind, context | content)

    def _stored_reply(self, state: LedgerState, reservation: Reservation) -> StoredReply:
        if not state.is_needed(reservation) and reservation.identity not in self._stored_replies():
            raise LedgerError(
                f"the reply to round {reservation.round} was let go when a later round was asked "
                "for: a simulated site keeps the reply to its last round alone"
            )
        return StoredReply(reply_body(self._connection, state, reservation.identity))

    def _stored_replies(self) -> list[int]:
        """List the reservations whose replies are stored."""
        rows = self._connection.execute("SELECT reservation FROM reply").fetchall()
        return [identity for (identity,) in rows]

    def _take_over(self, reservation: Reservation) -> Reserved:
        entry = self._append(
            "taken over",
            {
                "reservation": reservation.identity,
                "process": this_process(),
                "durability": self._place.durability,
            },
        )
        self._held.add(reservation.identity)
        return Reserved(reservation.identity, steps=reservation.steps, head=entry.head)

    def _reserve(
        self, state: LedgerState, spending: Spending, rule: SpendingRule, steps: int
    ) -> Reserved:
        if spending.part not in state.rules:
            schedule = write_history(rule.schedule)
            self._append("rule", {"part": spending.part, "rule": rule.name, "schedule": schedule})
        key = spending.plan_key._asdict()
        if spending.plan_key not in state.plans:
            history = write_history(spending.plan)
            self._append("plan", {**key, "digest": spending.plan_digest, "history": history})
        entry = self._append(
            "reserved",
            {
                **key,
                "round": spending.round,
                "request_digest": spending.request_digest,
                "steps": steps,
                "first_step": spending.first_step,
                "process": this_process(),
                "durability": self._place.durability,
            },
        )
        self._held.add(entry.position)
        return Reserved(entry.position, steps=steps, head=entry.head)

    def _delete_replies(self, state: LedgerState, run: str, before_round: float) -> None:
        """Delete a simulation's training replies that its server has received.

        Once the server asks for more, they are in the bank, on the same disk. A hospital's (with
        `full`) stay, as the server's disk may fail.
        """
        if self._place.durability == "full":
            return
        for identity in self._stored_replies():
            reservation = state.reservations.get(identity)
            if (
                reservation is not None
                and reservation.part == "train"
                and reservation.run == run
                and reservation.round < before_round
            ):
                self._connection.execute("DELETE FROM reply WHERE reservation = ?", (identity,))

    def _note_interrupted(self) -> None:
        if not self._held:
            return
        with self._change() as state:
            for identity in sorted(self._held & state.reservations.keys()):
                reservation = state.reservations[identity]
                if reservation.state == "reserved" and reservation.process == this_process():
                    self._append("interrupted", {"reservation": identity})


def _require_held(state: LedgerState, identity: int) -> None:
    reservation = state.reservations.get(identity)
    if reservation is None or reservation.state != "reserved":
        status = "unknown" if reservation is None else reservation.state
        raise LedgerError(
            f"reservation {identity} is {status}: only an open one can be completed or failed"
        )
    # A process that was taken for dead must not end the attempt that took its place.
    if reservation.process != this_process():
        raise LedgerError(f"reservation {identity} is held by another process, which took it over")


def _refuse_unknown_cohort(
    place: LedgerPlace, connection: sqlite3.Connection, name: str
) -> NoReturn:
    # An emptied ledger holds no cohort either, and must not be taken for a site that is new.
    with transaction(connection):
        check_witness(place, connection)
        entries = read_chain(connection)
    cohorts = ", ".join(map(repr, ledger_file.cohorts_of(entries))) or "none"
    raise LedgerError(
        f"ledger {place.path} holds no cohort {name!r} (it holds: {cohorts}): put ledger.cohort in "
        "the site file back; a cohort of other patients is made once, with  "
        f"{ledger_file.HOW_TO_MAKE}"
    )


def _require_same(recorded: Cohort, stated: Cohort, path: Path) -> None:
    """Raise CohortChangedError at the first field that is stated otherwise than it is recorded."""
    for field in dataclasses.fields(Cohort):
        before = getattr(recorded, field.name)
        now = getattr(stated, field.name)
        if before != now:
            raise CohortChangedError(
                f"cohort {recorded.name!r} in ledger {path} was made with {field.name} "
                f"{before!r}, not {now!r}: it is fixed for good, so put {before!r} back"
            )


def _ledger_files(place: LedgerPlace) -> tuple[Path, Path]:
    return place.path, Path(f"{place.path}-wal")


def _cache_key(place: LedgerPlace, cohort: str) -> tuple[str, Path, str]:
    return ("ledger", place.path, cohort)
