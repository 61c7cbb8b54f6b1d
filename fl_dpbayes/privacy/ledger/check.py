"""Whether a ledger is sound: its file, its chain, its stored replies and its sums."""

import hashlib
import sqlite3
from dataclasses import replace

from fl_dpbayes.privacy.filter import admitted_steps
from fl_dpbayes.privacy.ledger.file import PUT_BACK, LedgerError, ledger_errors, ledger_key
from fl_dpbayes.privacy.ledger.hash_chain import read_chain
from fl_dpbayes.privacy.ledger.state import PARTS, LedgerState, Part, read_state
from fl_dpbayes.privacy.ledger.takeover import MOST_TAKEOVERS

# Sums made in another order may differ in their last bits.
_ROUNDING = 1 + 1e-9


def ledger_problems(connection: sqlite3.Connection, cohort: str) -> list[str]:
    """Check everything that a ledger states about one cohort.

    Args:
        connection: to its file.
        cohort: name.

    Returns:
        One line for each problem; empty if there is none.
    """
    try:
        with ledger_errors():
            found = [f"the file is damaged: {row[0]}" for row in connection.execute("PRAGMA integrity_check")]
            if found != ["the file is damaged: ok"]:
                return found
            ledger_key(connection)
            state = read_state(read_chain(connection), cohort)
            over = [problem for part in PARTS for problem in _budget_problems(state, part)]
            return [*_reply_problems(connection, state), *_takeover_problems(state), *over]
    except LedgerError as error:
        return [str(error)]


def reply_body(connection: sqlite3.Connection, state: LedgerState, reservation: int) -> bytes:
    """Read a stored reply and check it against the digest in the chain.

    Raises:
        LedgerError: if it is missing or was changed.
    """
    row = connection.execute("SELECT body FROM reply WHERE reservation = ?", (reservation,)).fetchone()
    if row is None or hashlib.sha256(row[0]).hexdigest() != state.reply_digests[reservation]:
        raise LedgerError(f"the stored reply of reservation {reservation} is missing or was changed: {PUT_BACK}")
    return bytes(row[0])


def _reply_problems(connection: sqlite3.Connection, state: LedgerState) -> list[str]:
    problems = []
    for reservation in state.reply_digests:
        try:
            reply_body(connection, state, reservation)
        except LedgerError as error:
            problems.append(str(error))
    return problems


def _takeover_problems(state: LedgerState) -> list[str]:
    return [
        f"reservation {row.identity} was taken over {row.takeovers} times, and {MOST_TAKEOVERS} are allowed"
        for row in state.reservations.values()
        if row.takeovers > MOST_TAKEOVERS
    ]


def _budget_problems(state: LedgerState, part: Part) -> list[str]:
    spent = state.spent_in(part)
    if not spent:
        return []
    budget = state.budget()
    budget = replace(budget, epsilon=budget.epsilon * _ROUNDING)
    steps, admitted = sum(event.steps for event in spent), admitted_steps(state.rules[part], (), spent, budget)
    if admitted == steps:
        return []
    return [f"part {part!r} holds {steps} steps, but its {state.rules[part].name} admits only {admitted} of them"]
