import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.config.run_warning import warning
from fl_dpbayes.posterior.rules.predbayes import (
    best_beta,
    between,
    product_and_mixture,
    temperature_warnings,
)
from tests.analytic_targets import as_samples


def combine(probabilities, beta):
    return between(product_and_mixture(probabilities), beta)


def fitted_beta(probabilities, labels):
    return best_beta(product_and_mixture(probabilities), labels)


def random_probabilities(seed, sites=4, records=6, classes=3):
    return np.random.default_rng(seed).dirichlet(np.ones(classes), size=(sites, records))


@pytest.mark.parametrize(
    ("beta", "value"), [(0, 0.8), (0.25, 0.88889), (0.5, 0.94118), (1, 0.98462)]
)
def test_three_identical_sites_golden(beta, value):
    same = np.tile([[[0.8, 0.2]]], (3, 1, 1))
    assert combine(same, beta=beta)[0, 0] == pytest.approx(value, abs=5e-6)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(seed=st.integers(0, 1000), sites=st.integers(1, 5), beta=st.floats(0, 1))
def test_ends_sum_and_order_property(seed, sites, beta):
    probabilities = random_probabilities(seed, sites)
    np.testing.assert_allclose(
        combine(probabilities, beta=0), probabilities.mean(axis=0), rtol=1e-12
    )
    product = probabilities.prod(axis=0)
    np.testing.assert_allclose(
        combine(probabilities, beta=1), product / product.sum(axis=1, keepdims=True), rtol=1e-9
    )
    between = combine(probabilities, beta=beta)
    np.testing.assert_allclose(between.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(combine(probabilities[::-1], beta=beta), between, rtol=1e-10)
    if sites == 1:
        np.testing.assert_allclose(between, probabilities[0], rtol=1e-12)


@pytest.mark.parametrize("small", [1e-30, 1e-300, 0.0])
def test_tiny_probabilities_stay_finite_limit(small):
    probabilities = np.tile([[[1 - small, small]]], (9, 1, 1))
    for beta in (0.0, 0.5, 1.0):
        found = combine(probabilities, beta=beta)
        assert np.isfinite(found).all()
        assert found.sum() == pytest.approx(1)
    vetoed = combine(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]), beta=1.0)
    np.testing.assert_allclose(vetoed, [[0.5, 0.5]])


def test_fitted_beta_finds_the_beta_that_made_the_labels():
    generator = np.random.default_rng(1)
    probabilities = random_probabilities(2, sites=3, records=40_000)
    truth = combine(probabilities, beta=0.6)
    labels = (generator.random((40_000, 1)) > truth.cumsum(axis=1)[:, :-1]).sum(axis=1)
    beta = fitted_beta(probabilities, labels)
    # Fisher information per record: variance of the score log p_prod - log p_mix under the model.
    logs = np.log(probabilities)
    score = logs.sum(axis=0) - np.log(probabilities.mean(axis=0))
    information = ((truth * score**2).sum(axis=1) - (truth * score).sum(axis=1) ** 2).sum()
    assert abs(beta - 0.6) < 4 / np.sqrt(information)


def test_fitted_beta_reaches_the_ends():
    probabilities = np.tile([[[0.8, 0.2]]], (3, 10, 1))
    assert fitted_beta(probabilities, np.zeros(10, int)) == 1.0
    assert fitted_beta(probabilities, np.array([0] * 5 + [1] * 5)) == 0.0


def test_unequal_temperatures_are_said():
    draws = np.zeros((3, 3))
    assert temperature_warnings({"a": as_samples(draws, 2.0), "b": as_samples(draws, 2.0)}) == ()
    found = temperature_warnings({"a": as_samples(draws, 2.0), "b": as_samples(draws, 0.5)})
    assert found == (warning("temperatures-differ", least=0.5, most=2.0),)
    assert temperature_warnings({}) == ()
