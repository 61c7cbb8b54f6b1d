import math
import time
import timeit
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    NeighborRel,
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from fl_dpbayes.privacy import events
from fl_dpbayes.privacy.events import GaussianEvent, History, levels_of
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.pld.grid import outputs_at
from fl_dpbayes.privacy.pld.loss_distribution import composed, pld_epsilon
from fl_dpbayes.privacy.rdp import rdp_epsilon

# What discretisation may add to the plans of these tests.
OVERSHOOT = 1e-4
ADJACENCIES = ["add_or_remove_one", "replace_one"]
EVENTS = st.builds(
    GaussianEvent,
    st.floats(0.5, 10),
    st.sampled_from([1e-3, 0.01, 0.1, 0.5, 0.95, 1.0]),
    st.integers(1, 30),
)
HISTORIES = st.lists(EVENTS, min_size=1, max_size=3).map(tuple)
DELTAS = st.sampled_from([1e-2, 1e-5, 1e-8])


def slack(epsilon: float) -> float:
    return OVERSHOOT * max(epsilon, 0.1)


def of_dp_accounting(
    history: History, spacing: float, adjacency: str, pessimistic: bool
) -> PrivacyLossDistribution:
    relation = (
        NeighborRel.REPLACE_ONE if adjacency == "replace_one" else NeighborRel.ADD_OR_REMOVE_ONE
    )
    composed = None
    for event in history:
        step = from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sampling_rate,
            value_discretization_interval=spacing,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            neighboring_relation=relation,
        ).self_compose(event.steps)
        composed = step if composed is None else composed.compose(step)
    return composed


@pytest.mark.slow
@given(history=HISTORIES, delta=DELTAS, adjacency=st.sampled_from(ADJACENCIES))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_epsilon_property_lies_between_the_estimates_of_dp_accounting(
    history, delta, adjacency
) -> None:
    ours = pld_epsilon(history, delta, adjacency)  # type: ignore[arg-type]
    above = of_dp_accounting(history, 2e-3, adjacency, pessimistic=True).get_epsilon_for_delta(
        delta
    )
    below = of_dp_accounting(history, 2e-3, adjacency, pessimistic=False).get_epsilon_for_delta(
        delta
    )
    assert below - 1e-9 <= ours <= above + slack(above)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("sigma", "steps", "delta"),
    [(1.0, 1, 1e-5), (10.0, 100, 1e-5), (30.0, 10**5, 1e-10), (3, 20, 0.01)],
)
def test_grid_limit_full_batch_is_the_exact_curve(
    sigma: float, steps: int, delta: float, adjacency: str
) -> None:
    almost = (GaussianEvent(sigma, 1 - 1e-13, steps),)
    grid, directions = composed(levels_of(almost), adjacency, delta)  # type: ignore[arg-type]
    mu = math.sqrt(steps) / sigma * (2 if adjacency == "replace_one" else 1)
    exact = gdp_epsilon(mu, delta)
    for direction in directions:
        epsilon = direction.epsilon(delta, grid.spacing)
        assert exact * (1 - 1e-9) <= epsilon <= exact + slack(exact)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_one_step_limit_is_the_hockey_stick_divergence(adjacency: str) -> None:
    sigma = 0.8
    q = 0.05
    level = GaussianEvent(sigma, q, 1)
    for epsilon in (0.05, 0.5, 2.0):
        x = outputs_at(np.array([epsilon]), level, adjacency)[0]  # type: ignore[arg-type]
        other = -1 if adjacency == "replace_one" else 0
        p = (1 - q) * ndtr(-x / sigma) + q * ndtr((1 - x) / sigma)
        r = (1 - q) * ndtr(-x / sigma) + q * ndtr((other - x) / sigma)
        delta = float(p - math.exp(epsilon) * r)
        ours = pld_epsilon((GaussianEvent(sigma, q, 1),), delta, adjacency)  # type: ignore[arg-type]
        assert epsilon * (1 - 1e-9) <= ours <= epsilon + slack(epsilon)


def test_extreme_deltas_give_a_bound_below_renyi_and_those_outside_their_range_are_refused() -> (
    None
):
    history = (GaussianEvent(1.0, 0.01, 1000),)
    for delta in (1e-200, 1e-30, 0.3, 0.999):
        assert 0 <= pld_epsilon(history, delta) <= 1.3 * rdp_epsilon(history, delta)
    for delta in (0.0, 1.0, -1e-5, math.nan):
        with pytest.raises(ValueError, match="delta"):
            pld_epsilon(history, delta)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta"), [(0.92, 1.06e-3, 14, 1.7e-9), (1.317, 1.1e-3, 26, 1e-9)]
)
def test_rare_large_losses_fit_the_window(
    sigma: float, rate: float, steps: int, delta: float
) -> None:
    history = (GaussianEvent(sigma, rate, steps),)
    above = of_dp_accounting(
        history, 1e-4, "add_or_remove_one", pessimistic=True
    ).get_epsilon_for_delta(delta)
    assert pld_epsilon(history, delta) <= above + slack(above)


def test_many_kinds_of_step_are_bounded_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    history = tuple(GaussianEvent(float(sigma), 0.02, 1) for sigma in np.geomspace(0.8, 3, 120))
    exact = pld_epsilon(history, 1e-5)
    monkeypatch.setattr(events, "MOST_LEVELS", 60)
    assert exact < pld_epsilon(history, 1e-5) < 1.05 * exact


@pytest.mark.slow
def test_five_hundred_kinds_of_step_take_seconds() -> None:
    few = tuple(GaussianEvent(1.2 * 0.985**index, 0.01, 20) for index in range(50))
    many = tuple(GaussianEvent(float(sigma), 0.01, 2) for sigma in np.linspace(0.6, 2, 500))
    for history, seconds in ((few, 0.3), (many, 2.0)):
        ask = partial(pld_epsilon, history, 1e-5)
        assert min(timeit.repeat(ask, timer=time.process_time, repeat=2, number=1)) < seconds


def test_mass_that_was_cut_and_rounding_count_in_full() -> None:
    grid, (remove, _) = composed((GaussianEvent(1.0, 0.5, 10),), "add_or_remove_one", 1e-5)
    assert replace(remove, infinite=1.1e-5).epsilon(1e-5, grid.spacing) == math.inf
    cut = replace(remove, infinite=remove.infinite + 5e-6).epsilon(1e-5, grid.spacing)
    assert cut == pytest.approx(remove.epsilon(5e-6, grid.spacing), rel=1e-6)
    assert replace(remove, steps=10**12).epsilon(1e-5, grid.spacing) > 1.01 * remove.epsilon(
        1e-5, grid.spacing
    )
