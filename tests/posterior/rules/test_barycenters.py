import numpy as np
import pytest

from fl_dpbayes.posterior.rules.barycenters import (
    DiagonalGaussian,
    combine_reverse_kl,
    combine_wasserstein,
    reverse_kl,
    wasserstein,
)
from fl_dpbayes.posterior.rules.natural import NaturalGaussian, from_moments

PAIR = [DiagonalGaussian(np.array([0.0]), np.array([1.0])), DiagonalGaussian(np.array([4.0]), np.array([4.0]))]


def test_two_gaussians_golden():
    kl = reverse_kl([from_moments(g.mean, g.variance) for g in PAIR], [0.5, 0.5])
    assert (kl.mean[0], kl.covariance[0]) == pytest.approx((0.8, 1.6))
    centre = wasserstein(PAIR, [0.5, 0.5])
    assert (centre.mean[0], centre.variance[0]) == pytest.approx((2.0, 2.25))


def test_wasserstein_is_the_least_mean_squared_distance():
    weights = [0.3, 0.7]
    centre = wasserstein(PAIR, weights)

    def cost(mean, deviation):
        return sum(
            w * ((mean - g.mean[0]) ** 2 + (deviation - np.sqrt(g.variance[0])) ** 2)
            for w, g in zip(weights, PAIR, strict=True)
        )

    least = cost(centre.mean[0], np.sqrt(centre.variance[0]))
    for shift in (-0.1, 0.1):
        assert cost(centre.mean[0] + shift, np.sqrt(centre.variance[0])) > least
        assert cost(centre.mean[0], np.sqrt(centre.variance[0]) + shift) > least


def test_reverse_kl_of_scaled_likelihoods_is_the_exact_posterior(linear_gaussian):
    sizes = np.array([12, 30, 60, 150]) / 252
    factors = [
        linear_gaussian.natural(site, 1.0, 1 / share) for site, share in zip(linear_gaussian.sites, sizes, strict=True)
    ]
    mean, covariance = linear_gaussian.posterior
    centre = reverse_kl(factors, sizes)
    np.testing.assert_allclose(centre.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(centre.covariance, covariance, rtol=0, atol=1e-10)


def test_reverse_kl_of_plain_posteriors_is_too_wide(linear_gaussian):
    # Convention A's factors averaged with 1/K give the right mean and K times the covariance.
    centre = reverse_kl(linear_gaussian.factors(0.25), [0.25] * 4)
    mean, covariance = linear_gaussian.posterior
    np.testing.assert_allclose(centre.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(centre.covariance, 4 * covariance, rtol=0, atol=1e-10)


def test_empty_sites_return_the_prior_limit():
    prior = NaturalGaussian(np.full(2, 0.25), np.zeros(2))
    np.testing.assert_allclose(reverse_kl([prior] * 3, [1 / 3] * 3).covariance, 4.0)
    same = DiagonalGaussian(np.zeros(2), np.full(2, 4.0))
    np.testing.assert_allclose(wasserstein([same] * 3, [1 / 3] * 3).variance, 4.0)


def test_samples_give_the_barycenters(orthogonal, random_samples, assert_within_standard_errors):
    generator = np.random.default_rng(0)
    shares = dict(zip(orthogonal.sites, np.array([12, 30, 60, 150]) / 252, strict=True))
    moments = {s: orthogonal.moments(s, 1.0, 1 / shares[s]) for s in orthogonal.sites}
    kl, flat = [], []
    for _ in range(30):
        samples = {s: random_samples(moments[s], 500, generator, temperature=3.0) for s in moments}
        kl.append(combine_reverse_kl(samples, shares, draws=500, generator=generator).samples.arrays["w"])
        flat.append(combine_wasserstein(samples, shares, draws=500, generator=generator).samples.arrays["w"])
    mean, covariance = orthogonal.posterior
    assert_within_standard_errors([draws.mean(axis=0, dtype=float) for draws in kl], mean)
    assert_within_standard_errors([draws.var(axis=0, ddof=1, dtype=float) for draws in kl], np.diag(covariance))
    centre = wasserstein([DiagonalGaussian(m, np.diag(c)) for m, c in moments.values()], list(shares.values()))
    assert_within_standard_errors([draws.mean(axis=0, dtype=float) for draws in flat], centre.mean)
    assert_within_standard_errors([draws.std(axis=0, ddof=1, dtype=float) for draws in flat], np.sqrt(centre.variance))


@pytest.mark.parametrize("function", [combine_reverse_kl, combine_wasserstein])
def test_one_site_order_and_refusals(orthogonal, exact_samples, function):
    samples = {s: exact_samples(orthogonal.moments(s, 1.0), 30) for s in orthogonal.sites}
    weights = dict.fromkeys(samples, 1.0)
    one, other = (
        function(given, weights, draws=5, generator=np.random.default_rng(1)).samples.arrays["w"]
        for given in (samples, dict(reversed(samples.items())))
    )
    np.testing.assert_array_equal(one, other)
    mean, _ = orthogonal.moments("b", 1.0)
    alone = function({"b": samples["b"]}, weights, draws=40_000, generator=np.random.default_rng(2))
    spread = alone.samples.arrays["w"].std(axis=0)
    np.testing.assert_allclose(alone.samples.arrays["w"].mean(axis=0), mean, atol=4 * spread.max() / 200)
    with pytest.raises(ValueError, match="no site with a positive weight"):
        function(samples, dict.fromkeys(samples, 0.0), draws=5, generator=np.random.default_rng(1))
