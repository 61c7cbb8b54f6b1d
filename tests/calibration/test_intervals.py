import numpy as np
import pytest
from scipy.stats import ttest_rel

from fl_dpbayes.calibration.intervals import ece_if_calibrated, student_interval, wilson_interval
from fl_dpbayes.calibration.metrics import errors
from tests.counted import top_label


def test_wilson_interval_golden_and_in_its_limits():
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 0 of 20.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    # Of very many records: n / (n + z^2) to 1, where linear^2 and quadratic * constant agree in all
    # digits.
    low, high = wilson_interval(2e8, 2e8)
    np.testing.assert_allclose(1 - low, 1.959963984540054**2 / 2e8, rtol=1e-6)
    assert high == pytest.approx(1.0, abs=1e-12)
    assert wilson_interval(0, 0) is None
    assert wilson_interval(80, 100, 1e-12) == pytest.approx(wilson_interval(80, 100), abs=1e-12)
    assert (
        wilson_interval(5, 8, 100.0) == wilson_interval(-3, -8, 100.0) == (0.0, 1.0)
    )  # hidden by noise


@pytest.mark.parametrize("accuracy", [0.6, 0.95])
def test_noisy_wilson_interval_covers(accuracy):
    generator = np.random.default_rng(11)
    inside = 0
    for _ in range(1000):
        right = generator.binomial(300, accuracy)
        low, high = wilson_interval(
            right + 10 * generator.normal(), 300 + 10 * generator.normal(), 100.0
        )
        inside += low <= accuracy <= high
    assert inside / 1000 > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 1000)


@pytest.mark.parametrize("count", [50, pytest.param(624, marks=pytest.mark.slow)])
def test_ece_if_calibrated_is_what_calibrated_models_show(count):
    generator = np.random.default_rng(14)
    assert ece_if_calibrated(top_label(np.ones(5), np.zeros(5, bool)), generator) == (0.0, 0.0)
    shown = []
    means = []
    above = 0
    for _ in range(100):
        p = generator.uniform(0.5, 1, count)
        statistics = top_label(p, generator.random(count) < p)
        mean, high = ece_if_calibrated(statistics, generator)
        shown.append(errors.ece(statistics))
        means.append(mean)
        above += shown[-1] > high
    assert abs(np.mean(shown) - np.mean(means)) < 4 * np.std(shown) / np.sqrt(100)
    assert abs(above / 100 - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 100)


def test_it_is_the_interval_of_the_paired_t_test():
    generator = np.random.default_rng(1)
    a, b = generator.normal(size=(2, 6))
    expected = ttest_rel(a, b).confidence_interval(0.95)
    assert student_interval(a - b) == pytest.approx((expected.low, expected.high), abs=1e-12)
