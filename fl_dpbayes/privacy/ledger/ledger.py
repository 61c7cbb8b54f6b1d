"""A site's ledger: what was spent on a cohort is written down before it is spent, and never forgotten.

Every change is one entry of a hash chain in one SQLite file; the ledger's state is what the entries
add up to. Steps are reserved before they run and count from then on, whatever becomes of them; a
completed request is answered again from its stored reply, at no cost. docs/ledger.md says what
stands against a second budget.
"""

import dataclasses
import hashlib
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, AuditLine
from fl_dpbayes.privacy.events import slice_history, write_history
from fl_dpbayes.privacy.filter import admitted_steps, choose_rule, filter_epsilon
from fl_dpbayes.privacy.ledger import file as ledger_file
from fl_dpbayes.privacy.ledger.account import Spent, ledger_problems, reply_body, spent
from fl_dpbayes.privacy.ledger.cohort_creation import Describe, create_cohort, require_other_units
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
    StoredPlan,
    Verified,
)
from fl_dpbayes.privacy.ledger.takeover import is_worked_on, may_take_over, this_process
from fl_dpbayes.privacy.ledger.witness import LedgerPlace, advance_witness, check_witness
from fl_dpbayes.protocol import RefusalCode


class CohortChangedError(UserError):
    """A cohort is stated otherwise than when it was made."""


@dataclass(frozen=True)
class Reserved:
    """Steps that may now run, from the request's first on.

    Fewer than asked for where the budget ends.

    `reservation` is what to commit or fail, `head` the chain's, to be sent with the reply.
    """

    reservation: int
    steps: int
    head: str


@dataclass(frozen=True)
class StoredReply:
    """The reply to the same request, sent before."""

    body: bytes


@dataclass(frozen=True)
class Refused:
    """Why nothing may run: a code, and the field of the request that caused it ("": none)."""

    code: RefusalCode
    field: str = ""


class Ledger:
    """The ledger of one cohort.

    A context manager, safe across processes and not shared between threads.

    `asked_in`: the line of the site's audit log that tells the request for which entries are made;
    each names it.
    """

    asked_in: AuditLine | None = None

    def __init__(
        self,
        connection: sqlite3.Connection,
        cohort: Cohort,
        place: LedgerPlace,
        known: tuple[Verified, int],
    ) -> None:
        self._connection, self._place, self._held = connection, place, set[int]()
        self.cohort, (self._verified, self._version) = cohort, known

    @classmethod
    def create(
        cls, place: LedgerPlace, cohort: Cohort, describe: Describe | None = None
    ) -> "Ledger":
        """Make a cohort and open it: see `create_cohort`."""
        create_cohort(place, cohort, describe)
        return cls.open(place, cohort)

    @classmethod
    def open(cls, place: LedgerPlace, cohort: Cohort) -> "Ledger":
        """Open the ledger of a cohort that was made before, its budget stated as it was then.

        Raises UserError if the cohort was made with another budget, or the file may not serve as a
        ledger. Raises LedgerError as `open_existing`, or if the ledger is not the one that its
        second place knows.
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

        Its second place is checked when something is to change, and by `verify`. Raises LedgerError
        if there is no such ledger or cohort, or the file cannot be read or is damaged.
        """
        # A simulation's is read whole once in a process, while its files are as the process left
        # them.
        known = (
            KEPT.look(("ledger", place.path, name), _files(place))
            if place.durability == "normal"
            else None
        )
        connection = ledger_file.open_ledger_file(place.path, place.durability, create=False)
        try:
            with ledger_errors():
                version = ledger_file.data_version(connection)
                verified = (known or Verified()).with_new(connection, name)
            if (cohort := verified.state.cohort) is None:
                # An emptied ledger holds no cohort either, and must not be taken for a site that is
                # new.
                with transaction(connection):
                    check_witness(place, connection)
                    entries = read_chain(connection)
                held = ", ".join(map(repr, ledger_file.cohorts_of(entries))) or "none"
                raise LedgerError(
                    f"ledger {place.path} holds no cohort {name!r} (it holds: {held}): put "
                    "ledger.cohort in the site "
                    "file back; a cohort of other patients is made once, with  "
                    f"{ledger_file.HOW_TO_MAKE}"
                )
        except BaseException:
            connection.close()
            raise
        return cls(connection, cohort, place, (verified, version))

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
        if self._place.durability == "full":
            self._connection.close()
        else:
            ledger_file.KEPT_LOGS.close(self._place.path, self._connection)
            key = ("ledger", self._place.path, self.cohort.name)
            KEPT.put(key, self._verified, self._verified.size, _files(self._place))

    def reserve(
        self, spending: Spending, echoed_head: str | None = None
    ) -> Reserved | StoredReply | Refused:
        """Set steps aside for a request, before any of them runs.

        A run has one plan, and no later round may ask for a step of an earlier one: so a run never
        releases more than its plan, which a site's policy bounds, however much budget the cohort
        has left. `echoed_head`: the last head that the server says it saw. Returns the reservation
        (of the longest prefix that the budget admits, or the one that a dead process left open for
        this very request); or the stored reply, if this very request was completed before; or the
        refusal. Raises LedgerError if the ledger cannot be read or written, or is damaged.
        """
        with self._change() as state:
            if echoed_head is not None and echoed_head not in self._verified.heads:
                return Refused(RefusalCode.LEDGER_ROLLED_BACK, "ledger_head")
            if state.closed:
                return Refused(RefusalCode.COHORT_CLOSED)
            plan = state.plans.get((spending.part, spending.run, spending.purpose))
            if plan is not None and plan != StoredPlan(spending.plan_digest, spending.plan):
                return Refused(RefusalCode.PLAN_CHANGED, "plan")
            answer = self._answer_again(state, spending) or self._reserve_new(state, spending)
            if isinstance(answer, Reserved):
                self._let_go(
                    state, spending.run, spending.round if spending.part == "train" else math.inf
                )
            return answer

    def count_evaluation(
        self, run: str, request_digest: str, per_run: float, life: float
    ) -> int | Refused:
        """Count an evaluation once per request; return how many there were, or the refusal.

        Raise as `reserve`.
        """
        with self._change() as state:
            if state.closed:
                return Refused(RefusalCode.COHORT_CLOSED)
            if (run, request_digest) not in state.evaluations:
                of_run = sum(counted == run for counted, _ in state.evaluations)
                if of_run >= per_run or len(state.evaluations) >= life:
                    return Refused(RefusalCode.EVALUATIONS_EXHAUSTED)
                self._append("evaluation", {"run": run, "request_digest": request_digest})
                self._let_go(state, run, math.inf)
                return len(state.evaluations) + 1
            return len(state.evaluations)

    def restrict(self, epsilon: float | None) -> None:
        """Lower what each part may ever spend, for good, or close the cohort to every request (None).

        Raises UserError if `epsilon` is not below what may be spent now, or the cohort is closed.
        Raises LedgerError as `reserve`.
        """
        with self._change() as state:
            if state.closed:
                raise UserError(
                    f"cohort {self.cohort.name!r} is closed: nothing is spent on it any more"
                )
            most = state.most().epsilon
            if epsilon is not None and not 0 < epsilon < most:
                raise UserError(
                    f"epsilon {epsilon:g} is not between 0 and {most:g}, what each part "
                    "may spend now: "
                    "a budget is lowered for good and never raised"
                )
            self._append("restricted", {"epsilon": epsilon})

    def commit(self, reservation: int, reply: bytes) -> str:
        """Store the whole reply to a reserved request, and return the new head.

        Only then may it be sent.

        Raises LedgerError if it cannot be written, or the reservation is not open or not held by
        this process.
        """
        digest = hashlib.sha256(reply).hexdigest()
        with self._end_of(reservation):
            self._connection.execute("INSERT INTO reply VALUES (?, ?)", (reservation, reply))
            return self._append("done", {"reservation": reservation, "reply_digest": digest}).head

    def fail(self, reservation: int) -> str:
        """Note that a reserved request came to nothing, its steps staying spent.

        Returns and raises as `commit`.
        """
        with self._end_of(reservation):
            return self._append("failed", {"reservation": reservation}).head

    @contextmanager
    def _end_of(self, reservation: int) -> Iterator[None]:
        with self._change():
            self._require_held(reservation)
            yield
        self._held.discard(reservation)

    def planned(self, part: Part, run: str, purpose: str) -> StoredPlan | None:
        """Return a run's plan as its first request fixed it, so that its noise is solved only once."""
        return self.state().plans.get((part, run, purpose))

    def record_data_version(self, describe: Describe) -> None:
        """Note which version of the records is used from now on.

        LedgerError if another cohort here has them.
        """
        with ledger_errors():
            version = describe(ledger_file.ledger_key(self._connection))
            if version in self.state().data_versions[-1:]:
                return
        with self._change():
            require_other_units(
                read_chain(self._connection), self.cohort.name, version, self._place
            )
            self._append("data version", dataclasses.asdict(version))

    def rows(self) -> list[Reservation]:
        """Return the cohort's reservations in the order in which they were made."""
        return list(self.state().reservations.values())

    def head(self) -> str:
        """Return the head of the file's chain."""
        self.state()
        return self._verified.heads[-1]

    def state(self) -> LedgerState:
        """Return what the entries add up to."""
        with ledger_errors():
            # Where another connection has written, nothing that was checked before counts.
            if (version := ledger_file.data_version(self._connection)) != self._version:
                self._verified, self._version = Verified(), version
            self._verified = self._verified.with_new(self._connection, self.cohort.name)
        return self._verified.state

    def spent(self, part: Part) -> Spent:
        """Account for everything spent on a part so far, with the method that holds for it."""
        return spent(self.state(), part)

    def verify(self) -> list[str]:
        """Check file, chain, stored replies, sums and second place.

        An empty list means that all is sound.
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
            # Nothing is read between an entry and its commit, so what is known was never rolled
            # back.
            state = self.state()
            check_witness(self._place, self._connection)
            yield state
        # Before any step runs or any reply leaves; of the two the ledger comes first, so it is
        # never behind.
        with transaction(self._connection):
            advance_witness(self._place, self._connection)

    def _let_go(self, state: LedgerState, run: str, before: float) -> None:
        # Training replies of a simulation: once its server asks for more, they are in the bank, on
        # the same disk. With `full`, a hospital's, they are kept, as the server's disk may fail.
        if self._place.durability == "full":
            return
        for (reply,) in self._connection.execute("SELECT reservation FROM reply").fetchall():
            row = state.reservations.get(reply)
            if row is not None and (row.part, row.run) == ("train", run) and row.round < before:
                self._connection.execute("DELETE FROM reply WHERE reservation = ?", (reply,))

    def _check_kept(self, reservation: Reservation) -> None:
        if self._place.durability == "full":
            return
        kept = self._connection.execute(
            "SELECT 1 FROM reply WHERE reservation = ?", (reservation.identity,)
        ).fetchone()
        if kept is None:
            raise LedgerError(
                f"the reply to round {reservation.round} was let go when a later round was asked "
                "for: a simulated site keeps the reply to its last round alone"
            )

    def _append(self, kind: str, content: dict[str, Any]) -> Entry:
        named = {} if self.asked_in is None else {"log": dataclasses.asdict(self.asked_in)}
        return append_entry(
            self._connection, kind, {"cohort": self.cohort.name, **named, **content}
        )

    def _answer_again(
        self, state: LedgerState, spending: Spending
    ) -> Reserved | StoredReply | Refused | None:
        plan = (spending.part, spending.run, spending.purpose)
        of_plan = [
            row for row in state.reservations.values() if (row.part, row.run, row.purpose) == plan
        ]
        if any(row.round != spending.round and row.overlaps(spending) for row in of_plan):
            return Refused(RefusalCode.POLICY_DENIED, "first_step")
        same = [row for row in of_plan if row.round == spending.round]
        if any(row.request_digest != spending.request_digest for row in same):
            return Refused(RefusalCode.REQUEST_CHANGED, "round")
        for earlier in same:
            if earlier.state == "done":
                self._check_kept(earlier)
                return StoredReply(reply_body(self._connection, state, earlier.identity))
        if any(is_worked_on(earlier) for earlier in same):
            return Refused(RefusalCode.ALREADY_RESERVED, "round")
        for left in filter(may_take_over, same):
            holder = {"process": this_process(), "durability": self._place.durability}
            entry = self._append("taken over", {"reservation": left.identity, **holder})
            self._held.add(left.identity)
            return Reserved(left.identity, left.steps, entry.head)
        return None

    def _reserve_new(self, state: LedgerState, spending: Spending) -> Reserved | Refused:
        part, budget = spending.part, state.most()
        rule = state.rules.get(part) or choose_rule(spending.plan, budget, self.cohort.planned_runs)
        requested = slice_history(spending.plan, spending.first_step, spending.steps)
        # A stock of steps was bought as a whole, for what it costs together.
        whole = rule.name == "fixed schedule" and budget != state.budget()
        if whole and filter_epsilon(rule, requested, budget) > budget.epsilon:
            return Refused(RefusalCode.BUDGET_EXHAUSTED)
        steps = admitted_steps(rule, state.spent_in(part), requested, budget)
        if steps == 0:
            return Refused(RefusalCode.BUDGET_EXHAUSTED)
        if part not in state.rules:
            self._append(
                "rule", {"part": part, "rule": rule.name, "schedule": write_history(rule.schedule)}
            )
        about = {"part": part, "run": spending.run, "purpose": spending.purpose}
        if tuple(about.values()) not in state.plans:
            self._append(
                "plan",
                {**about, "digest": spending.plan_digest, "history": write_history(spending.plan)},
            )
        entry = self._append(
            "reserved",
            {
                **about,
                "round": spending.round,
                "request_digest": spending.request_digest,
                "steps": steps,
                "first_step": spending.first_step,
                "process": this_process(),
                "durability": self._place.durability,
            },
        )
        self._held.add(entry.position)
        return Reserved(entry.position, steps, entry.head)

    def _note_interrupted(self) -> None:
        if not self._held:
            return
        with self._change():
            reservations = self.state().reservations
            for held in sorted(self._held & reservations.keys()):
                if (
                    reservations[held].state == "reserved"
                    and reservations[held].process == this_process()
                ):
                    self._append("interrupted", {"reservation": held})

    def _require_held(self, reservation: int) -> None:
        found = self.state().reservations.get(reservation)
        if found is None or found.state != "reserved":
            state = "unknown" if found is None else found.state
            raise LedgerError(
                f"reservation {reservation} is {state}: only an open one can be completed or failed"
            )
        # A process that was taken for dead must not end the attempt that took its place.
        if found.process != this_process():
            raise LedgerError(
                f"reservation {reservation} is held by another process, which took it over"
            )


def _require_same(made: Cohort, stated: Cohort, path: Path) -> None:
    for field in dataclasses.fields(Cohort):
        before, now = getattr(made, field.name), getattr(stated, field.name)
        if before != now:
            raise CohortChangedError(
                f"cohort {made.name!r} in ledger {path} was made with {field.name} {before!r}, "
                f"not {now!r}: "
                f"it is fixed for good, so put {before!r} back"
            )


def _files(place: LedgerPlace) -> tuple[Path, Path]:
    return place.path, Path(f"{place.path}-wal")
