import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.posterior.rules.product_low_rank import LowRankGaussian, combine, product
from fl_dpbayes.report.warnings import sentence


def random_factors(seed, dimension, sites, rank):
    generator = np.random.default_rng(seed)
    return [
        LowRankGaussian(
            generator.normal(size=dimension),
            generator.uniform(0.1, 0.5, size=dimension),
            generator.normal(size=(rank, dimension)),
        )
        for _ in range(sites)
    ]


def dense(factors, prior_scale, prior_share):
    precisions = [np.linalg.inv(np.diag(f.diagonal) + f.factor.T @ f.factor) for f in factors]
    total = sum(precisions) + (1 - len(factors) * prior_share) / prior_scale**2 * np.eye(len(factors[0].mean))
    mean = np.linalg.solve(total, sum(p @ f.mean for p, f in zip(precisions, factors, strict=True)))
    return mean, np.linalg.inv(total)


def covariance_of(posterior):
    inner = np.eye(len(posterior.mean)) + (posterior.basis.T * (1 / posterior.eigenvalues - 1)) @ posterior.basis
    return posterior.scale[:, np.newaxis] * inner * posterior.scale


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    dimension=st.integers(2, 12),
    sites=st.integers(1, 4),
    rank=st.integers(1, 4),
    fraction=st.floats(0, 1),
)
def test_equals_the_dense_product_property(seed, dimension, sites, rank, fraction):
    # A prior so wide that dividing by it leaves every direction proper and above the floor.
    factors = random_factors(seed, dimension, sites, rank)
    scale = 50.0
    posterior = product(factors, prior_scale=scale, prior_share=fraction / sites)
    mean, covariance = dense(factors, scale, fraction / sites)
    np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=1e-10 * max(1, np.abs(mean).max()))
    np.testing.assert_allclose(covariance_of(posterior), covariance, rtol=0, atol=1e-10 * covariance.max())
    assert posterior.raised == 0


def test_divided_prior_equals_the_dense_product():
    factors = random_factors(3, 8, 3, 2)
    posterior = product(factors, prior_scale=9.0, prior_share=1.0)
    mean, covariance = dense(factors, 9.0, 1.0)
    np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(covariance_of(posterior), covariance, rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_exact_posterior_of_the_four_sites(linear_gaussian, share):
    # A full covariance is diagonal plus low rank once a diagonal is taken out of it.
    factors = []
    for site in linear_gaussian.sites:
        mean, covariance = linear_gaussian.moments(site, share)
        values, vectors = np.linalg.eigh(covariance)
        diagonal = np.full(3, values[0] / 2)
        factors.append(LowRankGaussian(mean, diagonal, (vectors * np.sqrt(values - values[0] / 2)).T))
    posterior = product(factors, prior_scale=linear_gaussian.prior_scale, prior_share=share)
    mean, covariance = linear_gaussian.posterior
    np.testing.assert_allclose(posterior.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(covariance_of(posterior), covariance, rtol=0, atol=1e-10)


def test_one_site_is_the_identity_limit():
    factor = random_factors(4, 6, 1, 3)[0]
    posterior = product([factor], prior_scale=1e6, prior_share=1.0)
    np.testing.assert_allclose(posterior.mean, factor.mean, atol=1e-10)
    np.testing.assert_allclose(
        covariance_of(posterior), np.diag(factor.diagonal) + factor.factor.T @ factor.factor, atol=1e-10
    )


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_empty_sites_return_the_prior_limit(share):
    # p(w)^s has variance scale^2 / s, here split into a diagonal and a factor.
    scale, variance = 1.3, 1.3**2 / share
    factors = [
        LowRankGaussian(np.zeros(4), np.array([0.5, 1, 1, 1]) * variance, np.eye(4)[:1] * np.sqrt(variance / 2))
    ] * 4
    posterior = product(factors, prior_scale=scale, prior_share=share)
    np.testing.assert_allclose(covariance_of(posterior), scale**2 * np.eye(4), atol=1e-10)
    assert posterior.raised == 0


def test_draws_have_the_posteriors_moments():
    factors = random_factors(5, 5, 3, 2)
    posterior = product(factors, prior_scale=2.0, prior_share=1 / 3)
    mean, covariance = dense(factors, 2.0, 1 / 3)
    draws = posterior.sample(200_000, np.random.default_rng(0))
    scale = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < 4 * scale / np.sqrt(200_000)).all()
    # Standard error of a covariance entry in units of the standard deviations: at most sqrt(2 / M).
    assert (np.abs(np.cov(draws.T) - covariance) / np.outer(scale, scale)).max() < 4 * np.sqrt(2 / 200_000)


def test_wider_than_the_prior_is_raised_to_it_and_said(as_samples):
    generator = np.random.default_rng(6)
    samples = {name: as_samples(generator.normal(size=(40, 6)) * 5.0) for name in "ab"}
    aggregate = combine(samples, prior_scale=1.0, prior_share=1.0, draws=40_000, generator=generator)
    assert any("less precise than the prior" in text for text in map(sentence, aggregate.warnings))
    assert aggregate.samples.arrays["w"].var(axis=0).max() < 1 + 4 * np.sqrt(2 / 40_000)


def test_variances_of_a_site_are_kept(as_samples):
    draws = np.random.default_rng(7).normal(size=(30, 50)) * np.linspace(0.5, 2, 50)
    aggregate = combine(
        {"a": as_samples(draws)},
        prior_scale=math.inf,
        prior_share=1.0,
        draws=20_000,
        generator=np.random.default_rng(8),
    )
    np.testing.assert_allclose(
        aggregate.samples.arrays["w"].var(axis=0), draws.var(axis=0, ddof=1), rtol=5 * np.sqrt(2 / 20_000)
    )
    assert aggregate.warnings == ()


def test_few_samples_are_said(as_samples):
    draws = np.random.default_rng(9).normal(size=(3, 20))
    aggregate = combine(
        {"a": as_samples(draws)}, prior_scale=1.0, prior_share=1.0, draws=5, generator=np.random.default_rng(0)
    )
    assert any("3.0 effective samples" in text for text in map(sentence, aggregate.warnings))
    with pytest.raises(ValueError, match="at least 2"):
        combine(
            {"a": as_samples(draws[:1])}, prior_scale=1.0, prior_share=1.0, draws=5, generator=np.random.default_rng(0)
        )


def test_order_of_sites_does_not_matter(as_samples):
    generator = np.random.default_rng(10)
    samples = {name: as_samples(generator.normal(size=(20, 10))) for name in "abc"}
    one, other = (
        combine(given, prior_scale=3.0, prior_share=1 / 3, draws=5, generator=np.random.default_rng(1))
        for given in (samples, dict(reversed(samples.items())))
    )
    np.testing.assert_array_equal(one.samples.arrays["w"], other.samples.arrays["w"])
