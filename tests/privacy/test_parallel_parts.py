"""Disjoint parts compose in parallel: a cohort costs what its dearest part does (Zhang et al. 2022, Prop. A.1)."""

import pytest

from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Ledger, Refused, Reserved
from fl_dpbayes.privacy.ledger.state import PARTS, Cohort
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from tests.ledgers import RUN, open_ledger, spending

EPSILON, DELTA = 3.0, 1e-5
COHORT = Cohort("cohort", "patient", EPSILON, DELTA, "add_or_remove_one")
HISTORIES = {
    "train": (GaussianEvent(2.0, 0.1, 100),),
    "recalibration": (GaussianEvent(20.0, 1.0, 40),),
    "test": (GaussianEvent(6.0, 1.0, 2),),
}


def spend(ledger: Ledger, part: str, run: str = RUN):
    history = HISTORIES[part]
    steps = history[0].steps
    request = spending(1, part=part, run=run, purpose=part, plan=history, steps=steps)
    reserved = ledger.reserve(request)
    if isinstance(reserved, Reserved):
        ledger.commit(reserved.reservation, b"reply")
    return reserved


@pytest.mark.parametrize("order", [PARTS, PARTS[::-1]])
def test_each_part_costs_what_it_would_alone_whatever_the_others_spent(tmp_path, order) -> None:
    with open_ledger(tmp_path / "together.sqlite", COHORT) as ledger:
        for part in order:
            assert spend(ledger, part).steps == HISTORIES[part][0].steps
        together = {part: ledger.spent(part).epsilon for part in PARTS}
    alone = {part: pld_epsilon(history, DELTA, "add_or_remove_one") for part, history in HISTORIES.items()}
    assert together == pytest.approx(alone)
    assert max(together.values()) <= EPSILON < sum(together.values())


def test_a_part_that_is_spent_leaves_the_others_theirs(tmp_path) -> None:
    with open_ledger(tmp_path / "one.sqlite", COHORT) as ledger:
        for number in range(9):
            answer = spend(ledger, "recalibration", f"{number}" * 16)
        assert isinstance(answer, Refused)
        assert spend(ledger, "train").steps == 100
