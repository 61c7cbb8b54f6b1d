import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.aggregation.robust import (
    bound_draws,
    bound_move,
    coordinate_median,
    posterior_means,
    trimmed_mean,
)
from fl_dpbayes.posterior.samples import PosteriorSamples


def states_of(values):
    return {f"site{i}": {"w": np.asarray(value, np.float32)} for i, value in enumerate(values)}


def test_median_and_trimmed_mean_by_hand():
    states = states_of([[1, 10], [2, 20], [3, 30], [4, 40], [100, -1000]])
    np.testing.assert_array_equal(coordinate_median(states)["w"], [3, 20])
    np.testing.assert_array_equal(trimmed_mean(states, 1)["w"], [3, 20])
    np.testing.assert_allclose(trimmed_mean(states, 0)["w"], [22, -180])


@settings(deadline=None, derandomize=True, max_examples=60)
@given(seed=st.integers(0, 1000), honest=st.integers(3, 8), hostile=st.integers(1, 3), size=st.floats(-1e30, 1e30))
def test_a_hostile_minority_cannot_leave_the_honest_range_property(seed, honest, hostile, size):
    if hostile >= honest:
        return
    good = np.random.default_rng(seed).normal(size=(honest, 4)).astype(np.float32)
    states = states_of([*good, *np.full((hostile, 4), size)])
    for state in (coordinate_median(states), trimmed_mean(states, hostile)):
        assert (state["w"] >= good.min(axis=0)).all()
        assert (state["w"] <= good.max(axis=0)).all()


def test_one_site_and_order_property():
    states = states_of(np.random.default_rng(0).normal(size=(5, 3)))
    reverse = dict(reversed(states.items()))
    np.testing.assert_array_equal(coordinate_median(states)["w"], coordinate_median(reverse)["w"])
    np.testing.assert_array_equal(trimmed_mean(states, 2)["w"], trimmed_mean(reverse, 2)["w"])
    alone = {"site0": states["site0"]}
    np.testing.assert_array_equal(coordinate_median(alone)["w"], states["site0"]["w"])
    np.testing.assert_array_equal(trimmed_mean(alone, 0)["w"], states["site0"]["w"])


@pytest.mark.parametrize("trimmed", [-1, 2])
def test_trimming_half_of_the_sites_is_refused(trimmed):
    with pytest.raises(ValueError, match="below half"):
        trimmed_mean(states_of([[0], [1], [2], [3]]), trimmed)


def test_no_state_is_refused():
    with pytest.raises(ValueError, match="no site sent a state"):
        coordinate_median({})


def test_long_moves_are_shortened_to_the_bound_in_their_direction():
    start = {"v": np.ones(2, np.float32), "w": np.zeros((1, 2), np.float32)}
    state = {"v": np.array([4, 1], np.float32), "w": np.array([[0, 4]], np.float32)}
    bounded, factor = bound_move(state, start, 1.0)
    assert factor == pytest.approx(0.2)
    np.testing.assert_allclose(bounded["v"], [1.6, 1])
    np.testing.assert_allclose(bounded["w"], [[0, 0.8]])
    same, factor = bound_move(state, start, 5.0)
    assert factor == 1.0
    np.testing.assert_array_equal(same["v"], state["v"])
    with pytest.raises(ValueError, match="must be above 0"):
        bound_move(state, start, 0.0)


def test_every_draw_is_bounded():
    draws = np.array([[3, 4], [0.3, 0.4], [30, 40]], np.float32)
    samples = PosteriorSamples({"w": draws}, np.array([1.0, 2.0, 3.0]), np.ones(3))
    bounded, factor = bound_draws(samples, {"w": np.zeros(2, np.float32)}, 1.0)
    np.testing.assert_allclose(np.linalg.norm(bounded.arrays["w"], axis=1), [1, 0.5, 1], rtol=1e-6)
    assert factor == pytest.approx(1 / 50)
    np.testing.assert_array_equal(bounded.weights, samples.weights)


def test_posterior_means_use_the_weights_of_the_samples():
    samples = PosteriorSamples({"w": np.array([[0.0], [4.0]], np.float32)}, np.array([3.0, 1.0]), np.ones(2))
    np.testing.assert_array_equal(posterior_means({"a": samples})["a"]["w"], [1.0])
