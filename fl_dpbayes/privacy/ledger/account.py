"""What a part of a cohort has spent so far, and whether what the ledger states is sound."""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.filter import admitted_steps, filter_epsilon
from fl_dpbayes.privacy.gdp import GdpMu, gdp_mu
from fl_dpbayes.privacy.ledger.file import (
    PUT_BACK,
    LedgerError,
    ledger_errors,
    ledger_key,
    read_chain,
    transaction,
)
from fl_dpbayes.privacy.ledger.state import PARTS, LedgerState, Part, read_state
from fl_dpbayes.privacy.ledger.takeover import MOST_TAKEOVERS
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon, prefix_epsilon

# Sums made in another order may differ in their last bits.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Spent:
    """What was reserved in a part, completed or not.

    `method` is `pld` for one run's schedule, else the filter's.
    """

    part: Part
    history: History
    steps: int
    epsilon: float
    method: Literal["pld", "rdp filter", "gdp filter"]
    mu: GdpMu


def spent(state: LedgerState, part: Part) -> Spent:
    """Account for a part.

    A single run that repeated no step costs what the planned steps up to its last one cost
    together, by their privacy-loss distribution, whichever of them it skipped. That holds if where
    it ends was fixed beforehand (by its plan, or by the budget); `planned_epsilon` holds if the
    server ended it because of what it saw. Anything else, and a run that skipped so much that this
    passes the budget, costs what the part's rule says.
    """
    history, budget, run = state.spent_in(part), state.budget(), _single_run(state, part)
    steps, mu = sum(event.steps for event in history), gdp_mu(history, budget.adjacency)
    if not history:
        return Spent(part, history, steps, 0.0, "pld", mu)
    if run is not None:
        plan, reached = run
        epsilon = prefix_epsilon(plan, reached, budget.delta, budget.adjacency)
        if epsilon <= budget.epsilon:
            return Spent(part, history, steps, epsilon, "pld", mu)
    rule = state.rules[part]
    method = "pld" if rule.name == "fixed schedule" else rule.name
    return Spent(part, history, steps, filter_epsilon(rule, history, budget), method, mu)


def planned_epsilon(state: LedgerState, part: Part) -> float | None:
    """Account for the whole plan of a part's only run, at the cohort's delta.

    None if there is nothing unfinished.
    """
    run, budget = _single_run(state, part), state.budget()
    if run is None or run[1] == sum(event.steps for event in run[0]):
        return None
    return pld_epsilon(run[0], budget.delta, budget.adjacency)


def ledger_problems(connection: sqlite3.Connection, cohort: str) -> list[str]:
    """Check the file, its chain, and a cohort's stored replies and sums: one line for each problem."""
    try:
        with ledger_errors():
            found = [
                f"the file is damaged: {row[0]}"
                for row in connection.execute("PRAGMA integrity_check")
            ]
            if found != ["the file is damaged: ok"]:
                return found
            ledger_key(connection)
        # Chain and replies of one moment: the site may be at work.
        with transaction(connection):
            return list(_problems(connection, read_state(read_chain(connection), cohort)))
    except LedgerError as error:
        return [str(error)]


def reply_body(connection: sqlite3.Connection, state: LedgerState, reservation: int) -> bytes:
    """Read a stored reply.

    LedgerError if it is missing, or its digest is not the one in the chain.
    """
    row = connection.execute(
        "SELECT body FROM reply WHERE reservation = ?", (reservation,)
    ).fetchone()
    if row is None or hashlib.sha256(row[0]).hexdigest() != state.reply_digests[reservation]:
        raise LedgerError(
            f"the stored reply of reservation {reservation} is missing or was changed: {PUT_BACK}"
        )
    return bytes(row[0])


def _single_run(state: LedgerState, part: Part) -> tuple[History, int] | None:
    """Return the plan of a part's only run and how far it came.

    None if there are several, or a step was repeated.
    """
    reservations = sorted(state.reserved_in(part), key=lambda reservation: reservation.first_step)
    if len({(reservation.run, reservation.purpose) for reservation in reservations}) != 1:
        return None
    if any(
        earlier.first_step + earlier.steps > later.first_step
        for earlier, later in pairwise(reservations)
    ):
        return None
    last = reservations[-1]
    return state.plan_of(last), last.first_step + last.steps


def _problems(connection: sqlite3.Connection, state: LedgerState) -> Iterator[str]:
    for reservation in state.reply_digests:
        try:
            reply_body(connection, state, reservation)
        except LedgerError as error:
            if state.is_needed(state.reservations[reservation]):
                yield str(error)
    for row in state.reservations.values():
        if row.takeovers > MOST_TAKEOVERS:
            yield (
                f"reservation {row.identity} was taken over {row.takeovers} times, and "
                f"{MOST_TAKEOVERS} are allowed"
            )
    for part in PARTS:
        if history := state.spent_in(part):
            budget, rule, steps = (
                state.budget(),
                state.rules[part],
                sum(event.steps for event in history),
            )
            admitted = admitted_steps(
                rule, (), history, replace(budget, epsilon=budget.epsilon * _ROUNDING)
            )
            if admitted != steps:
                yield (
                    f"part {part!r} holds {steps} steps, but its {rule.name} admits only "
                    f"{admitted} of them"
                )
