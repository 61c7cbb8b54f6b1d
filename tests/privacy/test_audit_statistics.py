"""The tests of an audit: how often they alarm at a sound site, and how rarely they miss what they say they find."""

import re

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import binom

from fl_dpbayes.privacy.audit_statistics import (
    MISS,
    Finding,
    correlation_tests,
    count_kurtosis,
    mean_test,
    variance_test,
    verdicts,
)

RUNS = 100_000
LEVEL = 1e-3
# Standard errors of a share of RUNS.
ERRORS = 4


def most_of(share: float) -> float:
    return share + ERRORS * np.sqrt(share / RUNS)


def size_found(finding: Finding) -> float:
    found = re.search(r"[\d.]+", finding.effect(LEVEL).words)
    assert found is not None
    return float(found.group())


def alarms(totals: np.ndarray, degrees: int, kurtosis: float = 0.0) -> float:
    # The probability falls away from the middle: two bisections find where it is the level, and the rest is counting.
    def limit(low: float, high: float) -> float:
        for _ in range(60):
            middle = (low + high) / 2
            alarm = variance_test(middle, degrees, "", kurtosis=kurtosis).probability < LEVEL
            low, high = (middle, high) if alarm else (low, middle)
        return low

    below, above = limit(0.0, degrees), limit(20.0 * degrees, degrees)
    return float(np.mean((totals < below) | (totals > above)))


@pytest.mark.parametrize("degrees", [1, 20, 650])
def test_gaussian_noise_raises_alarms_as_seldom_as_promised(degrees: int) -> None:
    totals = np.random.default_rng(degrees).chisquare(degrees, RUNS)
    assert LEVEL / 2 < alarms(totals, degrees) < most_of(LEVEL)


@pytest.mark.parametrize("degrees", [60, 650])
def test_the_stated_deviation_is_missed_once_in_a_thousand(degrees: int) -> None:
    ratio = size_found(variance_test(degrees, degrees, ""))
    totals = ratio**2 * np.random.default_rng(0).chisquare(degrees, RUNS)
    # The ratio is stated to two digits.
    assert 1 - alarms(totals, degrees) < 2 * MISS


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5])
def test_counts_of_joining_units_raise_alarms_as_seldom_as_promised(rate: float) -> None:
    batches, units = 24, max(160, round(30 / rate))
    units = min(units, 1200)
    generator = np.random.default_rng(int(100 * rate))
    counts = generator.binomial(units, rate, (RUNS, batches))
    variance = units * rate * (1 - rate)
    totals = np.square((counts - units * rate) / np.sqrt(variance)).sum(axis=1)
    kurtosis = max(0.0, 1 - 6 * rate * (1 - rate)) / variance
    assert alarms(totals, batches, kurtosis) < most_of(1.3 * LEVEL)


@pytest.mark.parametrize("rate", [0.005])
def test_counts_raise_alarms_as_seldom_as_promised_at_the_level_of_an_audit(rate: float) -> None:
    batches, units, level, most = 12, 1200, 8e-7, 2**12
    mean, variance = units * rate, units * rate * (1 - rate)
    counts = np.arange(units + 1)
    squares = np.square(counts - round(mean))
    law = np.bincount(squares[squares < most], binom.pmf(counts, units, rate)[squares < most], most)
    one = law
    for _ in range(batches - 1):
        law = fftconvolve(law, one)[:most]
    kurtosis = count_kurtosis(units, rate)
    alarm = [variance_test(x / variance, batches, "", kurtosis=kurtosis).probability < level for x in range(most)]
    assert 1 - law.sum() + law[alarm].sum() < 2.5 * level


def test_a_mean_is_missed_and_mistaken_as_seldom_as_promised() -> None:
    draws = 0.1 * np.random.default_rng(0).normal(size=RUNS // 30)

    def found(shift: float, one_sided: bool = False) -> float:
        tests = [mean_test(x + shift, 0.1, "", unit=1.0, one_sided=one_sided).probability for x in draws]
        return float(np.mean(np.array(tests) < LEVEL))

    assert found(0.0) < 2 * LEVEL
    size = mean_test(0.0, 0.1, "", unit=1.0).effect(LEVEL).size
    assert found(size) > 1 - 3 * MISS
    assert found(-size) > 1 - 3 * MISS
    assert found(-size, one_sided=True) == 0


def test_slack_is_never_an_alarm_and_no_noise_at_all_always_is() -> None:
    assert mean_test(0.01, 1e-9, "", unit=1.0, slack=0.01).probability == 1
    assert variance_test(10_200, 10_000, "", slack=0.02).probability > variance_test(10_200, 10_000, "").probability
    [check] = verdicts("part", {"a": [variance_test(0.0, 10, "all")]}, 1e-4)
    assert not check.passed


def test_only_noise_in_common_correlates() -> None:
    generator = np.random.default_rng(0)
    vectors = {str(i): generator.normal(size=300) for i in range(5)}
    vectors["copy"] = -2 * vectors["3"]
    vectors["none"] = np.zeros(300)
    findings = correlation_tests(vectors)
    assert len(findings) == 15
    assert [f.where for f in findings if f.probability < 1e-6] == ["3 and copy, -1"]


def test_a_repetition_is_found_with_few_numbers() -> None:
    noise = np.random.default_rng(0).normal(size=6)
    [finding] = correlation_tests({"a": noise, "b": noise + 1e-6})
    assert finding.probability < 1e-10


def test_all_tests_of_a_part_share_its_level() -> None:
    sound = [variance_test(100, 100, f"tensor {i}") for i in range(7)]
    first, second = verdicts("part", {"a": sound, "b": sound[:1], "c": []}, 1e-4)
    assert first.limit == pytest.approx(1e-4 / 14)
    assert second.limit == pytest.approx(1e-4 / 2)
    assert first.passed
    assert first.where.startswith("worst of 7: tensor 0")
    assert "times the claim or less" in first.finds
