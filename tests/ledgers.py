"""Ledgers that are made on first use, requests to spend, and changes of the file behind a ledger's back."""

import sqlite3
from pathlib import Path

from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Ledger, Reserved
from fl_dpbayes.privacy.ledger.state import Cohort, Spending
from fl_dpbayes.privacy.ledger.takeover import this_process
from fl_dpbayes.privacy.ledger.witness import LedgerPlace

PLAN = (GaussianEvent(10.0, 1.0, 20),)
RUN, OTHER_RUN = "a" * 16, "b" * 16
# Our process id had another process before us.
DEAD = this_process().rpartition(":")[0] + ":0"


def place_of(path: Path, durability="normal") -> LedgerPlace:
    return LedgerPlace(path, path.parent / "witness" / f"{path.name}.json", durability)


def open_ledger(path: Path, cohort: Cohort, durability="normal") -> Ledger:
    place = place_of(path, durability)
    try:
        return Ledger.create(place, cohort)
    except UserError:
        return Ledger.open(place, cohort)


def spending(
    round_=1,
    *,
    run=RUN,
    plan=PLAN,
    first_step=None,
    steps=5,
    part="train",
    purpose="train",
    request=None,
):
    """Ask for five steps of a plan, those of the round unless told otherwise."""
    first_step = (round_ - 1) * 5 if first_step is None else first_step
    digest = f"{run}{round_}{steps}" if request is None else request
    return Spending(
        part=part,
        run=run,
        round=round_,
        purpose=purpose,
        request_digest=digest,
        plan_digest=f"plan {plan}",
        plan=plan,
        first_step=first_step,
        steps=steps,
    )


def complete(ledger: Ledger, request: Spending, reply=b"reply") -> Reserved:
    reserved = ledger.reserve(request)
    assert isinstance(reserved, Reserved)
    ledger.commit(reserved.reservation, reply)
    return reserved


def execute(path: Path, *statements: str) -> None:
    """Change the file of a ledger behind its back."""
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
