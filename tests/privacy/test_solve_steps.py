"""The largest whole number of steps that a budget holds, for each coupling and each schedule of step sizes."""

import time

import numpy as np
import pytest

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.config.sampler import ConstantStepSize, ExponentialStepSize, PolynomialStepSize
from fl_dpbayes.privacy.events import history_of_steps
from fl_dpbayes.privacy.filter import Budget, admitted_steps, choose_rule, filter_orders
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.solve import largest_prefix, solve_noise
from fl_dpbayes.samplers.planned import step_sizes

SCHEDULES = [
    ConstantStepSize(initial=0.05),
    ExponentialStepSize(initial=0.05, decay=0.97),
    PolynomialStepSize(initial=0.05, power=0.51),
]
DELTA = 1e-4


@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("coupling", ["constant", "temperature", "langevin", "floor"])
def test_one_step_more_would_cost_too_much(coupling: str, schedule, rate: float) -> None:
    given = {"temperature": 0.01} if coupling == "floor" else {}
    plan = PrivacyPlan(
        epsilon=2.0, delta=DELTA, coupling=coupling, sampling_rate=rate, clip_norm=2.0, **given  # type: ignore[arg-type]
    )  # fmt: skip
    sigmas = solve_noise(plan, step_sizes(schedule, 60), 400).noise_multipliers

    def cost(steps: int) -> float:
        return pld_epsilon(history_of_steps(sigmas[:steps], rate), DELTA)

    for epsilon in (0.5, 1.2):
        steps = largest_prefix(sigmas, rate, epsilon, DELTA)
        assert 0 < steps < 60 or cost(1) > epsilon
        assert cost(steps) <= epsilon < cost(steps + 1)


def test_whether_one_more_round_fits_is_answered_in_milliseconds() -> None:
    # What a site asks of its ledger's rule, with fifty rounds of distinct noise behind it.
    rounds = [history_of_steps(np.full(20, 1.2 * 0.985**index), 0.01) for index in range(51)]
    for epsilon, name in ((30.0, "rdp filter"), (5.5, "fixed schedule")):
        budget = Budget(epsilon, 1e-5, "add_or_remove_one", filter_orders(epsilon, 1e-5))
        rule = choose_rule(tuple(event for events in rounds for event in events), budget)
        assert rule.name == name
        spent = tuple(event for events in rounds[:50] for event in events)
        seconds = []
        for _ in range(5):
            start = time.process_time()
            admitted_steps(rule, spent, rounds[50], budget)
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.05
