"""Averages of states: by hand, bounds on a hostile minority, what a scenario's settings choose."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.config.aggregation import FALD
from fl_dpbayes.config.run_warning import warning
from fl_dpbayes.posterior.averages import (
    average_of_states,
    coordinate_median,
    move_factors,
    shortened,
    trimmed_mean,
)
from fl_dpbayes.posterior.rules.fedavg import posterior_means
from fl_dpbayes.posterior.samples import PosteriorSamples


def states_of(values):
    return {f"site{i}": {"w": np.asarray(value, np.float32)} for i, value in enumerate(values)}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    honest=st.integers(3, 8),
    hostile=st.integers(1, 3),
    size=st.floats(-1e30, 1e30),
)
def test_a_hostile_minority_cannot_leave_the_honest_range_property(seed, honest, hostile, size):
    if hostile >= honest:
        return
    good = np.random.default_rng(seed).normal(size=(honest, 4)).astype(np.float32)
    states = states_of([*good, *np.full((hostile, 4), size)])
    for state in (coordinate_median(states), trimmed_mean(states, hostile)):
        assert (state["w"] >= good.min(axis=0)).all()
        assert (state["w"] <= good.max(axis=0)).all()


def test_long_moves_are_shortened_to_the_bound_in_their_direction():
    start = {"v": np.ones(2, np.float32), "w": np.zeros((1, 2), np.float32)}
    short = {"v": np.array([1, 2], np.float32), "w": np.zeros((1, 2), np.float32)}
    states = {
        "short": short,
        "other": short,
        "long": {"v": np.array([4, 1], np.float32), "w": np.array([[0, 4]], np.float32)},
    }
    weights = dict.fromkeys(states, 1 / 3)
    assert move_factors(states, start, weights, 2.0) == {"long": pytest.approx(0.4)}
    bounded = shortened(states["long"], start, 0.4)
    np.testing.assert_allclose(bounded["v"], [2.2, 1], rtol=1e-6)
    np.testing.assert_allclose(bounded["w"], [[0, 1.6]], rtol=1e-6)
    assert shortened(states["long"], start, 1.0) is states["long"]
    assert move_factors(states, start, weights, 5.0) == {}
    # Of two sites nobody can say which is bad.
    assert (
        move_factors({"short": states["short"], "long": states["long"]}, start, weights, 2.0) == {}
    )


def test_noise_of_sites_of_unequal_size_is_not_shortened():
    # Noise per step is proportional to 1/n, a weight to n: each site's part in the average has the
    # same noise.
    generator = np.random.default_rng(0)
    sizes = {"a": 100, "b": 200, "c": 1600}
    states = {
        site: {"w": generator.normal(size=650).astype(np.float32) / n} for site, n in sizes.items()
    }
    weights = {site: n / 1900 for site, n in sizes.items()}
    assert move_factors(states, {"w": np.zeros(650, np.float32)}, weights, 1.2) == {}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    honest=st.integers(2, 8),
    hostile=st.integers(1, 3),
    size=st.floats(-1e15, 1e15),
    weight=st.floats(0.01, 100),
)
def test_a_hostile_minority_moves_the_average_at_most_so_many_honest_moves(
    seed, honest, hostile, size, weight
):
    if hostile >= honest:
        return
    good = np.random.default_rng(seed).normal(size=(honest, 4)).astype(np.float32)
    states = states_of([*good, *np.full((hostile, 4), size)])
    # A claim of size is of no use either: what is bounded is the part in the average.
    weights = dict(zip(states, [1.0] * honest + [weight] * hostile, strict=True))
    start = {"w": np.zeros(4, np.float32)}
    factors = move_factors(states, start, weights, 2.0)
    longest = max(np.linalg.norm(good, axis=1))
    for site in list(states)[honest:]:
        moved = shortened(states[site], start, factors.get(site, 1.0))["w"].astype(np.float64)
        assert weights[site] * np.linalg.norm(moved) <= 2 * longest * (1 + 1e-5)


def test_posterior_means_use_the_weights_of_the_samples():
    samples = PosteriorSamples(
        {"w": np.array([[0.0], [4.0]], np.float32)}, np.array([3.0, 1.0]), np.ones(2)
    )
    np.testing.assert_array_equal(posterior_means({"a": samples})["a"]["w"], [1.0])


START = {"w": np.zeros(2, np.float32)}
STATES = dict(
    zip("abcde", states_of([(1, 0), (2, 1), (3, 2), (4, 3), (1000, -1000)]).values(), strict=True)
)
WEIGHTS = {"a": 0.6, "b": 0.1, "c": 0.1, "d": 0.1, "e": 0.1}


def averaged(states=STATES, **settings):
    rule = FALD(rule="fald", **{"move_bound": "none", **settings})
    average, warnings, _ = average_of_states(states, START, rule, WEIGHTS)
    return average["w"], warnings


def test_settings_choose_the_average() -> None:
    np.testing.assert_allclose(averaged()[0], [101.5, -99.4], rtol=1e-6)
    np.testing.assert_allclose(averaged(robust="median", site_weights="uniform")[0], [3, 1])
    np.testing.assert_allclose(
        averaged(robust="trimmed-mean", trimmed=1, site_weights="uniform")[0], [3, 1]
    )
    np.testing.assert_allclose(
        averaged(robust="trimmed-mean", trimmed=2, site_weights="uniform")[0], [3, 1]
    )


def test_a_bound_on_moves_comes_before_the_average_and_names_whom_it_shortened() -> None:
    average, warnings = averaged(move_bound=1.5)
    # The parts w_k |m_k| are .6, .1 sqrt(5), .1 sqrt(13), .5 and 100 sqrt(2): the median is .5.
    hostile = 0.75 / np.sqrt(2) * np.array([1, -1])
    np.testing.assert_allclose(
        average, 0.6 * np.array([1, 0]) + 0.1 * np.array([9, 6]) + hostile, rtol=1e-6
    )
    assert warnings == (warning("move-shortened", "e", bound=1.5),)


@pytest.mark.parametrize(("sites", "borne"), [("abcd", 1), ("ab", 0), ("a", 0)])
def test_too_few_states_to_trim_are_said(sites: str, borne: int) -> None:
    states = {site: STATES[site] for site in sites}
    average, warnings = averaged(states, robust="trimmed-mean", trimmed=2, site_weights="uniform")
    np.testing.assert_allclose(average, np.mean([states[site]["w"] for site in sites], axis=0))
    assert warnings == (
        warning("too-few-to-trim", sites=len(sites), trimmed=borne, asked=2, needed=5),
    )
