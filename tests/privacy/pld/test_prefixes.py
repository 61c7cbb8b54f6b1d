"""What a plan's first steps cost, by extending one account, is what they cost composed anew."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.fft import irfft
from scipy.signal import lfilter

from fl_dpbayes.files.kept import Kept
from fl_dpbayes.privacy.events import GaussianEvent, History, history_of_steps, slice_history
from fl_dpbayes.privacy.pld import loss_distribution
from fl_dpbayes.privacy.pld.grid import ABOVE
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon, prefix_epsilon

# Of epsilon, or of a tenth: what `pld_epsilon` itself may be above the true value.
EXCESS = 1e-4


def plan_of(kind: str, levels: int) -> History:
    share = np.linspace(1, 0.1, levels)
    rising = 4 * share**-0.5
    return {
        "rising": history_of_steps(rising, 0.05),
        "falling": history_of_steps(rising[::-1], 0.05),
        "rare": history_of_steps(1.2 * rising / 4, 0.01),
        "stretches": tuple(GaussianEvent(float(sigma), 0.05, 7) for sigma in rising),
        "up and down": history_of_steps(4 + np.sin(np.arange(levels)), 0.05),
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("kind", ["rising", "falling", "rare", "stretches", "up and down"])
def test_first_steps_cost_what_they_cost_composed_anew(kind, adjacency) -> None:
    plan = plan_of(kind, 60)
    delta = 1e-5
    total = sum(event.steps for event in plan)
    for steps in (1, 2, 3, 10, 11, total // 2, total, 5):
        plain = pld_epsilon(slice_history(plan, 0, steps), delta, adjacency)
        assert abs(prefix_epsilon(plan, steps, delta, adjacency) - plain) <= EXCESS * max(
            plain, 0.1
        )
    assert prefix_epsilon(plan, 0, delta, adjacency) == 0


def test_few_levels_no_noise_and_whole_batches_are_counted_as_before() -> None:
    for plan in (
        plan_of("falling", 16),
        (GaussianEvent(0.0, 0.5, 20),),
        history_of_steps(np.linspace(3, 9, 40), 1.0),
        history_of_steps(np.linspace(3, 9, 1200), 0.1),
        *(
            (GaussianEvent(first, 0.01, 10), GaussianEvent(last, 0.01, 10))
            for first, last in ((1.0, math.inf), (0.0, 2.0), (1.0, 1e200))
        ),
    ):
        assert prefix_epsilon(plan, 15, 1e-5) == pld_epsilon(slice_history(plan, 0, 15), 1e-5)


def test_each_level_of_a_plan_is_composed_once(monkeypatch) -> None:
    plan = plan_of("rising", 60)
    levels = list[GaussianEvent]()
    discretise = loss_distribution.discretise
    monkeypatch.setattr(loss_distribution, "_ACCOUNTS", Kept())
    monkeypatch.setattr(
        loss_distribution,
        "discretise",
        lambda level, *a, **k: levels.append(level) or discretise(level, *a, **k),
    )
    found = [prefix_epsilon(plan, steps, 1e-5) for _ in range(2) for steps in range(10, 61, 10)]
    assert found[:6] == found[6:]
    assert found[:6] == sorted(found[:6])
    assert levels == list(plan)


def test_a_plan_of_constant_noise_is_composed_once_and_costs_what_it_costs_anew(
    monkeypatch,
) -> None:
    plan = (GaussianEvent(3.0, 0.5, 60),)
    levels = list[GaussianEvent]()
    discretise = loss_distribution.discretise
    plain = {
        steps: pld_epsilon((GaussianEvent(3.0, 0.5, steps),), 1e-5) for steps in (1, 7, 30, 59, 60)
    }
    monkeypatch.setattr(loss_distribution, "_ACCOUNTS", Kept())
    monkeypatch.setattr(
        loss_distribution,
        "discretise",
        lambda level, *a, **k: levels.append(level) or discretise(level, *a, **k),
    )
    assert {steps: prefix_epsilon(plan, steps, 1e-5) for steps in plain} == pytest.approx(
        plain, rel=1e-5
    )
    assert levels == list(plan)


@pytest.mark.parametrize("kind", ["stretches", "constant"])
def test_what_steps_cost_does_not_depend_on_which_were_asked_for_before(kind, monkeypatch) -> None:
    plan = (GaussianEvent(3.0, 0.5, 140),) if kind == "constant" else plan_of("stretches", 20)
    found = []
    for asked in ((101,), (1, 20, 101), (140, 3, 101)):
        monkeypatch.setattr(loss_distribution, "_ACCOUNTS", Kept())
        found.append([prefix_epsilon(plan, steps, 1e-5) for steps in asked][-1])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"), [(3.0, 0.5, 60, 1e-3), (0.05, 0.5, 900, 1e-9)]
)
def test_epsilon_from_the_top_down_in_pieces_is_that_of_the_whole_window(
    sigma, rate, steps, delta
) -> None:
    grid, directions = loss_distribution.composed(
        (GaussianEvent(sigma, rate, steps),), "add_or_remove_one", delta
    )
    for one in directions:
        first = (
            math.ceil((one.cumulant - math.log(delta) + ABOVE) / one.order / grid.spacing)
            - one.size
        )
        index = np.arange(first, first + one.size)
        chernoff = np.exp(one.cumulant - one.order * grid.spacing * index)
        masses = chernoff * np.maximum(irfft(one.spectrum, one.size)[index % one.size], 0.0)
        above = np.cumsum(masses[::-1]) - masses[::-1]
        deltas = lfilter(
            [1.0], [1.0, -math.exp(-grid.spacing)], -math.expm1(-grid.spacing) * above
        )[::-1]
        deltas += chernoff * one._rounding() + one.infinite
        found = one.epsilon(delta, grid.spacing) / grid.spacing - first
        assert deltas[math.ceil(found)] <= delta <= deltas[math.floor(found)]


def test_a_slice_holds_each_step_between_its_ends() -> None:
    plan = tuple(
        GaussianEvent(float(sigma), 0.5, steps)
        for sigma, steps in enumerate([3, 1, 0, 4, 2], start=1)
    )
    sigmas = [event.noise_multiplier for event in plan for _ in range(event.steps)]
    for first, steps in product(range(12), range(12)):
        found = slice_history(plan, first, steps)
        assert [event.noise_multiplier for event in found for _ in range(event.steps)] == sigmas[
            first : first + steps
        ]
