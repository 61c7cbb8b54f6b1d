"""What a site says of its spending is computed again: it lies between its cost and its budget."""

from unittest import mock

import numpy as np
import pytest

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.sampler import SGLD, Adam, ConstantStepSize, ExponentialStepSize
from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.check_statement import (
    MOST_KINDS,
    checked_statement,
    epsilon_bounds,
    largest_at_small_delta,
)
from fl_dpbayes.privacy.events import (
    GaussianEvent,
    history_of_steps,
    joined,
    read_history,
    write_history,
)
from fl_dpbayes.privacy.filter import Budget, choose_rule, filter_epsilon, filter_orders
from fl_dpbayes.privacy.gdp import gdp_mu
from fl_dpbayes.privacy.planned_noise import planned_stretch
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon, prefix_epsilon
from fl_dpbayes.protocol.train import PrivacyStatement
from tests import chains

DELTA = 1e-5
OWN = (GaussianEvent(1.2, 0.1, 20),)
EARLIER = (GaussianEvent(2.0, 0.05, 300),)


def stated(of_history, epsilon=None, method="pld", budget=8.0, **changes) -> PrivacyStatement:
    found = account(of_history, DELTA)
    return PrivacyStatement.model_validate(
        {
            "cohort": "north",
            "unit": "patient",
            "units": 50,
            "adjacency": "add_or_remove_one",
            "delta": DELTA,
            "epsilon": found.epsilon_pld if epsilon is None else epsilon,
            "epsilon_method": method,
            "mu": found.mu,
            "mu_kind": found.mu_kind,
            "steps": sum(event.steps for event in of_history),
            "budget": budget,
            "history": write_history(of_history),
            "seeded": False,
            **changes,
        }
    )


def test_statement_of_a_single_run_is_its_account_and_nothing_else() -> None:
    good = stated(OWN)
    assert checked_statement(good, OWN, OWN, None, DELTA) == good
    for share, said in ((0.99, "its history costs"), (1.01, "allows at most")):
        with pytest.raises(ValueError, match=said):
            checked_statement(
                good.model_copy(update={"epsilon": share * good.epsilon}), OWN, OWN, None, DELTA
            )


def test_run_that_missed_a_round_may_state_the_cost_of_the_steps_up_to_its_last() -> None:
    reached = (GaussianEvent(1.2, 0.1, 60),)
    whole = pld_epsilon(reached, DELTA)
    assert checked_statement(stated(OWN, whole), OWN, reached, None, DELTA).epsilon == whole


def test_site_that_missed_a_round_of_falling_noise_may_state_what_the_whole_plan_s_grid_gives() -> (
    None
):
    plan = tuple(GaussianEvent(0.7 * float(level), 0.002, 10) for level in np.linspace(4, 1, 20))
    answered = (plan[0], plan[2])
    reached = plan[:3]
    whole = prefix_epsilon(plan, 30, DELTA)
    assert whole > 1.005 * pld_epsilon(reached, DELTA)
    assert (
        checked_statement(stated(answered, whole), answered, reached, None, DELTA, plan).epsilon
        == whole
    )


def test_statement_by_a_filter_lies_between_its_history_and_its_budget() -> None:
    history = (*EARLIER, *OWN)
    budget = Budget(8.0, DELTA, "add_or_remove_one", filter_orders(8.0, DELTA))
    rule = choose_rule(EARLIER, budget)
    by_filter = filter_epsilon(rule, history, budget)
    assert rule.name == "rdp filter"
    assert (
        checked_statement(stated(history, by_filter, rule.name), OWN, OWN, None, DELTA).epsilon
        == by_filter
    )
    unlimited = Budget(float("inf"), DELTA, "add_or_remove_one", filter_orders(float("inf"), DELTA))
    without = stated(history, filter_epsilon(rule, history, unlimited), rule.name, budget=None)
    assert checked_statement(without, OWN, OWN, None, DELTA) == without
    wrong = [stated(history, epsilon, rule.name) for epsilon in (8.1, pld_epsilon(EARLIER, DELTA))]
    for statement in (*wrong, without.model_copy(update={"epsilon": 1e300})):
        with pytest.raises(ValueError, match="its history"):
            checked_statement(statement, OWN, OWN, None, DELTA)


@pytest.mark.parametrize(
    "history", [OWN, (*EARLIER, *OWN)], ids=["this run alone", "earlier runs too"]
)
@pytest.mark.parametrize("planned", [(), OWN], ids=["no plan", "known plan"])
def test_statement_above_its_budget_is_rejected_whatever_its_history_holds(
    history, planned
) -> None:
    cost = pld_epsilon(history, DELTA)
    for budget in (1e-9, 0.9 * cost):
        with pytest.raises(ValueError, match=r"of a budget of|allows at most"):
            checked_statement(stated(history, budget=budget), OWN, OWN, None, DELTA, planned)
    whole = stated(history, budget=cost)
    assert checked_statement(whole, OWN, OWN, None, DELTA, planned).epsilon == cost


def test_site_that_joins_late_may_state_the_schedule_of_an_earlier_run() -> None:
    # By the rule of a fixed schedule the earlier run's whole schedule counts, which the server does
    # not know.
    history = (GaussianEvent(1.0, 0.1, 5), *OWN)
    whole = pld_epsilon((GaussianEvent(1.0, 0.1, 120),), DELTA)
    reached = (GaussianEvent(1.2, 0.1, 60),)
    assert pld_epsilon(reached, DELTA) < whole < 8
    assert checked_statement(stated(history, whole), OWN, reached, None, DELTA).epsilon == whole


def test_history_without_the_run_s_own_steps_is_refused() -> None:
    # More noise, a step less, another rate, more noise later.
    for rows in (
        [[1.21, 0.1, 20]],
        [[1.2, 0.1, 19]],
        [[1.2, 0.09, 20]],
        [[1.2, 0.1, 10], [1.5, 0.1, 10]],
    ):
        with pytest.raises(ValueError, match="lacks steps of this run"):
            checked_statement(stated(read_history(rows)), OWN, OWN, None, DELTA)


def test_history_grows_by_each_round_and_never_shrinks_in_one_account() -> None:
    twice = (GaussianEvent(1.2, 0.1, 40),)
    first = stated(OWN)
    assert checked_statement(stated(twice), OWN, twice, first, DELTA).steps == 40
    for statement, said in (
        (first, "lacks steps of this run"),
        (stated(twice, cohort="south"), "another account"),
    ):
        with pytest.raises(ValueError, match=said):
            checked_statement(statement, OWN, twice, first, DELTA)


OUTSIDE = [
    ("epsilon", -5.0),
    ("mu", -3.0),
    ("steps", 10**18),
    ("steps", -1),
    ("delta", 0.0),
    ("budget", -1.0),
    ("adjacency", "none"),
    ("history", [[-1.0, 0.1, 1]]),
    ("history", [[1.0, 1.1, 1]]),
    ("history", [[1.0, 0.1, -1]]),
    ("history", [[1.0, 0.1, 1]] * 20_001),
]


def test_statement_outside_its_bounds_is_no_record() -> None:
    for field, value in OUTSIDE:
        with pytest.raises(ValueError, match=field):
            PrivacyStatement.model_validate(stated(OWN).model_dump() | {field: value})


def test_statement_without_privacy_is_infinite() -> None:
    exact = (GaussianEvent(0.0, 0.1, 20),)
    infinite = stated(exact, epsilon=0.0, mu=None, budget=None).model_copy(update={"epsilon": None})
    assert checked_statement(infinite, exact, exact, None, DELTA) == infinite
    with pytest.raises(ValueError, match="its history costs inf"):
        checked_statement(infinite.model_copy(update={"epsilon": 3.0}), exact, exact, None, DELTA)


@pytest.mark.parametrize("seed", range(3))
def test_bounds_of_long_histories_enclose_their_epsilon(seed) -> None:
    generator = np.random.default_rng(seed)
    noise = np.geomspace(1.0, 3.0, 90)
    rates = generator.choice([0.01, 0.02, 0.05, 0.1, 0.2, 0.3], 90)
    history = tuple(GaussianEvent(float(s), float(q), 3) for s, q in zip(noise, rates, strict=True))
    least, most = epsilon_bounds(history, DELTA, "add_or_remove_one")
    assert least < pld_epsilon(history, DELTA) < most


def test_full_batches_are_exact_however_many_kinds_there_are() -> None:
    history = history_of_steps(np.geomspace(20.0, 60.0, 500), 1.0)
    least, most = epsilon_bounds(history, DELTA, "replace_one")
    assert least == most == pytest.approx(pld_epsilon(history, DELTA, "replace_one"), rel=1e-12)


def test_bounds_of_decaying_noise_are_close() -> None:
    history = history_of_steps(np.geomspace(1.0, 3.0, 500), 0.02)
    least, most = epsilon_bounds(history, DELTA, "add_or_remove_one")
    assert most / least < 1.1


def test_neighbours_of_equal_noise_are_joined() -> None:
    assert joined([*OWN, *OWN, *EARLIER, *OWN]) == (GaussianEvent(1.2, 0.1, 40), *EARLIER, *OWN)


def plan_of(sampler) -> TrainingPlan:
    privacy = {"epsilon": 2.0, "noise_multiplier": 1.5, "clip_norm": 0.5, "sampling_rate": 0.1}
    return chains.plan_of(sampler, privacy, rounds=2, steps_per_round=6, burn_in=3, thinning=2)


def test_stretch_is_computed_from_the_plan_alone_golden() -> None:
    sampler = SGLD(step_size=ExponentialStepSize(initial=2.0, decay=0.5))
    stretch = planned_stretch(plan_of(sampler), 200, 4, 5)
    # T_t = a_t n (sigma C / B)^2 / 2 with B = 20; kept are the states after 5, 7 and 9 steps.
    sizes = 2.0 * 0.5 ** np.arange(4, 9)
    temperatures = sizes * 200 * (1.5 * 0.5 / 20) ** 2 / 2
    np.testing.assert_allclose(stretch.weights, sizes[[0, 2, 4]])
    np.testing.assert_allclose(stretch.temperatures, temperatures[[0, 2, 4]])
    assert stretch.temperature == pytest.approx((sizes * temperatures).sum() / sizes.sum())
    assert stretch.temperature_range == pytest.approx((temperatures[-1], temperatures[0]))
    assert (stretch.step_weight, stretch.last_step_size) == pytest.approx((sizes.sum(), sizes[-1]))
    assert stretch.history == (GaussianEvent(1.5, 0.1, 5),)
    assert stretch.reached == (GaussianEvent(1.5, 0.1, 9),)
    adam = Adam(kind="dp-adam", step_size=ConstantStepSize(initial=0.1))
    assert not planned_stretch(plan_of(adam), 200, 0, 6).temperatures.any()


def test_free_steps_of_many_kinds_do_not_hide_the_planned_ones() -> None:
    history = (*OWN, *(GaussianEvent(1e4 + number, 0.05, 1) for number in range(1000)))
    real = epsilon_bounds(OWN, DELTA, "add_or_remove_one")[0]
    mu = gdp_mu(history).mu
    base = stated(OWN, history=write_history(history), steps=1020, mu=mu)
    checked_statement(base.model_copy(update={"epsilon": 1.1 * real}), OWN, OWN, None, DELTA)
    with pytest.raises(ValueError, match="its history costs"):
        checked_statement(base.model_copy(update={"epsilon": 0.5 * real}), OWN, OWN, None, DELTA)


def _of_one_schedule(sigma: float, delta: float = 1e-3, **changes) -> PrivacyStatement:
    history = (GaussianEvent(sigma, 0.1, 50),)
    return stated(history, pld_epsilon(history, delta), delta=delta, **changes)


def test_costliest_site_is_accounted_at_the_small_delta() -> None:
    statements = {
        "north": _of_one_schedule(1.5),
        "south": _of_one_schedule(1.0),
        "east": _of_one_schedule(0.7, method="rdp filter"),
        "west": _of_one_schedule(0.6).model_copy(update={"epsilon": None}),
    }
    cost = largest_at_small_delta(statements, "add_or_remove_one")
    assert (cost.site, cost.delta) == ("south", 1e-5)
    assert cost.epsilon == pld_epsilon((GaussianEvent(1.0, 0.1, 50),), 1e-5)
    assert cost.epsilon > statements["south"].epsilon
    for nothing in ({}, {"north": _of_one_schedule(1.0, delta=1e-5)}):
        assert largest_at_small_delta(nothing, "add_or_remove_one") is None


def test_history_of_a_thousand_kinds_of_step_is_accounted_in_bounded_time(monkeypatch) -> None:
    counted = mock.Mock(wraps=pld_epsilon)
    monkeypatch.setattr("fl_dpbayes.privacy.check_statement.pld_epsilon", counted)
    history = tuple((1.0 + number / 25, 0.05 - number / 25_000, 1) for number in range(1000))
    statement = _of_one_schedule(1.0).model_copy(update={"epsilon": 4.0, "history": history})
    cost = largest_at_small_delta({"south": statement}, "add_or_remove_one")
    assert max(len(call.args[0]) for call in counted.call_args_list) <= MOST_KINDS
    exact = 1.4454  # of all thousand kinds, by `pld_epsilon`
    assert exact <= cost.epsilon < 3 * exact


def test_filter_s_account_of_thousands_of_kinds_of_step_takes_bounded_time(monkeypatch) -> None:
    counted = mock.Mock(wraps=filter_epsilon)
    monkeypatch.setattr("fl_dpbayes.privacy.check_statement.filter_epsilon", counted)
    wild = tuple(GaussianEvent(4 + n / 1000, 0.1 + n / 10**6, 1 + n % 7) for n in range(5000))
    history = joined((*OWN, *wild))
    exact = epsilon_bounds(history, DELTA, "add_or_remove_one")[1]
    statement = stated(OWN, exact, "rdp filter", None)
    stated_more = statement.model_copy(
        update={
            "history": write_history(history),
            "steps": sum(event.steps for event in history),
            "mu": gdp_mu(history).mu,
        }
    )
    too_much = stated_more.model_copy(update={"epsilon": 100 * exact})
    with pytest.raises(ValueError, match="allows at most"):
        checked_statement(too_much, OWN, OWN, None, DELTA)
    (call,) = counted.call_args_list
    kinds = {(event.noise_multiplier, event.sampling_rate) for event in call.args[1]}
    assert len(kinds) <= MOST_KINDS


def test_history_is_gone_on_with_and_never_rewritten() -> None:
    first = stated((*EARLIER, *OWN))
    longer = GaussianEvent(1.2, 0.1, 40)
    for good in ((*EARLIER, longer), (*EARLIER, longer, *EARLIER)):
        assert checked_statement(stated(good, 8.0, "rdp filter"), OWN, (longer,), first, DELTA)
    for rewritten in ((longer, *EARLIER), (*EARLIER, *EARLIER, longer)):
        with pytest.raises(ValueError, match="is not its earlier one"):
            checked_statement(stated(rewritten, 8.0, "rdp filter"), OWN, (longer,), first, DELTA)
