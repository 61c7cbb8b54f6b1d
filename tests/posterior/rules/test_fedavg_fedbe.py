import numpy as np
import pytest

from tests.analytic_targets import combined, exact_samples

WEIGHTS = {"a": 12 / 252, "b": 30 / 252, "c": 60 / 252, "d": 150 / 252}


@pytest.fixture
def samples(linear_gaussian):
    return {s: exact_samples(linear_gaussian.moments(s, 1.0), 20) for s in linear_gaussian.sites}


def test_fedavg_is_the_weighted_mean_of_means(linear_gaussian, samples):
    found = combined("fedavg", samples, weights=WEIGHTS, move_bound="none").samples
    expected = sum(WEIGHTS[s] * linear_gaussian.moments(s, 1.0)[0] for s in linear_gaussian.sites)
    np.testing.assert_allclose(found.arrays["w"], [expected], rtol=1e-6)
    assert found.temperatures.tolist() == [0.0]


def test_fedbe_holds_sites_average_and_draws_of_the_scatter(samples):
    count = 100_000
    spread = 0.5
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
