"""The tests of an audit: how often they alarm at a sound site, how rarely they miss what they find.

And its attacks.
"""

import math
import re

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.special import ndtri
from scipy.stats import binom, norm

from fl_dpbayes.privacy import audit_statistics as audit
from fl_dpbayes.privacy.gdp import gdp_epsilon

RUNS = 100_000
LEVEL = 1e-3
# Standard errors of a share of RUNS.
ERRORS = 4


def most_of(share: float) -> float:
    return share + ERRORS * np.sqrt(share / RUNS)


def size_found(finding: audit.Finding) -> float:
    found = re.search(r"[\d.]+", finding.effect(LEVEL)[1])
    assert found is not None
    return float(found.group())


def alarms(totals: np.ndarray, degrees: int, kurtosis: float = 0.0) -> float:
    # The probability falls away from the middle: two bisections find where it is the level, and the
    # rest is counting.
    def limit(low: float, high: float) -> float:
        for _ in range(60):
            middle = (low + high) / 2
            alarm = audit.variance_test(middle, degrees, "", kurtosis=kurtosis).probability < LEVEL
            low, high = (middle, high) if alarm else (low, middle)
        return low

    below = limit(0.0, degrees)
    above = limit(20.0 * degrees, degrees)
    return float(np.mean((totals < below) | (totals > above)))


@pytest.mark.parametrize("degrees", [1, 20, 650])
def test_gaussian_noise_raises_alarms_as_seldom_as_promised(degrees: int) -> None:
    totals = np.random.default_rng(degrees).chisquare(degrees, RUNS)
    assert LEVEL / 2 < alarms(totals, degrees) < most_of(LEVEL)


@pytest.mark.parametrize("degrees", [60, 650])
def test_the_stated_deviation_is_missed_once_in_a_thousand(degrees: int) -> None:
    ratio = size_found(audit.variance_test(degrees, degrees, ""))
    totals = ratio**2 * np.random.default_rng(0).chisquare(degrees, RUNS)
    # The ratio is stated to two digits.
    assert 1 - alarms(totals, degrees) < 2 * audit.MISS


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5])
def test_counts_of_joining_units_raise_alarms_as_seldom_as_promised(rate: float) -> None:
    batches = 24
    units = min(max(160, round(30 / rate)), 1200)
    counts = np.random.default_rng(int(100 * rate)).binomial(units, rate, (RUNS, batches))
    variance = units * rate * (1 - rate)
    totals = np.square((counts - units * rate) / np.sqrt(variance)).sum(axis=1)
    kurtosis = max(0.0, 1 - 6 * rate * (1 - rate)) / variance
    assert alarms(totals, batches, kurtosis) < most_of(1.3 * LEVEL)


def test_counts_raise_alarms_as_seldom_as_promised_at_the_level_of_an_audit() -> None:
    rate = 0.005
    batches = 12
    units = 1200
    level = 8e-7
    most = 2**12
    mean = units * rate
    variance = units * rate * (1 - rate)
    counts = np.arange(units + 1)
    squares = np.square(counts - round(mean))
    law = np.bincount(squares[squares < most], binom.pmf(counts, units, rate)[squares < most], most)
    one = law
    for _ in range(batches - 1):
        law = fftconvolve(law, one)[:most]
    kurtosis = audit.count_kurtosis(units, rate)
    alarm = [
        audit.variance_test(x / variance, batches, "", kurtosis=kurtosis).probability < level
        for x in range(most)
    ]
    assert 1 - law.sum() + law[alarm].sum() < 2.5 * level


def test_a_mean_is_missed_and_mistaken_as_seldom_as_promised() -> None:
    draws = 0.1 * np.random.default_rng(0).normal(size=RUNS // 30)

    def found(shift: float, one_sided: bool = False) -> float:
        tests = [
            audit.mean_test(x + shift, 0.1, "", unit=1.0, one_sided=one_sided).probability
            for x in draws
        ]
        return float(np.mean(np.array(tests) < LEVEL))

    assert found(0.0) < 2 * LEVEL
    size = audit.mean_test(0.0, 0.1, "", unit=1.0).effect(LEVEL)[0]
    assert found(size) > 1 - 3 * audit.MISS
    assert found(-size) > 1 - 3 * audit.MISS
    assert found(-size, one_sided=True) == 0


def test_slack_is_never_an_alarm_and_no_noise_at_all_always_is() -> None:
    assert audit.mean_test(0.01, 1e-9, "", unit=1.0, slack=0.01).probability == 1
    strict, lenient = (
        audit.variance_test(10_200, 10_000, "", slack=slack).probability for slack in (0.0, 0.02)
    )
    assert strict < lenient
    [check] = audit.verdicts("part", {"a": [audit.variance_test(0.0, 10, "all")]}, 1e-4)
    assert not check.passed


def test_only_noise_in_common_correlates_and_a_repetition_is_found_with_few_numbers() -> None:
    generator = np.random.default_rng(0)
    vectors = {str(i): generator.normal(size=300) for i in range(5)}
    findings = audit.correlation_tests(vectors | {"copy": -2 * vectors["3"], "none": np.zeros(300)})
    assert len(findings) == 15
    assert [f.where for f in findings if f.probability < 1e-6] == ["3 and copy, -1"]
    noise = generator.normal(size=6)
    [finding] = audit.correlation_tests({"a": noise, "b": noise + 1e-6})
    assert finding.probability < 1e-10


def test_all_tests_of_a_part_share_its_level() -> None:
    sound = [audit.variance_test(100, 100, f"tensor {i}") for i in range(7)]
    first, second = audit.verdicts("part", {"a": sound, "b": sound[:1], "c": []}, 1e-4)
    assert first.limit == pytest.approx(1e-4 / 14)
    assert second.limit == pytest.approx(1e-4 / 2)
    assert first.passed
    assert first.where.startswith("worst of 7: tensor 0")
    assert "times the claim or less" in first.finds


DELTA = 1e-5
FEW_RUNS = 150


def coins(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.random(count) < 0.5


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_ratio_is_that_of_the_mixture(rate: float) -> None:
    u = np.random.default_rng(0).normal(size=(3, 5))
    noise = np.array([1.0, 2.0, 3.0])
    absent, present = (norm.pdf(u, signal, noise[:, None]) for signal in (0.0, 0.7))
    expected = np.log(((1 - rate) * absent + rate * present) / absent).sum(axis=0)
    scores = audit.log_likelihood_ratios(u, signal=0.7, noise_std=noise, sampling_rate=rate)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_ratio_survives_signals_far_beyond_the_noise() -> None:
    far = np.array([[1e4, -1e4]])
    noise = np.array([0.01])
    scores = audit.log_likelihood_ratios(far, signal=1.0, noise_std=noise, sampling_rate=0.5)
    assert 1e6 < scores[0] < math.inf
    assert scores[1] == pytest.approx(math.log(0.5))


def test_perfect_scores_give_the_closed_form_limit() -> None:
    included = np.arange(200) < 100
    bound = audit.gaussian_epsilon_bound(
        included - 0.5, included, threshold=0.0, delta=DELTA, confidence=0.95
    )
    error = 1 - 0.025 ** (1 / 100)
    assert bound == pytest.approx(
        gdp_epsilon(float(ndtri(1 - error) - ndtri(error)), DELTA), rel=1e-9
    )


def test_scores_without_information_or_with_one_class_give_zero() -> None:
    generator = np.random.default_rng(1)
    included = coins(generator, 1000)
    scores = generator.normal(size=1000)
    nothing = {"delta": DELTA, "confidence": 0.95}
    assert audit.gaussian_epsilon_bound(scores, included, threshold=0.0, **nothing) == 0
    assert audit.one_run_epsilon_bound(scores, included, guesses=500, **nothing) == 0
    assert audit.gaussian_epsilon_bound(scores, np.ones(1000, bool), threshold=0.0, **nothing) == 0


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_bounds_of_a_gaussian_mechanism_hold_and_approach_its_epsilon(mu: float) -> None:
    generator = np.random.default_rng(2)
    exceeded = 0
    bounds = []
    for _ in range(FEW_RUNS):
        included = coins(generator, 2000)
        scores = generator.normal(mu * (included - 0.5), 1.0)
        bound = audit.gaussian_epsilon_bound(
            scores, included, threshold=0.0, delta=DELTA, confidence=0.9
        )
        one_run = audit.one_run_epsilon_bound(
            scores, included, guesses=500, delta=DELTA, confidence=0.9
        )
        exceeded += max(bound, one_run) > gdp_epsilon(mu, DELTA)
        bounds.append(bound)
    # At most 10 % may exceed; the two limits of the error rates together make it far fewer.
    assert exceeded <= 0.1 * FEW_RUNS
    assert np.median(bounds) > 0.6 * gdp_epsilon(mu, DELTA)


@pytest.mark.parametrize("guesses", [10, 200])
def test_one_run_bound_of_perfect_guesses_without_delta_is_the_closed_form(guesses: int) -> None:
    included = np.arange(400) < 200
    bound = audit.one_run_epsilon_bound(
        included * 1.0, included, guesses=guesses, delta=0.0, confidence=0.95
    )
    accuracy = 0.05 ** (1 / guesses)
    assert bound == pytest.approx(math.log(accuracy / (1 - accuracy)), abs=2e-4)


def test_one_run_bound_is_reached_by_randomised_response_and_seldom_passed() -> None:
    generator = np.random.default_rng(3)
    epsilon = 1.0
    exceeded = 0
    bounds = []
    for _ in range(FEW_RUNS):
        included = coins(generator, 1000)
        truthful = generator.random(1000) < 1 / (1 + math.exp(-epsilon))
        # A small random part breaks ties without taking sides.
        scores = np.where(truthful, included, ~included) + 0.1 * generator.random(1000)
        bound = audit.one_run_epsilon_bound(
            scores, included, guesses=800, delta=0.0, confidence=0.95
        )
        exceeded += bound > epsilon
        bounds.append(bound)
    assert exceeded <= 0.05 * FEW_RUNS + 3 * math.sqrt(0.05 * 0.95 * FEW_RUNS)
    assert 0.8 < np.median(bounds) < epsilon


def test_one_run_bound_falls_as_delta_grows() -> None:
    included = np.arange(400) < 200
    rest = {"guesses": 200, "confidence": 0.95}
    deltas = (0.0, 1e-5, 1e-4, 1e-2)
    bounds = [
        audit.one_run_epsilon_bound(included * 1.0, included, delta=delta, **rest)
        for delta in deltas
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < bounds[0]
