"""What the entries of a ledger add up to for one cohort: plans, rules and reservations."""

import math
import sqlite3
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import History, joined, read_history, slice_history
from fl_dpbayes.privacy.filter import Budget, SpendingRule
from fl_dpbayes.privacy.ledger.file import Durability, Entry, LedgerError, read_chain

Part = Literal["train", "test", "recalibration"]
PARTS: tuple[Part, ...] = get_args(Part)
ReservationState = Literal["reserved", "done", "failed"]


@dataclass(frozen=True)
class Cohort:
    """Whose records a budget protects, and how much may ever be spent on each part.

    Fixed when its ledger is made.

    A corrected record does not make another cohort. `unit`: such as "patient". `epsilon`: the
    budget of each part. `planned_runs`: for how many runs of its first plan it was declared, which
    then are one schedule. `split`: what tells the rule that puts each unit in its part from any
    other; a unit that moved to another part would have both budgets spent on it.
    """

    name: str
    unit: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    split: str = ""
    planned_runs: int = 1


@dataclass(frozen=True)
class Spending:
    """What a request asks to spend.

    `purpose`: what the part is used for, such as "train" or "evaluate 3"; a run has one plan for
    each purpose. `request_digest`: SHA-256 of the request without the head that it echoes.
    `plan_digest`: SHA-256 of the plan as the request states it. `plan`: events of the whole run, in
    the order of the steps, at one sampling rate. `first_step`: first step of the plan that is asked
    for, from 0. `steps`: how many, > 0.
    """

    part: Part
    run: str
    round: int
    purpose: str
    request_digest: str
    plan_digest: str
    plan: History
    first_step: int
    steps: int

    def __post_init__(self) -> None:
        planned = sum(event.steps for event in self.plan)
        if len({event.sampling_rate for event in self.plan}) != 1:
            raise ValueError("plan must have at least one event, and one sampling rate for all")
        if self.first_step < 0 or self.steps < 1 or self.first_step + self.steps > planned:
            said = f"first_step {self.first_step} and steps {self.steps}"
            raise ValueError(f"{said} must lie within the plan's {planned} steps")


@dataclass(frozen=True)
class Reservation:
    """Steps that were set aside for a request before they ran; they count whatever became of them.

    `identity`: position of its entry in the chain. `time`: ISO 8601. `steps`: how many were
    admitted. `process`: which process works on it, or did last. `state`: `reserved` until the reply
    is stored (`done`) or the work is given up (`failed`). `takeovers`: how often a process went on
    with what a dead one had left open. `durability`: of that process's changes to the ledger.
    `interrupted`: an interrupt ended the work in that process, which may live on.
    """

    identity: int
    time: str
    part: Part
    run: str
    round: int
    purpose: str
    request_digest: str
    first_step: int
    steps: int
    process: str
    state: ReservationState = "reserved"
    takeovers: int = 0
    durability: Durability = "normal"
    interrupted: bool = False

    def overlaps(self, spending: Spending) -> bool:
        """Say whether a step set aside here is asked for again."""
        ends = self.first_step + self.steps, spending.first_step + spending.steps
        return max(self.first_step, spending.first_step) < min(ends)


@dataclass(frozen=True)
class StoredPlan:
    """A run's plan as fixed by its first request: digest of its statement, and its events."""

    digest: str
    history: History


@dataclass(frozen=True)
class DataVersion:
    """One version of a cohort's records under the ledger's secret key: hash of all, and sketch of the units."""

    fingerprint: str
    units: tuple[str, ...]


@dataclass
class LedgerState:
    """One cohort's state after some entries; grown by `read_state` only."""

    cohort: Cohort | None = None
    orders: tuple[float, ...] = ()
    data_versions: list[DataVersion] = field(default_factory=list)
    plans: dict[tuple[str, str, str], StoredPlan] = field(default_factory=dict)
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
        return Budget(self.cohort.epsilon, self.cohort.delta, self.cohort.adjacency, self.orders)

    def most(self) -> Budget:
        """Return what each part may spend from now on: the budget, or less where a command lowered it."""
        return replace(self.budget(), epsilon=min(self.budget().epsilon, self.lowered))

    def plan_of(self, reservation: Reservation) -> History:
        """Return the events of the whole run that a reservation belongs to."""
        return self.plans[reservation.part, reservation.run, reservation.purpose].history

    def is_needed(self, done: Reservation) -> bool:
        """Say whether a request may still want the reply to an earlier one: not where a simulation has gone on."""
        after = (
            row
            for row in self.reservations.values()
            if row.run == done.run and row.identity > done.identity
        )
        gone_on = any((row.part, row.round) != ("train", done.round) for row in after)
        gone_on |= any(run == done.run for run, _ in self.evaluations)
        return done.durability == "full" or done.part != "train" or not gone_on

    def reserved_in(self, part: Part) -> list[Reservation]:
        """Return a part's reservations in the order in which they were made."""
        return [
            reservation for reservation in self.reservations.values() if reservation.part == part
        ]

    def spent_in(self, part: Part) -> History:
        """Return every event reserved in a part, equal neighbours joined."""
        return self.spending.get(part, ())


@dataclass(frozen=True)
class Verified:
    """What a chain whose links were checked adds up to for one cohort, and the heads of all its entries in turn."""

    heads: tuple[str, ...] = ()
    state: LedgerState = field(default_factory=LedgerState)

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        state = self.state
        plans = sum(len(plan.history) for plan in state.plans.values())
        return (
            150 * len(self.heads)
            + 1500 * len(state.reservations)
            + 30_000 * len(state.data_versions)
            + 250 * plans
        )

    def with_new(self, connection: sqlite3.Connection, cohort: str) -> "Verified":
        """Read and check the entries that were appended since.

        The file is tied to what is known by its entry at that position: its head is a hash over all
        before it, so what follows it was appended to the very chain that was checked. Where it has
        another head, or none, the whole chain is read. Raises LedgerError as `read_chain` and
        `read_state`.
        """
        known = len(self.heads)
        row = connection.execute("SELECT head FROM chain WHERE position = ?", (known,)).fetchone()
        tied = row is not None and bool(known) and row[0] == self.heads[-1]
        before = self if tied else Verified()
        new = read_chain(connection, known, self.heads[-1]) if tied else read_chain(connection)
        if tied and not new:
            return self
        heads = (*before.heads, *(entry.head for entry in new))
        return Verified(heads, read_state(new, cohort, before.state))


def read_state(
    entries: Iterable[Entry], cohort: str, before: LedgerState | None = None
) -> LedgerState:
    """Add up the entries of one cohort in a checked chain.

    `cohort` is None if the chain does not know it.

    `before`: what earlier entries add up to; it stays as it is. Raises LedgerError if an entry
    completes, fails or takes over what is not open.
    """
    known = LedgerState() if before is None else before
    state = LedgerState(*(copy(getattr(known, each.name)) for each in fields(known)))
    for entry in entries:
        if entry.content["cohort"] == cohort:
            _add(state, entry)
    return state


def _add(state: LedgerState, entry: Entry) -> None:
    content = entry.content
    changes: dict[str, Any] = {}
    match content["kind"]:
        case "cohort":
            settings = content["settings"]
            state.cohort = Cohort(**settings | {"epsilon": float(settings["epsilon"])})
            state.orders = tuple(content["orders"])
        case "data version":
            state.data_versions.append(DataVersion(content["fingerprint"], tuple(content["units"])))
        case "plan":
            key = (content["part"], content["run"], content["purpose"])
            state.plans[key] = StoredPlan(content["digest"], read_history(content["history"]))
        case "rule":
            state.rules[content["part"]] = SpendingRule(
                content["rule"], read_history(content["schedule"])
            )
        case "reserved":
            stated = {
                key: value for key, value in content.items() if key not in ("kind", "cohort", "log")
            }
            made = state.reservations[entry.position] = Reservation(
                identity=entry.position, **stated
            )
            before, new = (
                state.spent_in(made.part),
                slice_history(state.plan_of(made), made.first_step, made.steps),
            )
            state.spending[made.part] = (*before[:-1], *joined((*before[-1:], *new)))
        case "evaluation":
            state.evaluations.add((content["run"], content["request_digest"]))
        case "restricted":
            state.closed |= content["epsilon"] is None
            state.lowered = min(state.lowered, content["epsilon"] or math.inf)
        case "taken over":
            takeovers = _open_reservation(state, entry).takeovers + 1
            # An older ledger does not tell the durability: the weaker one is taken.
            changes = {
                "process": content["process"],
                "takeovers": takeovers,
                "interrupted": False,
                "durability": content.get("durability", "normal"),
            }
        case "done" | "failed":
            changes = {"state": content["kind"]}
        case "interrupted":
            changes = {"interrupted": True}
        case kind:
            raise LedgerError(
                f"entry {entry.position} of the ledger is of an unknown kind, {kind!r}"
            )
    if changes:
        earlier = _open_reservation(state, entry)
        state.reservations[earlier.identity] = replace(earlier, **changes)
        if changes.get("state") == "done":
            state.reply_digests[earlier.identity] = content["reply_digest"]


def _open_reservation(state: LedgerState, entry: Entry) -> Reservation:
    identity = entry.content["reservation"]
    found = state.reservations.get(identity)
    if found is None or found.state != "reserved":
        was = "unknown" if found is None else found.state
        kind = entry.content["kind"]
        raise LedgerError(
            f"entry {entry.position} of the ledger: {kind!r} for reservation {identity}, "
            f"which is {was}"
        )
    return found
