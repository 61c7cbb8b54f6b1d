import numpy as np
import pytest

from fl_dpbayes.posterior.natural import NaturalGaussian
from tests.analytic_targets import combined, exact_samples

WEIGHTS = {"a": 12 / 252, "b": 30 / 252, "c": 60 / 252, "d": 150 / 252}


def fedavg(samples, weights):
    return combined("fedavg", samples, weights=weights, move_bound="none").samples


@pytest.fixture
def samples(linear_gaussian):
    return {s: exact_samples(linear_gaussian.moments(s, 1.0), 20) for s in linear_gaussian.sites}


def test_fedavg_is_the_weighted_mean_of_means(linear_gaussian, samples):
    found = fedavg(samples, WEIGHTS)
    expected = sum(WEIGHTS[s] * linear_gaussian.moments(s, 1.0)[0] for s in linear_gaussian.sites)
    np.testing.assert_allclose(found.arrays["w"], [expected], rtol=1e-6)
    assert found.temperatures.tolist() == [0.0]


def test_fedavg_is_exact_where_precisions_are_equal_limit():
    precision = np.array([[2.0, 0.5], [0.5, 1.0]])
    means = {name: np.random.default_rng(i).normal(size=2) for i, name in enumerate("abc")}
    samples = {name: exact_samples((mean, np.linalg.inv(precision)), 12) for name, mean in means.items()}
    total = sum((NaturalGaussian(precision, precision @ m) for m in means.values()), NaturalGaussian(0.0, 0.0))
    found = fedavg(samples, dict.fromkeys("abc", 1.0)).arrays["w"][0]
    np.testing.assert_allclose(found, total.mean, rtol=1e-6)


def test_fedbe_holds_sites_average_and_draws_of_the_scatter(samples):
    count, spread = 100_000, 0.5
    ensemble = combined("fedbe", samples, weights=WEIGHTS, draws=count, spread=spread)
    members = ensemble.samples.arrays["w"].astype(np.float64)
    means = np.stack([samples[s].arrays["w"].mean(axis=0) for s in "abcd"])
    weights = np.array([WEIGHTS[s] for s in "abcd"])
    centre = weights @ means
    scatter = weights @ (means - centre) ** 2
    np.testing.assert_allclose(members[:4], means, rtol=1e-6)
    np.testing.assert_allclose(members[4], centre, rtol=1e-6)
    draws = members[5:]
    assert len(draws) == count
    assert (np.abs(draws.mean(axis=0) - centre) < 4 * spread * np.sqrt(scatter / count)).all()
    np.testing.assert_allclose(draws.var(axis=0), spread**2 * scatter, rtol=4 * np.sqrt(2 / count))
