"""What the entries of a ledger add up to for one cohort: plans, rules and reservations."""

import math
import sqlite3
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple, get_args

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import History, joined, read_history, slice_history, steps_of
from fl_dpbayes.privacy.filter import Budget, SpendingRule
from fl_dpbayes.privacy.ledger.file import Durability, Entry, LedgerError, read_chain

Part = Literal["train", "test", "recalibration"]
PARTS: tuple[Part, ...] = get_args(Part)
ReservationState = Literal["reserved", "done", "failed"]
# What an entry of a reservation holds beside the reservation itself.
_NOT_OF_RESERVATION = ("kind", "cohort", "log")


@dataclass(frozen=True)
class Cohort:
    """Whose records a budget protects, and how much may ever be spent on each part.

    It is fixed when its ledger is made. A corrected record does not make another cohort.

    Attributes:
        name: As the site file has it.
        unit: Of privacy, such as "patient".
        epsilon: The budget of each part, infinite if nothing limits it.
        delta: In (0, 1).
        adjacency: For which epsilon holds.
        split: Tells the rule that puts each unit in its part from any other. A unit that moved to
            another part would have both budgets spent on it.
        planned_runs: For how many runs of its first plan it was declared, which then are one
            schedule.
    """

    name: str
    unit: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    split: str = ""
    planned_runs: int = 1


class PlanKey(NamedTuple):
    """Which plan: a run has one for each purpose, in the part that pays for it."""

    part: str
    run: str
    purpose: str


@dataclass(frozen=True, kw_only=True)
class StepsOfPlan:
    """Steps of a run's plan that a request asks for.

    Attributes:
        part: Of the cohort, which pays.
        run: Identifies the run.
        round: Of the run.
        purpose: What the part is used for, such as "train" or "evaluate 3".
        request_digest: SHA-256 of the request without the head that it echoes.
        first_step: First step of the plan, from 0.
        steps: How many, > 0.
    """

    part: Part
    run: str
    round: int
    purpose: str
    request_digest: str
    first_step: int
    steps: int

    @property
    def plan_key(self) -> PlanKey:
        """Of the plan that the steps belong to."""
        return PlanKey(self.part, self.run, self.purpose)

    @property
    def end_step(self) -> int:
        """The step after the last one."""
        return self.first_step + self.steps


@dataclass(frozen=True, kw_only=True)
class Spending(StepsOfPlan):
    """What a request asks to spend.

    Attributes:
        plan_digest: SHA-256 of the plan as the request states it.
        plan: Events of the whole run, in the order of the steps, at one sampling rate.

    Raises:
        ValueError: If the plan is empty or has several sampling rates, or the steps lie outside it.
    """

    plan_digest: str
    plan: History

    def __post_init__(self) -> None:
        planned = steps_of(self.plan)
        if len({event.sampling_rate for event in self.plan}) != 1:
            raise ValueError("plan must have at least one event, and one sampling rate for all")
        if self.first_step < 0 or self.steps < 1 or self.end_step > planned:
            raise ValueError(
                f"first_step {self.first_step} and steps {self.steps} must lie within the plan's "
                f"{planned} steps"
            )


@dataclass(frozen=True, kw_only=True)
class Reservation(StepsOfPlan):
    """Steps that were set aside for a request before they ran; they count whatever became of them.

    Its `steps` are those that were admitted.

    Attributes:
        identity: Position of its entry in the chain.
        time: When it was made, ISO 8601.
        process: Which process works on it, or did last.
        state: `reserved` until the reply is stored (`done`) or the work is given up (`failed`).
        takeovers: How often a process went on with what a dead one had left open.
        durability: Of that process's changes to the ledger.
        interrupted: An interrupt ended the work in that process, which may live on.
    """

    identity: int
    time: str
    process: str
    state: ReservationState = "reserved"
    takeovers: int = 0
    durability: Durability = "normal"
    interrupted: bool = False

    def overlaps(self, spending: Spending) -> bool:
        """Say whether a step set aside here is asked for again."""
        first_step = max(self.first_step, spending.first_step)
        return first_step < min(self.end_step, spending.end_step)


@dataclass(frozen=True)
class StoredPlan:
    """A run's plan as fixed by its first request.

    Attributes:
        digest: SHA-256 of the plan as the request stated it.
        history: Its events.
    """

    digest: str
    history: History


@dataclass(frozen=True)
class DataVersion:
    """One version of a cohort's records under the ledger's secret key.

    Attributes:
        fingerprint: Hash of all records.
        units: Sketch of the units, see `unit_sketch`.
    """

    fingerprint: str
    units: tuple[str, ...]


@dataclass
class LedgerState:
    """One cohort's state after some entries; only `read_state` adds to it.

    Attributes:
        cohort: None as long as no entry made it.
        orders: Of its Renyi filter.
        data_versions: Of its records, in the order in which they came into use.
        plans: By key.
        rules: By part.
        reservations: By identity.
        spending: All events reserved in a part, by part.
        reply_digests: SHA-256 of the stored replies, by the identity of their reservation.
        evaluations: Run and digest of each request that was counted.
        lowered: What a command lowered each part's epsilon to.
        closed: Whether nothing may be spent any more.
    """

    cohort: Cohort | None = None
    orders: tuple[float, ...] = ()
    data_versions: list[DataVersion] = field(default_factory=list)
    plans: dict[PlanKey, StoredPlan] = field(default_factory=dict)
    rules: dict[str, SpendingRule] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    spending: dict[str, History] = field(default_factory=dict)
    reply_digests: dict[int, str] = field(default_factory=dict)
    evaluations: set[tuple[str, str]] = field(default_factory=set)
    lowered: float = math.inf
    closed: bool = False

    def budget(self) -> Budget:
        """Return the budget of each part that the cohort was made with."""
        assert self.cohort is not None
        return Budget(
            epsilon=self.cohort.epsilon,
            delta=self.cohort.delta,
            adjacency=self.cohort.adjacency,
            orders=self.orders,
        )

    def most(self) -> Budget:
        """Return what each part may spend from now on: the budget, or less if a command said so."""
        budget = self.budget()
        return replace(budget, epsilon=min(budget.epsilon, self.lowered))

    def planned(self, part: Part, run: str, purpose: str) -> StoredPlan | None:
        """Return a run's plan as its first request fixed it, so that its noise is solved once."""
        return self.plans.get(PlanKey(part, run, purpose))

    def plan_of(self, reservation: Reservation) -> History:
        """Return the events of the whole run that a reservation belongs to."""
        return self.plans[reservation.plan_key].history

    def is_needed(self, done: Reservation) -> bool:
        """Say whether a request may still want the reply to an earlier one.

        A simulated site lets a training reply go once its run has gone on.
        """
        if done.durability == "full" or done.part != "train":
            return True
        run_was_evaluated = any(run == done.run for run, _ in self.evaluations)
        run_went_on = any(
            later.run == done.run
            and later.identity > done.identity
            and (later.part != "train" or later.round != done.round)
            for later in self.reservations.values()
        )
        return not (run_was_evaluated or run_went_on)

    def reserved_in(self, part: Part) -> list[Reservation]:
        """Return a part's reservations in the order in which they were made."""
        return [
            reservation for reservation in self.reservations.values() if reservation.part == part
        ]

    def spent_in(self, part: Part) -> History:
        """Return every event reserved in a part, equal neighbours joined."""
        return self.spending.get(part, ())


@dataclass(frozen=True)
class VerifiedChain:
    """What a chain whose links were checked adds up to for one cohort.

    Attributes:
        heads: Of all its entries in turn.
        state: What they add up to.
    """

    heads: tuple[str, ...] = ()
    state: LedgerState = field(default_factory=LedgerState)

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        plan_events = sum(len(plan.history) for plan in self.state.plans.values())
        return (
            150 * len(self.heads)
            + 1500 * len(self.state.reservations)
            + 30_000 * len(self.state.data_versions)
            + 250 * plan_events
        )

    def with_new_entries(self, connection: sqlite3.Connection, cohort: str) -> "VerifiedChain":
        """Read and check the entries that were appended since.

        The file's entry at the last known position must have the last known head. That head is a
        hash over all entries before, so what follows was appended to the very chain that was
        checked. Where the file has another head there, or none, the whole chain is read.

        Args:
            connection: To the ledger's file.
            cohort: Name of the cohort.

        Returns:
            The longer chain.

        Raises:
            LedgerError: If a link is broken, or an entry does not fit the ones before.
        """
        length = len(self.heads)
        row = connection.execute("SELECT head FROM chain WHERE position = ?", (length,)).fetchone()
        if length == 0 or row is None or row[0] != self.heads[-1]:
            entries = read_chain(connection)
            heads = tuple(entry.head for entry in entries)
            return VerifiedChain(heads, read_state(entries, cohort))
        entries = read_chain(connection, after=length, previous=self.heads[-1])
        if not entries:
            return self
        heads = (*self.heads, *(entry.head for entry in entries))
        return VerifiedChain(heads, read_state(entries, cohort, self.state))


def read_state(
    entries: Iterable[Entry], cohort: str, before: LedgerState | None = None
) -> LedgerState:
    """Add up the entries of one cohort in a checked chain.

    Args:
        entries: Of any cohorts, in the order of the chain.
        cohort: Name of the cohort.
        before: What earlier entries add up to; it stays as it is.

    Returns:
        The state, whose `cohort` is None if the chain does not know it.

    Raises:
        LedgerError: If an entry completes, fails or takes over what is not open, or is of an
            unknown kind.
    """
    earlier = LedgerState() if before is None else before
    copies = {
        attribute.name: copy(getattr(earlier, attribute.name)) for attribute in fields(earlier)
    }
    state = LedgerState(**copies)
    for entry in entries:
        if entry.content["cohort"] == cohort:
            _add_entry(state, entry)
    return state


def _add_entry(state: LedgerState, entry: Entry) -> None:
    content = entry.content
    match content["kind"]:
        case "cohort":
            settings = dict(content["settings"])
            # JSON has no infinity: an unlimited budget is the text "inf".
            settings["epsilon"] = float(settings["epsilon"])
            state.cohort = Cohort(**settings)
            state.orders = tuple(content["orders"])
        case "data version":
            version = DataVersion(fingerprint=content["fingerprint"], units=tuple(content["units"]))
            state.data_versions.append(version)
        case "plan":
            key = PlanKey(content["part"], content["run"], content["purpose"])
            state.plans[key] = StoredPlan(content["digest"], read_history(content["history"]))
        case "rule":
            rule = SpendingRule(content["rule"], read_history(content["schedule"]))
            state.rules[content["part"]] = rule
        case "reserved":
            _add_reservation(state, entry)
        case "evaluation":
            state.evaluations.add((content["run"], content["request_digest"]))
        case "restricted" if content["epsilon"] is None:
            state.closed = True
        case "restricted":
            state.lowered = min(state.lowered, content["epsilon"])
        case "taken over":
            reservation = _open_reservation(state, entry)
            state.reservations[reservation.identity] = replace(
                reservation,
                process=content["process"],
                takeovers=reservation.takeovers + 1,
                interrupted=False,
                # An older ledger does not tell the durability: the weaker one is taken.
                durability=content.get("durability", "normal"),
            )
        case "done":
            reservation = _open_reservation(state, entry)
            state.reservations[reservation.identity] = replace(reservation, state="done")
            state.reply_digests[reservation.identity] = content["reply_digest"]
        case "failed":
            reservation = _open_reservation(state, entry)
            state.reservations[reservation.identity] = replace(reservation, state="failed")
        case "interrupted":
            reservation = _open_reservation(state, entry)
            state.reservations[reservation.identity] = replace(reservation, interrupted=True)
        case kind:
            raise LedgerError(
                f"entry {entry.position} of the ledger is of an unknown kind, {kind!r}"
            )


def _add_reservation(state: LedgerState, entry: Entry) -> None:
    reserved = {
        key: value for key, value in entry.content.items() if key not in _NOT_OF_RESERVATION
    }
    reservation = Reservation(identity=entry.position, **reserved)
    state.reservations[entry.position] = reservation
    plan = state.plan_of(reservation)
    events = slice_history(plan, reservation.first_step, reservation.steps)
    # Only the last event of what was spent before can have an equal neighbour in the new ones.
    spent = state.spent_in(reservation.part)
    state.spending[reservation.part] = (*spent[:-1], *joined((*spent[-1:], *events)))


def _open_reservation(state: LedgerState, entry: Entry) -> Reservation:
    """Return the reservation that an entry changes, or raise LedgerError if it is not open."""
    identity = entry.content["reservation"]
    reservation = state.reservations.get(identity)
    if reservation is None or reservation.state != "reserved":
        status = "unknown" if reservation is None else reservation.state
        raise LedgerError(
            f"entry {entry.position} of the ledger: {entry.content['kind']!r} for reservation "
            f"{identity}, which is {status}"
        )
    return reservation
