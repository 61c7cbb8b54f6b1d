import math

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import norm

from fl_dpbayes.privacy.audit_statistics import (
    gaussian_epsilon_bound,
    log_likelihood_ratios,
    loss_threshold_attack,
    one_run_epsilon_bound,
)
from fl_dpbayes.privacy.gdp import gdp_epsilon

DELTA, RUNS = 1e-5, 150
CLAIM = {"epsilon": 1.0, "delta": DELTA}


def coins(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.random(count) < 0.5


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_ratio_is_that_of_the_mixture(rate: float) -> None:
    u, noise = np.random.default_rng(0).normal(size=(3, 5)), np.array([1.0, 2.0, 3.0])
    absent, present = (norm.pdf(u, signal, noise[:, None]) for signal in (0.0, 0.7))
    expected = np.log(((1 - rate) * absent + rate * present) / absent).sum(axis=0)
    scores = log_likelihood_ratios(u, signal=0.7, noise_std=noise, sampling_rate=rate)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_ratio_survives_signals_far_beyond_the_noise() -> None:
    scores = log_likelihood_ratios(np.array([[1e4, -1e4]]), signal=1.0, noise_std=np.array([0.01]), sampling_rate=0.5)
    assert 1e6 < scores[0] < math.inf
    assert scores[1] == pytest.approx(math.log(0.5))


def test_perfect_scores_give_the_closed_form_limit() -> None:
    included = np.arange(200) < 100
    bound = gaussian_epsilon_bound(included - 0.5, included, threshold=0.0, delta=DELTA, confidence=0.95)
    error = 1 - 0.025 ** (1 / 100)
    assert bound == pytest.approx(gdp_epsilon(float(ndtri(1 - error) - ndtri(error)), DELTA), rel=1e-9)


def test_scores_without_information_or_with_one_class_give_zero() -> None:
    generator = np.random.default_rng(1)
    included = coins(generator, 1000)
    scores = generator.normal(size=1000)
    nothing = {"delta": DELTA, "confidence": 0.95}
    assert gaussian_epsilon_bound(scores, included, threshold=0.0, **nothing) == 0
    assert one_run_epsilon_bound(scores, included, guesses=500, **nothing) == 0
    assert gaussian_epsilon_bound(scores, np.ones(1000, bool), threshold=0.0, **nothing) == 0


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_bounds_of_a_gaussian_mechanism_hold_and_approach_its_epsilon(mu: float) -> None:
    generator, exceeded, bounds = np.random.default_rng(2), 0, []
    for _ in range(RUNS):
        included = coins(generator, 2000)
        scores = generator.normal(mu * (included - 0.5), 1.0)
        bound = gaussian_epsilon_bound(scores, included, threshold=0.0, delta=DELTA, confidence=0.9)
        one_run = one_run_epsilon_bound(scores, included, guesses=500, delta=DELTA, confidence=0.9)
        exceeded += max(bound, one_run) > gdp_epsilon(mu, DELTA)
        bounds.append(bound)
    # At most 10 % may exceed; the two limits of the error rates together make it far fewer.
    assert exceeded <= 0.1 * RUNS
    assert np.median(bounds) > 0.6 * gdp_epsilon(mu, DELTA)


@pytest.mark.parametrize("guesses", [10, 200])
def test_one_run_bound_of_perfect_guesses_without_delta_is_the_closed_form(guesses: int) -> None:
    included = np.arange(400) < 200
    bound = one_run_epsilon_bound(included * 1.0, included, guesses=guesses, delta=0.0, confidence=0.95)
    accuracy = 0.05 ** (1 / guesses)
    assert bound == pytest.approx(math.log(accuracy / (1 - accuracy)), abs=2e-4)


def test_one_run_bound_is_reached_by_randomised_response_and_seldom_passed() -> None:
    generator, epsilon, exceeded, bounds = np.random.default_rng(3), 1.0, 0, []
    for _ in range(RUNS):
        included = coins(generator, 1000)
        truthful = generator.random(1000) < 1 / (1 + math.exp(-epsilon))
        # A small random part breaks ties without taking sides.
        scores = np.where(truthful, included, ~included) + 0.1 * generator.random(1000)
        bound = one_run_epsilon_bound(scores, included, guesses=800, delta=0.0, confidence=0.95)
        exceeded += bound > epsilon
        bounds.append(bound)
    assert exceeded <= 0.05 * RUNS + 3 * math.sqrt(0.05 * 0.95 * RUNS)
    assert 0.8 < np.median(bounds) < epsilon


def test_one_run_bound_falls_as_delta_grows() -> None:
    included, rest = np.arange(400) < 200, {"guesses": 200, "confidence": 0.95}
    deltas = (0.0, 1e-5, 1e-4, 1e-2)
    bounds = [one_run_epsilon_bound(included * 1.0, included, delta=delta, **rest) for delta in deltas]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < bounds[0]


def test_area_counts_pairs_and_the_advantage_bound_is_that_of_the_claim() -> None:
    for members, others, area, advantage in (
        (range(5), range(10, 13), 1.0, 1.0), ([1] * 5, [1] * 3, 0.5, 0.0), ([1, 3], [2, 4], 3 / 4, 1 / 2),
    ):  # fmt: skip
        score = loss_threshold_attack(np.array(members, float), np.array(others, float), **CLAIM)
        assert (score.members, score.others) == (len(members), len(others))
        assert (score.area, score.advantage) == pytest.approx((area, advantage))
    for epsilon in (0.0, 1.0, 5.0, 50.0, math.inf):
        expected = (math.exp(epsilon) - 1 + 2e-3) / (math.exp(epsilon) + 1) if epsilon < math.inf else 1.0
        score = loss_threshold_attack(np.ones(2), np.ones(2), epsilon=epsilon, delta=1e-3)
        assert score.advantage_bound == pytest.approx(expected, rel=1e-12)


def test_standard_error_matches_the_spread_of_simulated_areas() -> None:
    generator = np.random.default_rng(0)
    losses = [(generator.exponential(1.0, 80), generator.exponential(1.5, 40)) for _ in range(RUNS)]
    scores = [loss_threshold_attack(*of_run, **CLAIM) for of_run in losses]
    spread = np.std([score.area for score in scores])
    # The spread of 150 areas has a relative standard error of 5.8 %; the formula supposes exponential scores, as here.
    assert spread == pytest.approx(np.mean([score.area_standard_error for score in scores]), rel=0.16)
