"""What a part of a cohort has spent so far, and whether what the ledger states is sound."""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from fl_dpbayes.privacy.events import History, steps_of
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
from fl_dpbayes.protocol import EpsilonMethod

# Sums made in another order may differ in their last bits.
_ROUNDING = 1 + 1e-9
_FILE_IS_SOUND = ["ok"]


@dataclass(frozen=True)
class Spent:
    """What was reserved in a part, completed or not.

    Attributes:
        part: Of the cohort.
        history: Every event reserved in it.
        steps: Their number.
        epsilon: What they cost at the cohort's delta.
        method: `pld` for the schedule of one run, else the filter's name.
        mu: Of Gaussian differential privacy.
    """

    part: Part
    history: History
    steps: int
    epsilon: float
    method: EpsilonMethod
    mu: GdpMu


@dataclass(frozen=True)
class _SingleRun:
    """The plan of a part's only run, which repeated no step, and the steps that it reached."""

    plan: History
    reached_steps: int


def spent(state: LedgerState, part: Part) -> Spent:
    """Account for a part.

    A single run that repeated no step costs what the planned steps up to its last one cost
    together, by their privacy-loss distribution, whichever of them it skipped. That holds if where
    it ends was fixed beforehand (by its plan, or by the budget); `planned_epsilon` holds if the
    server ended it because of what it saw. Anything else, and a run that skipped so much that this
    passes the budget, costs what the part's rule says.

    Args:
        state: Of the cohort.
        part: Of the cohort.

    Returns:
        What was reserved in the part, and its cost.
    """
    history = state.spent_in(part)
    budget = state.budget()
    account = Spent(
        part=part,
        history=history,
        steps=steps_of(history),
        epsilon=0.0,
        method="pld",
        mu=gdp_mu(history, budget.adjacency),
    )
    if not history:
        return account
    run = _single_run(state, part)
    if run is not None:
        epsilon = prefix_epsilon(
            run.plan, steps=run.reached_steps, delta=budget.delta, adjacency=budget.adjacency
        )
        if epsilon <= budget.epsilon:
            return replace(account, epsilon=epsilon)
    rule = state.rules[part]
    epsilon = filter_epsilon(rule, history, budget)
    method = "pld" if rule.name == "fixed schedule" else rule.name
    return replace(account, epsilon=epsilon, method=method)


def planned_epsilon(state: LedgerState, part: Part) -> float | None:
    """Account for the whole plan of a part's only run, at the cohort's delta.

    Args:
        state: Of the cohort.
        part: Of the cohort.

    Returns:
        epsilon, or None if there is no such run or nothing of it is unfinished.
    """
    run = _single_run(state, part)
    if run is None or run.reached_steps == steps_of(run.plan):
        return None
    budget = state.budget()
    return pld_epsilon(run.plan, budget.delta, budget.adjacency)


def ledger_problems(connection: sqlite3.Connection, cohort: str) -> list[str]:
    """Check the file, its chain, and a cohort's stored replies and sums.

    Args:
        connection: To the ledger's file.
        cohort: Name of the cohort.

    Returns:
        One line of text for each problem.
    """
    try:
        with ledger_errors():
            checks = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            if checks != _FILE_IS_SOUND:
                return [f"the file is damaged: {check}" for check in checks]
            ledger_key(connection)
        # Chain and replies of one moment: the site may be at work.
        with transaction(connection):
            state = read_state(read_chain(connection), cohort)
            return [
                *_reply_problems(connection, state),
                *_takeover_problems(state),
                *_budget_problems(state),
            ]
    except LedgerError as error:
        return [str(error)]


def reply_body(connection: sqlite3.Connection, state: LedgerState, reservation: int) -> bytes:
    """Read a stored reply.

    Args:
        connection: To the ledger's file.
        state: Of the cohort.
        reservation: Identity of a reservation that is done.

    Returns:
        The reply as it was stored.

    Raises:
        LedgerError: If it is missing, or its digest is not the one in the chain.
    """
    row = connection.execute(
        "SELECT body FROM reply WHERE reservation = ?", (reservation,)
    ).fetchone()
    if row is None or hashlib.sha256(row[0]).hexdigest() != state.reply_digests[reservation]:
        raise LedgerError(
            f"the stored reply of reservation {reservation} is missing or was changed: {PUT_BACK}"
        )
    return bytes(row[0])


def _single_run(state: LedgerState, part: Part) -> _SingleRun | None:
    """Return a part's only run; None if there are several, or a step was repeated."""
    reservations = sorted(state.reserved_in(part), key=lambda reservation: reservation.first_step)
    if len({reservation.plan_key for reservation in reservations}) != 1:
        return None
    for earlier, later in pairwise(reservations):
        if earlier.end_step > later.first_step:
            return None
    last = reservations[-1]
    return _SingleRun(plan=state.plan_of(last), reached_steps=last.end_step)


def _reply_problems(connection: sqlite3.Connection, state: LedgerState) -> Iterator[str]:
    for reservation in state.reply_digests:
        try:
            reply_body(connection, state, reservation)
        except LedgerError as error:
            if state.is_needed(state.reservations[reservation]):
                yield str(error)


def _takeover_problems(state: LedgerState) -> Iterator[str]:
    for reservation in state.reservations.values():
        if reservation.takeovers > MOST_TAKEOVERS:
            yield (
                f"reservation {reservation.identity} was taken over {reservation.takeovers} times, "
                f"and {MOST_TAKEOVERS} are allowed"
            )


def _budget_problems(state: LedgerState) -> Iterator[str]:
    for part in PARTS:
        history = state.spent_in(part)
        if not history:
            continue
        rule = state.rules[part]
        budget = state.budget()
        rounded_budget = replace(budget, epsilon=budget.epsilon * _ROUNDING)
        steps = steps_of(history)
        admitted = admitted_steps(rule, spent=(), requested=history, budget=rounded_budget)
        if admitted != steps:
            yield (
                f"part {part!r} holds {steps} steps, but its {rule.name} admits only {admitted} "
                "of them"
            )
