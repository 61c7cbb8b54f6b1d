import numpy as np
import pytest
from scipy.stats import binom, norm

from fl_dpbayes.calibration.rms_interval import debiased_mean_square_gap, share_below, square_gap_moments


@pytest.mark.parametrize(("n", "p", "q"), [(2, 0.7, 0.4), (9, 0.9, 0.97), (60, 0.55, 0.55), (35, 1.0, 0.2)])
def test_moments_of_one_bin_by_enumeration(n, p, q):
    k = np.arange(n + 1)
    weight = binom.pmf(k, n, q)
    table = np.stack([np.full(n + 1, n), np.full(n + 1, n * p), k], axis=1)[:, None, :].astype(float)
    value = n * debiased_mean_square_gap(table)
    mean = weight @ value
    expected = (mean, weight @ (value - mean) ** 2, weight @ (value - mean) ** 3)
    found = square_gap_moments(np.array([n * 1.0]), np.array([p]), np.array([q]), np.zeros(1))
    assert np.array(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_moments_with_noise_by_simulation():
    generator = np.random.default_rng(1)
    n, p, q, noise = np.array([200.0, 90.0]), np.array([0.8, 0.6]), np.array([0.7, 0.65]), np.array([8.0, 5.0])
    draws = 200_000
    table = np.empty((draws, 2, 3))
    table[..., 0], table[..., 1], table[..., 2] = n, n * p, generator.binomial(n.astype(int), q, (draws, 2))
    table += noise[:, None] * generator.standard_normal(table.shape)
    value = n.sum() * debiased_mean_square_gap(table, noise)
    mean, variance, third = square_gap_moments(n, p, q, noise)
    # First order in the count: it leaves a few percent of the deviation.
    assert value.mean() == pytest.approx(mean, abs=0.1 * value.std())
    assert np.sqrt(variance) == pytest.approx(value.std(), rel=0.05)
    assert third / variance**1.5 == pytest.approx(((value - value.mean()) ** 3).mean() / value.std() ** 3, abs=0.3)


def test_bins_of_one_record_contribute_nothing_limit():
    one, half = np.ones(3), np.full(3, 0.5)
    assert square_gap_moments(one, half, half, np.zeros(3)) == (0, 0, 0)
    assert share_below(0.0, *(np.zeros(1),) * 3) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("skewness", [1.5, -1.5])
def test_law_has_its_moments(skewness):
    x = np.linspace(-12, 16, 400_001) * np.sign(skewness)
    x.sort()
    share = share_below(x, np.array(0.4), np.array(2.0), np.array(skewness * 2.0**1.5))
    weight, middle = np.diff(share), (x[1:] + x[:-1]) / 2
    mean = weight @ middle
    assert mean == pytest.approx(0.4, abs=1e-3)
    assert weight @ (middle - mean) ** 2 == pytest.approx(2.0, abs=2e-3)
    assert weight @ (middle - mean) ** 3 == pytest.approx(skewness * 2.0**1.5, abs=2e-2)


def test_without_skewness_it_is_the_normal_law_limit():
    x = np.linspace(-3, 3, 7)
    assert share_below(x, np.array(0.0), np.array(1.0), np.array(0.0)) == pytest.approx(norm.cdf(x), abs=2e-4)
