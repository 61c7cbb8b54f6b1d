import math
import time

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import NeighborRel, PrivacyLossDistribution, from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from fl_dpbayes.privacy.events import GaussianEvent, History
from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.privacy.pld import levels as pld_levels
from fl_dpbayes.privacy.pld.discretise import outputs_at
from fl_dpbayes.privacy.pld.loss_distribution import PldComposition, pld_epsilon
from fl_dpbayes.privacy.rdp import rdp_epsilon

# What discretisation may add, as `pld_epsilon` states it.
OVERSHOOT = 1e-4
ADJACENCIES = ["add_or_remove_one", "replace_one"]
EVENTS = st.builds(
    GaussianEvent, st.floats(0.5, 10), st.sampled_from([1e-3, 0.01, 0.1, 0.5, 0.95, 1.0]), st.integers(1, 30)
)
HISTORIES = st.lists(EVENTS, min_size=1, max_size=3).map(tuple)
DELTAS = st.sampled_from([1e-2, 1e-5, 1e-8])


def room(epsilon: float) -> float:
    return OVERSHOOT * max(epsilon, 0.1)


def of_dp_accounting(history: History, spacing: float, adjacency: str, pessimistic: bool) -> PrivacyLossDistribution:
    relation = NeighborRel.REPLACE_ONE if adjacency == "replace_one" else NeighborRel.ADD_OR_REMOVE_ONE
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
    history: History, delta: float, adjacency: str
) -> None:
    ours = pld_epsilon(history, delta, adjacency)  # type: ignore[arg-type]
    above = of_dp_accounting(history, 2e-3, adjacency, pessimistic=True).get_epsilon_for_delta(delta)
    below = of_dp_accounting(history, 2e-3, adjacency, pessimistic=False).get_epsilon_for_delta(delta)
    assert below - 1e-9 <= ours <= above + room(above)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("sigma", "steps", "delta"), [(1.0, 1, 1e-5), (10.0, 100, 1e-5), (30.0, 10**5, 1e-10), (3, 20, 0.01)]
)
def test_grid_limit_full_batch_is_the_exact_curve(sigma: float, steps: int, delta: float, adjacency: str) -> None:
    almost = (GaussianEvent(sigma, 1 - 1e-13, steps),)
    composition = PldComposition.of(almost, delta, adjacency)  # type: ignore[arg-type]
    assert composition.grid is not None
    mu = math.sqrt(steps) / sigma * (2 if adjacency == "replace_one" else 1)
    exact = gdp_epsilon(mu, delta)
    for direction in composition.directions:
        epsilon = direction.epsilon(delta, composition.grid.spacing)
        assert exact * (1 - 1e-9) <= epsilon <= exact + room(exact)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_one_step_limit_is_the_hockey_stick_divergence(adjacency: str) -> None:
    sigma, q = 0.8, 0.05
    level = pld_levels.Level(sigma, q, 1)
    for epsilon in (0.05, 0.5, 2.0):
        x = outputs_at(np.array([epsilon]), level, adjacency)[0]  # type: ignore[arg-type]
        other = -1 if adjacency == "replace_one" else 0
        p = (1 - q) * ndtr(-x / sigma) + q * ndtr((1 - x) / sigma)
        r = (1 - q) * ndtr(-x / sigma) + q * ndtr((other - x) / sigma)
        delta = float(p - math.exp(epsilon) * r)
        ours = pld_epsilon((GaussianEvent(sigma, q, 1),), delta, adjacency)  # type: ignore[arg-type]
        assert epsilon * (1 - 1e-9) <= ours <= epsilon + room(epsilon)


@given(history=HISTORIES, delta=DELTAS, adjacency=st.sampled_from(ADJACENCIES))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_epsilon_property_is_monotone_in_steps_noise_and_rate(history: History, delta: float, adjacency: str) -> None:
    first, *others = history
    epsilon = pld_epsilon(history, delta, adjacency)  # type: ignore[arg-type]
    worse = [
        GaussianEvent(first.noise_multiplier, first.sampling_rate, first.steps + 1),
        GaussianEvent(first.noise_multiplier * 0.99, first.sampling_rate, first.steps),
        GaussianEvent(first.noise_multiplier, min(1.0, first.sampling_rate * 1.01), first.steps),
    ]
    for event in worse:
        assert pld_epsilon((event, *others), delta, adjacency) >= epsilon - room(epsilon)  # type: ignore[arg-type]


@given(history=HISTORIES, adjacency=st.sampled_from(ADJACENCIES))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_epsilon_property_ignores_order_grouping_and_free_events(history: History, adjacency: str) -> None:
    epsilon = pld_epsilon(history, 1e-5, adjacency)  # type: ignore[arg-type]
    single = tuple(
        GaussianEvent(event.noise_multiplier, event.sampling_rate, 1) for event in history for _ in range(event.steps)
    )
    free = (GaussianEvent(0.0, 0.0, 5), GaussianEvent(0.0, 0.5, 0), GaussianEvent(math.inf, 0.5, 5))
    for same in (history[::-1], single, free + history):
        assert pld_epsilon(same, 1e-5, adjacency) == epsilon  # type: ignore[arg-type]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("steps", [1, 1000, 10**6])
@pytest.mark.parametrize("rate", [1e-12, 1e-4, 0.5, 1.0])
@pytest.mark.parametrize("sigma", [0.0, 1e-300, 1e-3, 0.05, 1.0, 1e5, 1e300])
def test_extreme_histories_give_a_number(sigma: float, rate: float, steps: int, adjacency: str) -> None:
    history = (GaussianEvent(sigma, rate, steps),)
    epsilon = pld_epsilon(history, 1e-6, adjacency)  # type: ignore[arg-type]
    assert epsilon >= 0
    assert epsilon <= rdp_epsilon(history, 1e-6, adjacency) * (1 + 1e-9)  # type: ignore[arg-type]
    if sigma < 1e-100:
        assert epsilon == math.inf
    if sigma > 1e200 or (steps * rate < 1e-6 and sigma >= 1e-3):
        assert epsilon == 0


@pytest.mark.parametrize("delta", [1e-200, 1e-30, 0.3, 0.999])
def test_extreme_deltas_give_a_bound_below_renyi(delta: float) -> None:
    history = (GaussianEvent(1.0, 0.01, 1000),)
    assert 0 <= pld_epsilon(history, delta) <= 1.3 * rdp_epsilon(history, delta)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        pld_epsilon((GaussianEvent(1.0, 0.1, 1),), delta)


def test_no_event_costs_nothing() -> None:
    assert pld_epsilon((), 1e-5) == 0


def test_epsilon_at_another_delta_is_a_bound_too() -> None:
    history = (GaussianEvent(1.0, 0.01, 500),)
    composition = PldComposition.of(history, 1e-5)
    for delta in (1e-7, 1e-4, 1e-3):
        own = pld_epsilon(history, delta)
        assert own - room(own) <= composition.epsilon(delta) <= own * 1.01


def test_extension_equals_composition_anew_and_is_quick() -> None:
    rounds = [GaussianEvent(1.2 * 0.985**index, 0.01, 20) for index in range(40)]
    composition = PldComposition.of(tuple(rounds[:20]), 1e-5)
    slow = 0
    for index in range(20, 40):
        start = time.process_time()
        composition = composition.extended((rounds[index],))
        extended = composition.epsilon(1e-5)
        slow += time.process_time() - start > 0.05
        anew = pld_epsilon(tuple(rounds[: index + 1]), 1e-5)
        assert extended == pytest.approx(anew, rel=OVERSHOOT)
    assert slow <= 6  # a new grid every few rounds


def test_extension_by_less_noise_or_none() -> None:
    composition = PldComposition.of((GaussianEvent(2.0, 0.1, 10),), 1e-5)
    harsh = (GaussianEvent(0.1, 0.1, 1),)
    assert composition.extended(harsh).epsilon(1e-5) == pytest.approx(
        pld_epsilon((GaussianEvent(2.0, 0.1, 10), *harsh), 1e-5), rel=OVERSHOOT
    )
    assert composition.extended((GaussianEvent(0.0, 0.1, 1),)).epsilon(1e-5) == math.inf
    assert composition.extended(()).epsilon(1e-5) == pytest.approx(composition.epsilon(1e-5), rel=OVERSHOOT)


def test_extension_by_many_cheap_steps() -> None:
    first, many = (GaussianEvent(1.0, 0.1, 10),), (GaussianEvent(300.0, 0.1, 10**5),)
    extended = PldComposition.of(first, 1e-5, growth=1.5).extended(many)
    assert extended.epsilon(1e-5) == pytest.approx(pld_epsilon(first + many, 1e-5), rel=OVERSHOOT)


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), [(0.92, 1.06e-3, 14, 1.7e-9), (1.317, 1.1e-3, 26, 1e-9)])
def test_rare_large_losses_fit_the_window(sigma: float, rate: float, steps: int, delta: float) -> None:
    history = (GaussianEvent(sigma, rate, steps),)
    above = of_dp_accounting(history, 1e-4, "add_or_remove_one", pessimistic=True).get_epsilon_for_delta(delta)
    assert pld_epsilon(history, delta) <= above + room(above)


def test_many_kinds_of_step_are_bounded_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    history = tuple(GaussianEvent(float(sigma), 0.02, 1) for sigma in np.geomspace(0.8, 3, 120))
    exact = pld_epsilon(history, 1e-5)
    monkeypatch.setattr(pld_levels, "MOST_LEVELS", 60)
    assert exact < pld_epsilon(history, 1e-5) < 1.05 * exact


@pytest.mark.slow
def test_five_hundred_kinds_of_step_take_seconds() -> None:
    few = tuple(GaussianEvent(1.2 * 0.985**index, 0.01, 20) for index in range(50))
    many = tuple(GaussianEvent(float(sigma), 0.01, 2) for sigma in np.linspace(0.6, 2, 500))
    for history, seconds in ((few, 0.3), (many, 2.0)):
        spent = []
        for _ in range(3):
            start = time.process_time()
            pld_epsilon(history, 1e-5)
            spent.append(time.process_time() - start)
        assert min(spent) < seconds
