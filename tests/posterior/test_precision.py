import numpy as np
import pytest

from fl_dpbayes.posterior.chains import at_unit_temperature, chains
from fl_dpbayes.posterior.precision import (
    diagonal_gaussian,
    effective_draws,
    full_gaussian,
    weighted_variance,
)
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.report.warnings import sentence
from tests.analytic_targets import assert_within_standard_errors
from tests.posterior.test_convergence import autoregressive


def chain_of(draws, weights=None, temperatures=None):
    ones = np.ones(len(draws))
    given = (ones if values is None else values for values in (weights, temperatures))
    return next(iter(chains({"site": PosteriorSamples({"w": draws}, *given)})))


@pytest.mark.slow
@pytest.mark.parametrize("form", [diagonal_gaussian, full_gaussian])
@pytest.mark.parametrize(("dimensions", "count"), [(1, 8), (1, 40), (2, 12), (5, 16)])
def test_precision_of_independent_draws_is_unbiased_over_seeds(form, dimensions, count):
    found = []
    for seed in range(800):
        draws = np.random.default_rng([dimensions, count, seed]).normal(size=(count, dimensions))
        precision = form(chain_of(draws))[0].precision
        found.append(np.trace(precision) / dimensions if precision.ndim == 2 else precision.mean())
    # The tails of one in a thousand chains that are taken for correlated are within the error.
    assert_within_standard_errors(np.array(found)[:, np.newaxis], 1.0)


def test_weighted_variance_is_unbiased():
    weights = np.array([1.0, 2.0, 0.5, 4.0, 1.0])
    draws = np.random.default_rng(3).normal(size=(5, 50_000))
    assert_within_standard_errors(weighted_variance(chain_of(draws, weights)), 1.0)


def test_equal_weights_give_the_usual_estimates():
    draws = np.random.default_rng(4).normal(size=(40, 3)) + 5
    np.testing.assert_allclose(
        weighted_variance(chain_of(draws)), draws.var(axis=0, ddof=1), rtol=1e-12
    )
    chain = chain_of(draws)
    effective = effective_draws(chain)
    expected = (effective - 5) / (effective - 1) * np.linalg.inv(np.cov(draws.T))
    np.testing.assert_allclose(full_gaussian(chain)[0].precision, expected, rtol=1e-10)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_draws_of_an_autoregression_limit(correlation):
    # One chain's estimate varies by 7 % at r = .9; the mean of ten lies within 4 standard errors, 9
    # %.
    paths = (autoregressive(correlation, draws=800, dimensions=64, seed=seed) for seed in range(10))
    found = np.mean([effective_draws(chain_of(draws)) for draws in paths])
    assert found == pytest.approx(800 * (1 - correlation) / (1 + correlation), rel=0.09)


def test_effective_draws_of_weights_golden():
    draws = np.random.default_rng(6).normal(size=(3, 4))
    assert effective_draws(chain_of(draws, np.array([1.0, 1.0, 2.0]))) == pytest.approx(16 / 6)


def test_sticky_chain_is_warned_about_and_weighed_as_the_least_number():
    steps = np.repeat(np.random.default_rng(7).normal(size=(3, 50)), 6, axis=0)
    steps = steps + 1e-3 * np.random.default_rng(8).normal(size=steps.shape)
    gaussian, warnings = diagonal_gaussian(chain_of(steps))
    assert "effective samples of the 5 that its precision needs" in sentence(warnings[0])
    np.testing.assert_allclose(
        gaussian.precision, 0.5 / weighted_variance(chain_of(steps)), rtol=1e-12
    )


def test_temperature_scales_the_spread_and_keeps_the_mean():
    generator = np.random.default_rng(9)
    temperatures = generator.uniform(0.2, 6.0, size=20_000)
    draws = 3 + np.sqrt(temperatures)[:, np.newaxis] * generator.normal(size=(20_000, 4))
    hot = chain_of(draws, temperatures=temperatures)
    unit = at_unit_temperature(hot)
    np.testing.assert_allclose(unit.mean, hot.mean, rtol=1e-12)
    # 4 standard errors of a variance: 4 sqrt(2 / 20,000).
    np.testing.assert_allclose(weighted_variance(unit), 1.0, atol=4 * 0.01)
    np.testing.assert_array_equal(unit.temperatures, 1.0)
