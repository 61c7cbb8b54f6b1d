import numpy as np
import pytest

from fl_dpbayes.posterior.rules import consensus as rule
from fl_dpbayes.report.warnings import sentence


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_exact_draws_follow_the_posterior(linear_gaussian, orthogonal, kind):
    problem = linear_gaussian if kind == "full" else orthogonal
    generator = np.random.default_rng(1)
    draws, weights = [], []
    for site in problem.sites:
        mean, covariance = problem.moments(site, 0.25)
        draws.append(generator.multivariate_normal(mean, covariance, size=200_000))
        precision = np.linalg.inv(covariance)
        weights.append(precision if kind == "full" else np.diag(precision))
    combined = rule.weighted_average(draws, weights)
    mean, covariance = problem.posterior
    assert (np.abs(combined.mean(axis=0) - mean) < 4 * np.sqrt(np.diag(covariance) / 200_000)).all()
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert (np.abs(np.cov(combined.T) - covariance) / scale).max() < 0.01


def test_exact_moments_give_the_posterior_mean(linear_gaussian, exact_samples):
    # Sample means that are exactly the sites' and exact weights: the average of the draws is the posterior mean.
    draws, weights = [], []
    for seed, site in enumerate(linear_gaussian.sites):
        moments = linear_gaussian.moments(site, 0.25)
        draws.append(exact_samples(moments, 30, seed=seed).arrays["w"])
        weights.append(np.linalg.inv(moments[1]))
    mean = rule.weighted_average(draws, weights).mean(axis=0)
    np.testing.assert_allclose(mean, linear_gaussian.posterior[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_samples_give_the_posterior(linear_gaussian, orthogonal, random_samples, assert_within_standard_errors, kind):
    problem = linear_gaussian if kind == "full" else orthogonal
    function = rule.combine_full if kind == "full" else rule.combine_diagonal
    generator = np.random.default_rng(2)
    means, covariances = [], []
    for _ in range(40):
        samples = {s: random_samples(problem.moments(s, 0.25), 600, generator) for s in problem.sites}
        aggregate = function(samples, prior_share=0.25, draws=600, generator=generator)
        assert aggregate.warnings == ()
        draws = aggregate.samples.arrays["w"].astype(np.float64)
        means.append(draws.mean(axis=0))
        covariances.append(np.cov(draws.T))
    mean, covariance = problem.posterior
    assert_within_standard_errors(means, mean)
    assert_within_standard_errors(covariances, covariance)


def test_uniform_weights_give_the_mean_of_means_and_a_wrong_width(linear_gaussian, random_samples):
    generator = np.random.default_rng(3)
    moments = [linear_gaussian.moments(s, 0.25) for s in linear_gaussian.sites]
    samples = {s: random_samples(m, 50_000, generator) for s, m in zip(linear_gaussian.sites, moments, strict=True)}
    draws = rule.combine_uniform(samples, prior_share=0.25, draws=50_000, generator=generator).samples.arrays["w"]
    expected = np.mean([m for m, _ in moments], axis=0)
    covariance = np.sum([c for _, c in moments], axis=0) / 16
    error = np.sqrt(np.diag(covariance) / 50_000)
    assert (np.abs(draws.mean(axis=0) - expected) < 4 * error).all()
    np.testing.assert_allclose(draws.var(axis=0), np.diag(covariance), rtol=4 * np.sqrt(2 / 50_000))
    exact_mean, exact_covariance = linear_gaussian.posterior
    assert np.abs(expected - exact_mean).max() > 20 * error.max()
    assert np.trace(covariance) > 2 * np.trace(exact_covariance)


def test_diagonal_weights_are_biased_where_parameters_are_correlated(linear_gaussian):
    weights = [np.diag(np.linalg.inv(linear_gaussian.moments(s, 0.25)[1])) for s in linear_gaussian.sites]
    marginal = [1 / np.diag(linear_gaussian.moments(s, 0.25)[1]) for s in linear_gaussian.sites]
    means = [linear_gaussian.moments(s, 0.25)[0][np.newaxis] for s in linear_gaussian.sites]
    exact = linear_gaussian.posterior[0]
    for weight in (weights, marginal):
        assert np.abs(rule.weighted_average(means, weight)[0] - exact).max() > 0.01


def test_unequal_temperatures_are_corrected(linear_gaussian, exact_samples):
    temperatures = {"a": 0.3, "b": 1.0, "c": 2.5, "d": 7.0}
    samples = {
        site: exact_samples(linear_gaussian.moments(site, 0.25), 5000, temperatures[site], seed)
        for seed, site in enumerate(linear_gaussian.sites)
    }
    draws = rule.combine_full(samples, prior_share=0.25, draws=5000, generator=np.random.default_rng(0))
    mean, covariance = linear_gaussian.posterior
    values = draws.samples.arrays["w"]
    # What is left is the plug-in factor's dependence on the effective number of 5000 draws.
    np.testing.assert_allclose(values.mean(axis=0), mean, atol=0.02 * np.sqrt(np.diag(covariance)).min())
    np.testing.assert_allclose(values.var(axis=0), np.diag(covariance), rtol=4 * np.sqrt(2 / 5000))


@pytest.mark.parametrize("function", [rule.combine_full, rule.combine_diagonal, rule.combine_uniform])
def test_one_site_is_the_identity_and_each_draw_is_used_once(linear_gaussian, exact_samples, function):
    samples = exact_samples(linear_gaussian.moments("b", 1.0), 64)
    combined = function({"b": samples}, prior_share=1.0, draws=64, generator=np.random.default_rng(0))
    for column in range(3):
        np.testing.assert_allclose(
            np.sort(combined.samples.arrays["w"][:, column]), np.sort(samples.arrays["w"][:, column]), rtol=1e-6
        )
    assert combined.warnings == ()


@pytest.mark.parametrize("function", [rule.combine_full, rule.combine_diagonal, rule.combine_uniform])
def test_order_of_sites_does_not_matter(linear_gaussian, exact_samples, function):
    samples = {s: exact_samples(linear_gaussian.moments(s, 0.25), 40) for s in linear_gaussian.sites}
    one = function(samples, prior_share=0.25, draws=30, generator=np.random.default_rng(1))
    other = function(dict(reversed(samples.items())), prior_share=0.25, draws=30, generator=np.random.default_rng(1))
    np.testing.assert_array_equal(one.samples.arrays["w"], other.samples.arrays["w"])


def test_weights_of_draws_are_respected(as_samples):
    samples = as_samples(np.array([[0.0], [1.0]]), weights=np.array([1.0, 3.0]))
    combined = rule.combine_uniform({"a": samples}, prior_share=1.0, draws=8, generator=np.random.default_rng(0))
    assert np.sort(combined.samples.arrays["w"].ravel()).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_prior_counted_more_than_once_is_said(linear_gaussian, exact_samples):
    samples = {s: exact_samples(linear_gaussian.moments(s, 1.0), 40) for s in linear_gaussian.sites}
    aggregate = rule.combine_full(samples, prior_share=1.0, draws=10, generator=np.random.default_rng(0))
    assert any("count the prior 4 times" in text for text in map(sentence, aggregate.warnings))
    np.testing.assert_array_equal(aggregate.samples.temperatures, 1.0)
