import math
import time
import timeit
from functools import partial

import numpy as np
import pytest

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.config.sampler import ConstantStepSize, ExponentialStepSize, PolynomialStepSize
from fl_dpbayes.privacy.events import history_of_steps
from fl_dpbayes.privacy.filter import Budget, admitted_steps, choose_rule, filter_orders
from fl_dpbayes.privacy.planned_noise import largest_prefix, solve_multiplier, solve_noise
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.schedules.noise import NoiseScale
from fl_dpbayes.schedules.planned import step_sizes
from tests.asking import refused

SCHEDULES = [
    ConstantStepSize(initial=0.05),
    ExponentialStepSize(initial=0.05, decay=0.97),
    PolynomialStepSize(initial=0.05, power=0.51),
]
UNITS = 400


def plan(coupling: str, rate: float, epsilon: float = 2.0, **parameters: float) -> PrivacyPlan:
    return PrivacyPlan(
        epsilon=epsilon,
        delta=1e-4,
        coupling=coupling,
        sampling_rate=rate,
        clip_norm=2.0,
        **parameters,
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("coupling", ["constant", "temperature", "langevin", "floor"])
def test_solved_noise_costs_the_budget_and_no_more(
    coupling: str, schedule: ConstantStepSize, rate: float
) -> None:
    sizes = step_sizes(schedule, 30)
    # A temperature at which the Langevin noise alone would cost too much.
    given = {"temperature": 0.004} if coupling == "floor" else {}
    solved = solve_noise(plan(coupling, rate, **given), sizes, UNITS)
    again = pld_epsilon(history_of_steps(solved.noise_multipliers, rate), 1e-4)
    assert 0.999 * 2.0 <= again <= 2.0
    assert solved.epsilon == again
    assert pld_epsilon(solved.history, 1e-4) == again
    resulting = NoiseScale(2.0, rate * UNITS, UNITS).temperatures(sizes, solved.noise_multipliers)
    if coupling == "langevin":
        assert resulting == pytest.approx(np.full(30, solved.temperature), rel=1e-12)
    if coupling == "floor":
        assert np.all(resulting >= 0.004 * (1 - 1e-12))
        assert np.all(solved.noise_multipliers >= solved.noise_multiplier)
    assert coupling in ("temperature", "langevin") or solved.noise_multiplier > 0


def test_a_given_parameter_is_used_whatever_it_costs() -> None:
    for coupling, sigma, tau in (
        ("constant", 0.7, None),
        ("temperature", None, 3.0),
        ("langevin", None, 1.0),
        ("floor", 0.7, 1.0),
    ):
        private = plan(coupling, 0.05, epsilon=1e-6, noise_multiplier=sigma, temperature=tau)
        solved = solve_noise(private, step_sizes(SCHEDULES[0], 10), UNITS)
        assert solved.epsilon > 1e-6
        assert (solved.noise_multiplier, solved.temperature, len(solved.noise_multipliers)) == (
            sigma,
            tau,
            10,
        )


def test_a_floor_that_is_not_needed_is_zero() -> None:
    sizes = step_sizes(SCHEDULES[2], 20)
    solved = solve_noise(plan("floor", 0.05, temperature=50.0), sizes, UNITS)
    langevin = solve_noise(plan("langevin", 0.05, temperature=50.0), sizes, UNITS)
    assert solved.noise_multiplier == 0
    assert np.array_equal(solved.noise_multipliers, langevin.noise_multipliers)
    assert 0 <= solved.epsilon <= 2.0


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("rate", [1.0, 0.02])
def test_constant_noise_is_solved_over_four_decades(
    epsilon: float, adjacency: str, rate: float
) -> None:
    sigma = solve_multiplier(epsilon, 1e-5, rate, 100, adjacency)  # type: ignore[arg-type]
    spent = pld_epsilon(history_of_steps(np.full(100, sigma), rate), 1e-5, adjacency)  # type: ignore[arg-type]
    assert 0.999 * epsilon <= spent <= epsilon


def test_a_budget_that_no_noise_meets_is_refused() -> None:
    no_noise = "no noise gives epsilon"
    for *budget, reason in (
        (1e-9, 1e-12, 0.5, no_noise),
        (1e12, 1e-5, 1.0, no_noise),
        (1.0, 0.5, 0.01, "any noise"),
    ):
        refused(reason, solve_multiplier, *budget, 10)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_largest_prefix_equals_a_search_step_by_step(rate: float) -> None:
    sigmas = np.linspace(4.0, 1.0, 12)
    costs = [pld_epsilon(history_of_steps(sigmas[:steps], rate), 1e-5) for steps in range(13)]
    for epsilon in (0.0, costs[1], 0.999 * costs[1], costs[7], costs[12], 1e3):
        expected = max(steps for steps in range(13) if costs[steps] <= epsilon)
        assert largest_prefix(sigmas, rate, epsilon, 1e-5) == expected
    for steps, epsilon, expected in ((5, 10.0, 0), (5, math.inf, 5), (0, 10.0, 0)):
        assert largest_prefix(np.zeros(steps), rate, epsilon, 1e-5) == expected


def test_whether_one_more_round_fits_is_answered_in_milliseconds() -> None:
    # What a site asks of its ledger's rule, with fifty rounds of distinct noise behind it.
    rounds = [history_of_steps(np.full(20, 1.2 * 0.985**index), 0.01) for index in range(51)]
    for epsilon, name in ((30.0, "rdp filter"), (5.5, "fixed schedule")):
        budget = Budget(epsilon, 1e-5, "add_or_remove_one", filter_orders(epsilon, 1e-5))
        rule = choose_rule(tuple(event for events in rounds for event in events), budget)
        assert rule.name == name
        spent = tuple(event for events in rounds[:50] for event in events)
        ask = partial(admitted_steps, rule, spent, rounds[50], budget)
        assert min(timeit.repeat(ask, timer=time.process_time, repeat=5, number=1)) < 0.05
