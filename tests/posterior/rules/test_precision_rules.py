"""Rules that weigh sites by precision, against exact posteriors."""

import numpy as np
import pytest

from fl_dpbayes.config.run_warning import warning
from fl_dpbayes.posterior.chains import chains
from fl_dpbayes.posterior.natural import NaturalGaussian, floored
from fl_dpbayes.posterior.precision import ESTIMATES, mean_error
from fl_dpbayes.posterior.rules.product import product
from fl_dpbayes.posterior.samples import PosteriorSamples
from tests.analytic_targets import (
    as_samples,
    assert_within_standard_errors,
    combined,
    exact_samples,
    random_samples,
)

SHARES = {"fractional": 1 / 4, "divided": 1.0, "none": 0.0}


@pytest.mark.parametrize("share", SHARES.values(), ids=SHARES.keys())
def test_closed_form_is_the_exact_posterior_and_the_diagonal_one_on_a_diagonal_problem(
    linear_gaussian, orthogonal, share
):
    on_diagonal = [
        NaturalGaussian(np.diag(one.precision), one.precision_mean)
        for one in orthogonal.factors(share)
    ]
    for problem, factors in (
        (linear_gaussian, linear_gaussian.factors(share)),
        (orthogonal, on_diagonal),
    ):
        joined = product(factors, prior_scale=problem.prior_scale, prior_share=share)
        mean, covariance = problem.posterior
        np.testing.assert_allclose(joined.mean, mean, rtol=0, atol=1e-10)
        precision = np.diag(joined.precision) if joined.precision.ndim == 1 else joined.precision
        np.testing.assert_allclose(np.linalg.inv(precision), covariance, rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", [1 / 4, 1.0])
def test_sites_that_drop_out_leave_the_posterior_of_the_others(linear_gaussian, share):
    # The share 1/4 was promised to four sites and three answered: the prior still counts once.
    present = linear_gaussian.sites[:3]
    scale = linear_gaussian.prior_scale
    factors = [linear_gaussian.natural(site, share) for site in present]
    precision = np.eye(3) / scale**2 + sum(linear_gaussian.information[site] for site in present)
    np.testing.assert_allclose(
        product(factors, prior_scale=scale, prior_share=share).precision, precision, rtol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["full", "diagonal"])
@pytest.mark.parametrize(
    ("rule", "settings"), [("product", {}), ("product", {"prior": "divided"}), ("consensus", {})]
)
def test_samples_give_the_exact_posterior(linear_gaussian, orthogonal, form, rule, settings):
    problem = linear_gaussian if form == "full" else orthogonal
    share = 1.0 if settings.get("prior") == "divided" else 0.25
    generator = np.random.default_rng(2)
    means = []
    covariances = []
    for _ in range(40):
        samples = {
            s: random_samples(problem.moments(s, share), 600, generator) for s in problem.sites
        }
        settings = {"scale": problem.prior_scale, "draws": 600} | settings
        found = combined(f"{rule}-{form}", samples, generator=generator, **settings)
        assert found.warnings == ()
        draws = found.samples.arrays["w"].astype(np.float64)
        means.append(draws.mean(axis=0))
        covariances.append(np.cov(draws.T))
    mean, covariance = problem.posterior
    assert_within_standard_errors(means, mean)
    assert_within_standard_errors(covariances, covariance)


def test_uniform_weights_give_the_mean_of_means_and_a_wrong_width(linear_gaussian):
    generator = np.random.default_rng(3)
    moments = [linear_gaussian.moments(s, 0.25) for s in linear_gaussian.sites]
    samples = {
        s: random_samples(m, 50_000, generator)
        for s, m in zip(linear_gaussian.sites, moments, strict=True)
    }
    draws = combined(
        "consensus-uniform", samples, draws=50_000, generator=generator
    ).samples.arrays["w"]
    expected = np.mean([m for m, _ in moments], axis=0)
    covariance = np.sum([c for _, c in moments], axis=0) / 16
    error = np.sqrt(np.diag(covariance) / 50_000)
    assert (np.abs(draws.mean(axis=0) - expected) < 4 * error).all()
    np.testing.assert_allclose(draws.var(axis=0), np.diag(covariance), rtol=4 * np.sqrt(2 / 50_000))
    exact_mean, exact_covariance = linear_gaussian.posterior
    assert np.abs(expected - exact_mean).max() > 20 * error.max()
    assert np.trace(covariance) > 2 * np.trace(exact_covariance)


@pytest.mark.parametrize("form", ["full", "diagonal", "uniform"])
def test_consensus_of_one_site_uses_each_draw_once(linear_gaussian, form):
    samples = exact_samples(linear_gaussian.moments("b", 1.0), 64)
    found = combined(f"consensus-{form}", {"b": samples}, draws=64).samples.arrays["w"]
    np.testing.assert_allclose(
        np.sort(found, axis=0), np.sort(samples.arrays["w"], axis=0), rtol=1e-6
    )


def test_weights_of_draws_are_respected():
    samples = as_samples(np.array([[0.0], [1.0]]), weights=np.array([1.0, 3.0]))
    found = combined("consensus-uniform", {"a": samples}, draws=8)
    assert np.sort(found.samples.arrays["w"].ravel()).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_prior_counted_otherwise_than_once_is_said(linear_gaussian):
    samples = {s: exact_samples(linear_gaussian.moments(s, 1.0), 40) for s in linear_gaussian.sites}
    found = combined("consensus-full", samples, sites=1, draws=10)
    assert warning("prior-share", sites=4, share=1.0, times=4.0) in found.warnings


def test_zero_temperature_is_used_as_it_is_and_said(linear_gaussian):
    cold = exact_samples(linear_gaussian.moments("a", 1.0), 50)
    cold = PosteriorSamples(cold.arrays, cold.weights, np.zeros(50))
    found = combined("product-full", {"a": cold}, draws=10)
    assert warning("temperature-zero", "a") in found.warnings


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_precision_below_the_priors_is_raised_and_said(form):
    # Two sites that claim to be wider than the whole prior they both target.
    generator = np.random.default_rng(0)
    samples = {name: as_samples(generator.normal(size=(50, 3)) * 4.0) for name in "ab"}
    found = combined(f"product-{form}", samples, scale=1.0, prior="divided", draws=20_000)
    assert warning("precision-floored", raised=3, parameters=3) in found.warnings
    # Standard error of a variance of 20,000 draws: sqrt(2 / 20,000) = .01.
    np.testing.assert_allclose(found.samples.arrays["w"].var(axis=0), 1.0, atol=0.04)


@pytest.mark.parametrize("count", [2, 4])
def test_too_few_samples_are_refused(count):
    samples = {"a": as_samples(np.random.default_rng(0).normal(size=(count, 3)))}
    with pytest.raises(ValueError, match=f"'a' sent {count} samples"):
        combined("product-diagonal", samples)


def test_parameters_that_hardly_vary_are_refused_by_name():
    draws = np.random.default_rng(0).normal(size=(20, 3))
    draws[:, 1] = 2.0
    with pytest.raises(ValueError, match="1 parameters of site 'a' do not vary"):
        combined("product-diagonal", {"a": as_samples(draws)})
    draws = np.random.default_rng(3).standard_normal((60, 2, 3))
    draws[:, 1, 2] *= 1e-9
    samples = {
        name: PosteriorSamples({"1.weight": draws}, np.ones(60), np.ones(60)) for name in ("a", "b")
    }
    with pytest.raises(ValueError, match=r"parameter 1\.weight\[1, 2\] of site 'a' hardly varies"):
        combined("product-full", samples)


def two_sites(apart, *, parameters, draws, seed):
    """Make standard normal posteriors whose means differ by `apart` in each parameter."""
    generator = np.random.default_rng(seed)
    means = {"a": -apart / 2, "b": apart / 2}
    return {
        name: as_samples(mean + generator.standard_normal((draws, parameters)))
        for name, mean in means.items()
    }


@pytest.mark.parametrize(
    "rule", ["product-full", "product-diagonal", "consensus-full", "consensus-diagonal"]
)
def test_conflicting_sites_are_warned_of_and_agreeing_ones_are_not(rule):
    for apart, expected in ((100.0, 1), (1.0, 0)):
        samples = two_sites(apart, parameters=40, draws=4000, seed=1)
        found = combined(rule, samples, scale=np.inf, draws=1)
        assert sum(said.kind == "conflict" for said in found.warnings) == expected


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_error_of_the_mean_is_foretold_over_many_seeds(form):
    parameters = 6
    draws = 60
    apart = 12.0
    errors = []
    foretold = []
    for seed in range(400):
        given = two_sites(apart, parameters=parameters, draws=draws, seed=seed)
        factors = [ESTIMATES[form](chain)[0] for chain in chains(given)]
        combined = factors[0] + factors[1]
        # Of the true product the precision is 2 and the mean 0.
        errors.append(2 * np.square(combined.mean).mean())
        foretold.append(mean_error([(factor, draws) for factor in factors], combined) ** 2)
    standard_error = np.std(errors) / np.sqrt(len(errors))
    # First order in the errors of the precisions, of which each is about sqrt(2 / 53) = 0.2.
    assert np.mean(foretold) == pytest.approx(
        np.mean(errors), abs=4 * standard_error + 0.1 * np.mean(errors)
    )


def test_improper_product_with_a_flat_prior_is_refused():
    with pytest.raises(ValueError, match="the prior is flat"):
        floored(NaturalGaussian(np.array([1.0, -1.0]), np.zeros(2)), 0.0)


def test_floor_acts_in_the_directions_below_it():
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    full = NaturalGaussian(rotation @ np.diag([2.0, -1.0, 0.5]) @ rotation.T, np.arange(3.0))
    raised, count = floored(full, 1.0)
    assert count == 2
    np.testing.assert_allclose(
        raised.precision, rotation @ np.diag([2.0, 1.0, 1.0]) @ rotation.T, atol=1e-12
    )
    np.testing.assert_array_equal(raised.precision_mean, full.precision_mean)
