"""What a second run costs: said before the first, and then so by the ledger itself."""

import math
import re
from pathlib import Path

import pytest

from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.filter import Budget, filter_orders
from fl_dpbayes.privacy.ledger.ledger import Refused, Reserved
from fl_dpbayes.privacy.ledger.state import Cohort
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.second_run import price_of_second_run
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.report.numbers import rounded_up
from tests.ledgers import open_ledger, spending

DELTA = 1e-3
STEPS = 20
CASES = {  # epsilon of a run, sampling rate, budget, planned runs, rule, steps of the second run
    "Renyi filter": (2.0, 0.2, 6.0, 1, "rdp filter", 20),
    "Renyi filter, a part": (2.0, 0.2, 3.4, 1, "rdp filter", None),
    "one schedule alone": (2.0, 0.2, 2.0, 1, "fixed schedule", 0),
    "declared": (2.0, 0.2, 6.0, 2, "fixed schedule", 20),
    "declared, and a part fits": (2.0, 0.2, 2.5, 2, "fixed schedule", None),
    "full batches": (2.0, 1.0, 6.0, 1, "gdp filter", 20),
}


def plan_of(epsilon: float, rate: float) -> tuple[GaussianEvent, ...]:
    sigma = solve_multiplier(epsilon, DELTA, rate, STEPS, "add_or_remove_one")
    return (GaussianEvent(sigma, rate, STEPS),)


@pytest.mark.parametrize("case", CASES)
def test_price_that_is_told_before_is_what_the_ledger_counts_after(tmp_path, case: str) -> None:
    epsilon, rate, life, runs, rule, admitted = CASES[case]
    plan = plan_of(epsilon, rate)
    budget = Budget(life, DELTA, "add_or_remove_one", filter_orders(life, DELTA))
    price = price_of_second_run(plan, budget, runs)
    assert price.rule == rule
    assert price.admitted == admitted or (admitted is None and 0 < price.admitted < STEPS)
    assert price.first <= price.after_one <= price.whole <= life
    # One plan of all of it is never dearer.
    assert price.as_one_plan <= price.whole * (1 + 1e-9)
    cohort = Cohort("a", "patient", life, DELTA, "add_or_remove_one", planned_runs=runs)
    with open_ledger(tmp_path / "l.sqlite", cohort) as ledger:
        first = ledger.reserve(spending(1, plan=plan, first_step=0, steps=STEPS, run="a" * 16))
        assert isinstance(first, Reserved)
        assert first.steps == price.steps
        assert ledger.spent("train").epsilon == pytest.approx(price.first, rel=1e-9)
        one = ledger.reserve(spending(1, plan=plan, first_step=0, steps=1, run="b" * 16))
        if price.admitted == 0:
            assert one == Refused(RefusalCode.BUDGET_EXHAUSTED)
            return
        assert ledger.spent("train").epsilon == pytest.approx(price.after_one, rel=1e-9)
        ledger.reserve(spending(2, plan=plan, first_step=1, steps=STEPS - 1, run="b" * 16))
        assert ledger.spent("train").steps == price.steps + price.admitted
        assert ledger.spent("train").epsilon == pytest.approx(price.whole, rel=1e-9)
        # What is counted is never less than what the steps cost by their privacy-loss distribution.
        cost = pld_epsilon(ledger.state().spent_in("train"), DELTA)
        assert cost <= ledger.spent("train").epsilon * (1 + 1e-9)
        assert ledger.verify() == []


def test_declared_runs_are_a_stock_that_no_less_private_and_no_further_step_takes_from(
    tmp_path,
) -> None:
    plan = plan_of(2.0, 0.2)
    weaker, stronger = (
        (GaussianEvent(plan[0].noise_multiplier * by, 0.2, STEPS),) for by in (0.99, 1.01)
    )
    cohort = Cohort("a", "patient", 6.0, DELTA, "add_or_remove_one", planned_runs=2)
    with open_ledger(tmp_path / "l.sqlite", cohort) as ledger:
        ask = [
            spending(1, plan=each, first_step=0, steps=STEPS, run=run * 16)
            for each, run in ((plan, "a"), (weaker, "b"), (stronger, "c"), (plan, "d"))
        ]
        answers = [ledger.reserve(each) for each in ask]
        assert [isinstance(answer, Reserved) for answer in answers] == [True, False, True, False]
        assert ledger.spent("train").epsilon == pytest.approx(
            pld_epsilon((*plan, *plan), DELTA), rel=1e-6
        )
    with open_ledger(tmp_path / "l.sqlite", cohort) as again:
        assert again.cohort.planned_runs == 2
        assert math.isclose(
            again.spent("train").epsilon, pld_epsilon((*plan, *plan), DELTA), rel_tol=1e-6
        )


def test_worked_example_of_the_steward_s_page_is_what_is_counted() -> None:
    page = (Path(__file__).parents[2] / "docs" / "steward.md").read_text(encoding="utf-8")
    plan = plan_of(2.0, 0.2)

    def row(life: float, runs: int) -> list[str]:
        budget = Budget(life, DELTA, "add_or_remove_one", filter_orders(life, DELTA))
        price = price_of_second_run(plan, budget, runs)
        return [rounded_up(value) for value in (price.first, price.after_one, price.whole)]

    for runs in (1, 2):
        assert re.search(
            rf"\(`planned_runs = {runs}`\) \| {' [|] '.join(row(6.0, runs))} \|", page
        ), row(6.0, runs)
    assert f"the first row is {', '.join(row(4.0, 1))}:" in page, row(4.0, 1)
