import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from scipy.stats import binom, norm

from fl_dpbayes.calibration.bins import bin_index, coarsen
from fl_dpbayes.calibration.metrics.errors import rms_debiased
from fl_dpbayes.calibration.rms_interval import (
    Moments,
    debiased_mean_square_gap,
    rms_interval,
    share_below,
    square_gap_moments,
)
from fl_dpbayes.calibration.statistics import from_batch
from tests.counted import empty, top_label


def table_and_truth(confidence, frequency, generator):
    right = generator.random(confidence.size) < frequency
    statistics = top_label(confidence, right)
    k = bin_index(confidence, 15)
    counts = np.bincount(k, minlength=15)
    gaps = np.bincount(k, confidence - frequency, 15)
    truth = np.sqrt((gaps**2 / np.maximum(counts, 1)).sum() / confidence.size)
    return coarsen(statistics.top_label, 15), truth


def test_interval_limits():
    assert rms_interval(coarsen(empty(2).top_label, 15)) is None
    # 30 right answers of 30 do not rule out an accuracy of 93 %.
    low, high = rms_interval(
        table_and_truth(np.full(30, 0.98), np.ones(30), np.random.default_rng(22))[0]
    )
    assert low == 0
    assert high > 0.05
    # Many records: narrow.
    generator = np.random.default_rng(23)
    confidence = generator.uniform(0.5, 1, 50_000)
    table, truth = table_and_truth(confidence, expit(0.6 * logit(confidence)), generator)
    low, high = rms_interval(table)
    assert low <= truth <= high < low + 0.02
    # Vanishing noise: the exact interval.
    table, _ = table_and_truth(np.full(200, 0.8), np.full(200, 0.6), np.random.default_rng(24))
    assert rms_interval(table, 1e-9) == pytest.approx(rms_interval(table), abs=0.02)


@given(
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.sampled_from([2, 5, 40]),
    st.sampled_from([0.0, 0.5]),
)
def test_interval_property_holds_its_estimate(seed, count, classes, flip):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.full(classes, 0.2), count)
    best = probabilities.argmax(axis=1)
    worst = probabilities.argmin(axis=1)
    labels = np.where(generator.random(count) < flip, best, worst)
    statistics = from_batch(probabilities, labels)
    low, high = rms_interval(coarsen(statistics.top_label, 15))
    assert 0 <= low <= rms_debiased(statistics).value <= high <= 1


def test_luck_does_not_take_the_interval_away():
    n = np.array([60.0, 80.0, 60.0, 60.0, 40.0])
    p = n * np.array([0.55, 0.65, 0.75, 0.85, 0.95])
    interval = rms_interval(np.stack([n, p, p], axis=1))
    # Frequencies that equal the confidences are consistent with errors of some points at 300
    # records.
    assert interval.low == 0
    assert 0.03 < interval.high < 0.1


@pytest.mark.parametrize(
    ("n", "p", "q"), [(2, 0.7, 0.4), (9, 0.9, 0.97), (60, 0.55, 0.55), (35, 1.0, 0.2)]
)
def test_moments_of_one_bin_by_enumeration(n, p, q):
    k = np.arange(n + 1)
    weight = binom.pmf(k, n, q)
    table = np.stack([np.full(n + 1, n), np.full(n + 1, n * p), k], axis=1)[:, None, :].astype(
        float
    )
    value = n * debiased_mean_square_gap(table)
    mean = weight @ value
    expected = (mean, weight @ (value - mean) ** 2, weight @ (value - mean) ** 3)
    found = square_gap_moments(np.array([n * 1.0]), np.array([p]), np.array([q]), np.zeros(1))
    assert np.array(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_moments_with_noise_by_simulation():
    generator = np.random.default_rng(1)
    n = np.array([200.0, 90.0])
    p = np.array([0.8, 0.6])
    q = np.array([0.7, 0.65])
    noise = np.array([8.0, 5.0])
    draws = 200_000
    table = np.empty((draws, 2, 3))
    table[..., 0] = n
    table[..., 1] = n * p
    table[..., 2] = generator.binomial(n.astype(int), q, (draws, 2))
    table += noise[:, None] * generator.standard_normal(table.shape)
    value = n.sum() * debiased_mean_square_gap(table, noise)
    mean, variance, third = square_gap_moments(n, p, q, noise)
    # First order in the count: it leaves a few percent of the deviation.
    assert value.mean() == pytest.approx(mean, abs=0.1 * value.std())
    assert np.sqrt(variance) == pytest.approx(value.std(), rel=0.05)
    assert third / variance**1.5 == pytest.approx(
        ((value - value.mean()) ** 3).mean() / value.std() ** 3, abs=0.3
    )


def test_bins_of_one_record_contribute_nothing_limit():
    one = np.ones(3)
    half = np.full(3, 0.5)
    assert square_gap_moments(one, half, half, np.zeros(3)) == (0, 0, 0)
    assert share_below(0.0, Moments(*(np.zeros(1),) * 3)) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("skewness", [1.5, -1.5])
def test_law_has_its_moments(skewness):
    x = np.linspace(-12, 16, 400_001) * np.sign(skewness)
    x.sort()
    moments = Moments(np.array(0.4), np.array(2.0), np.array(skewness * 2.0**1.5))
    share = share_below(x, moments)
    weight = np.diff(share)
    middle = (x[1:] + x[:-1]) / 2
    mean = weight @ middle
    assert mean == pytest.approx(0.4, abs=1e-3)
    assert weight @ (middle - mean) ** 2 == pytest.approx(2.0, abs=2e-3)
    assert weight @ (middle - mean) ** 3 == pytest.approx(skewness * 2.0**1.5, abs=2e-2)


def test_without_skewness_it_is_the_normal_law_limit():
    x = np.linspace(-3, 3, 7)
    moments = Moments(np.array(0.0), np.array(1.0), np.array(0.0))
    assert share_below(x, moments) == pytest.approx(norm.cdf(x), abs=2e-4)
