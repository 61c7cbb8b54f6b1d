import math

import numpy as np
import pytest

from fl_dpbayes.posterior.natural import NaturalGaussian, from_moments
from fl_dpbayes.posterior.rules import product as rule

SHARES = {"fractional": 1 / 4, "divided": 1.0, "none": 0.0}


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES.keys())
def test_closed_form_is_the_exact_posterior(linear_gaussian, share):
    joined = rule.product(linear_gaussian.factors(share), prior_scale=linear_gaussian.prior_scale, prior_share=share)
    mean, covariance = linear_gaussian.posterior
    np.testing.assert_allclose(joined.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(joined.covariance, covariance, rtol=0, atol=1e-10)


def test_diagonal_closed_form_is_exact_on_a_diagonal_problem(orthogonal):
    factors = [NaturalGaussian(np.diag(factor.precision), factor.precision_mean) for factor in orthogonal.factors(1.0)]
    joined = rule.product(factors, prior_scale=orthogonal.prior_scale, prior_share=1.0)
    mean, covariance = orthogonal.posterior
    np.testing.assert_allclose(joined.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.diag(joined.covariance), covariance, rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", [1 / 4, 1.0])
def test_empty_sites_return_the_prior_limit(share):
    # A site without records targets p(w)^s.
    scale = 1.7
    empty = [NaturalGaussian(np.full(3, share / scale**2), np.zeros(3))] * 4
    joined = rule.product(empty, prior_scale=scale, prior_share=share)
    np.testing.assert_allclose(joined.covariance, scale**2, rtol=1e-12)
    np.testing.assert_allclose(joined.mean, 0, atol=1e-12)


def test_one_empty_site_changes_nothing_limit(linear_gaussian):
    scale = linear_gaussian.prior_scale
    empty = NaturalGaussian(np.eye(3) / scale**2, np.zeros(3))
    factors = linear_gaussian.factors(1.0)
    with_empty = rule.product([*factors, empty], prior_scale=scale, prior_share=1.0)
    without = rule.product(factors, prior_scale=scale, prior_share=1.0)
    np.testing.assert_allclose(with_empty.precision, without.precision, rtol=1e-12)


@pytest.mark.parametrize("share", [1 / 4, 1.0])
def test_sites_that_drop_out_leave_the_posterior_of_the_others(linear_gaussian, share):
    # The share 1/4 was promised to four sites and three answered: the prior still counts once.
    present = linear_gaussian.sites[:3]
    scale = linear_gaussian.prior_scale
    joined = rule.product(
        [linear_gaussian.natural(site, share) for site in present], prior_scale=scale, prior_share=share
    )
    precision = np.eye(3) / scale**2 + sum(linear_gaussian.information[site] for site in present)
    np.testing.assert_allclose(joined.precision, precision, rtol=1e-12)


def test_one_site_is_the_identity_limit(linear_gaussian):
    factor = linear_gaussian.natural("b", 1.0)
    joined = rule.product([factor], prior_scale=linear_gaussian.prior_scale, prior_share=1.0)
    np.testing.assert_array_equal(joined.precision, factor.precision)
    np.testing.assert_array_equal(joined.precision_mean, factor.precision_mean)


def test_golden_product_of_two():
    joined = rule.product(
        [from_moments(np.array([0.0]), np.array([1.0])), from_moments(np.array([4.0]), np.array([4.0]))],
        prior_scale=math.inf,
        prior_share=0.0,
    )
    assert joined.mean == pytest.approx(0.8)
    assert joined.covariance == pytest.approx(0.8)


def combined(function, problem, samples, share, draws, seed=0):
    return function(
        samples,
        prior_scale=problem.prior_scale,
        prior_share=share,
        draws=draws,
        generator=np.random.default_rng(seed),
    )


@pytest.mark.parametrize("share", [1 / 4, 1.0])
@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_samples_give_the_exact_posterior(
    linear_gaussian, orthogonal, random_samples, assert_within_standard_errors, share, kind
):
    problem = linear_gaussian if kind == "full" else orthogonal
    function = rule.combine_full if kind == "full" else rule.combine_diagonal
    generator = np.random.default_rng(5)
    means, covariances = [], []
    for _ in range(40):
        samples = {s: random_samples(problem.moments(s, share), 600, generator) for s in problem.sites}
        draws = combined(function, problem, samples, share, 600, seed=int(generator.integers(2**31))).samples.arrays[
            "w"
        ]
        means.append(draws.mean(axis=0))
        covariances.append(np.cov(draws.T.astype(np.float64)))
    mean, covariance = problem.posterior
    assert_within_standard_errors(means, mean)
    assert_within_standard_errors(covariances, covariance)


def test_unequal_temperatures_are_corrected(linear_gaussian, exact_samples):
    temperatures = {"a": 0.3, "b": 1.0, "c": 2.5, "d": 7.0}
    count = 4000

    def samples(stated):
        drawn = {}
        for seed, site in enumerate(linear_gaussian.sites):
            hot = exact_samples(linear_gaussian.moments(site, 0.25), count, temperatures[site], seed)
            drawn[site] = hot if stated else type(hot)(hot.arrays, hot.weights, np.ones(count))
        return drawn

    mean, covariance = linear_gaussian.posterior
    # 4 standard errors of 200,000 draws; the plug-in precision is divided by its bias (n - d - 2) / (n - 1).
    error = 4 * np.sqrt(np.diag(covariance) / 200_000)
    right = combined(rule.combine_full, linear_gaussian, samples(True), 0.25, 200_000).samples.arrays["w"]
    wrong = combined(rule.combine_full, linear_gaussian, samples(False), 0.25, 200_000).samples.arrays["w"]
    assert (np.abs(right.mean(axis=0) - mean) < error).all()
    assert (np.abs(wrong.mean(axis=0) - mean) > 5 * error).any()


def test_zero_temperature_is_used_as_it_is_and_said(linear_gaussian, exact_samples):
    cold = exact_samples(linear_gaussian.moments("a", 1.0), 50)
    cold = type(cold)(cold.arrays, cold.weights, np.zeros(50))
    aggregate = combined(rule.combine_full, linear_gaussian, {"a": cold}, 1.0, 10)
    assert any("'a' has samples at temperature 0" in text for text in aggregate.warnings)


def test_order_of_sites_does_not_matter(linear_gaussian, exact_samples):
    samples = {s: exact_samples(linear_gaussian.moments(s, 1.0), 40) for s in linear_gaussian.sites}
    reverse = dict(reversed(samples.items()))
    for function in (rule.combine_full, rule.combine_diagonal):
        one = combined(function, linear_gaussian, samples, 1.0, 20).samples.arrays["w"]
        other = combined(function, linear_gaussian, reverse, 1.0, 20).samples.arrays["w"]
        np.testing.assert_array_equal(one, other)


def test_sites_without_samples_are_passed_over(linear_gaussian, exact_samples, as_samples):
    samples = {s: exact_samples(linear_gaussian.moments(s, 1.0), 40) for s in ("a", "b")}
    more = samples | {"empty": as_samples(np.zeros((0, 3)))}
    one = combined(rule.combine_full, linear_gaussian, samples, 1.0, 20).samples.arrays["w"]
    np.testing.assert_array_equal(combined(rule.combine_full, linear_gaussian, more, 1.0, 20).samples.arrays["w"], one)
    with pytest.raises(ValueError, match="no site sent a sample"):
        combined(rule.combine_full, linear_gaussian, {"empty": more["empty"]}, 1.0, 20)


def test_precision_below_the_priors_is_raised_and_said(as_samples):
    # Two sites that claim to be wider than the whole prior they both target.
    generator = np.random.default_rng(0)
    samples = {name: as_samples(generator.normal(size=(50, 3)) * 4.0) for name in "ab"}
    for function in (rule.combine_full, rule.combine_diagonal):
        aggregate = function(
            samples, prior_scale=1.0, prior_share=1.0, draws=20_000, generator=np.random.default_rng(1)
        )
        assert any("less precise than the prior in 3 of 3 directions" in text for text in aggregate.warnings)
        # Standard error of a variance of 20,000 draws: sqrt(2 / 20,000) = .01.
        np.testing.assert_allclose(aggregate.samples.arrays["w"].var(axis=0), 1.0, atol=0.04)


@pytest.mark.parametrize("count", [2, 4])
def test_too_few_samples_are_refused(linear_gaussian, exact_samples, as_samples, count):
    samples = {"a": as_samples(np.random.default_rng(0).normal(size=(count, 3)))}
    with pytest.raises(ValueError, match=f"'a' sent {count} samples"):
        combined(rule.combine_diagonal, linear_gaussian, samples, 1.0, 5)


def test_constant_parameters_are_refused(linear_gaussian, as_samples):
    draws = np.random.default_rng(0).normal(size=(20, 3))
    draws[:, 1] = 2.0
    with pytest.raises(ValueError, match="1 parameters of site 'a' do not vary"):
        combined(rule.combine_diagonal, linear_gaussian, {"a": as_samples(draws)}, 1.0, 5)
    with pytest.raises(ValueError, match="of site 'a' hardly varies"):
        combined(rule.combine_full, linear_gaussian, {"a": as_samples(draws)}, 1.0, 5)
