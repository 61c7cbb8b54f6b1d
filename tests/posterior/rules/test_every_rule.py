"""What holds for every rule: sites without records give the prior, one site is the identity, order does not matter."""

import numpy as np
import pytest

from fl_dpbayes.posterior.averages import average_states
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules import consensus, fedavg, fedbe, fedpa, mixture, product
from fl_dpbayes.posterior.rules.combine import Aggregate, posterior_aggregate
from fl_dpbayes.posterior.rules.pvi import PVIState, update_from_samples

SCALE, DIMENSION, SITES, MANY = 1.5, 3, "abcd", 20_000
PRIOR = NaturalGaussian(np.full(DIMENSION, SCALE**-2), np.zeros(DIMENSION))
EQUAL = dict.fromkeys(SITES, 1.0)


def generator():
    return np.random.default_rng(1)


def pvi_combine(samples, damping=1.0):
    state = update_from_samples(PVIState(PRIOR), samples, damping=damping)
    return posterior_aggregate(state.posterior.sample(MANY, generator()), {"w": (DIMENSION,)}, state.warnings)


def fedpa_combine(samples):
    start = {"w": np.zeros(DIMENSION)}
    # Without shrinkage a step of rate 1 ends at the mean of the sites' means.
    return fedpa.combine(start, samples, EQUAL, shrinkage=0.0, prior_scale=SCALE, learning_rate=1.0)


# Rule -> (share of the prior that each of K sites targets, what combines their samples).
WIDE = {
    "mixture": (lambda k: 1.0, lambda s, k: Aggregate(mixture.combine(s, EQUAL), ())),
    "consensus-full": (
        lambda k: 1 / k, lambda s, k: consensus.combine_full(s, prior_share=1 / k, draws=MANY, generator=generator())),
    "consensus-diagonal": (lambda k: 1 / k, lambda s, k: consensus.combine_diagonal(
        s, prior_share=1 / k, draws=MANY, generator=generator())),
    "consensus-uniform": (lambda k: 1 / k, lambda s, k: consensus.combine_uniform(
        s, prior_share=1 / k, draws=MANY, generator=generator())),
    "product-full": (lambda k: 1 / k, lambda s, k: product.combine_full(
        s, prior_scale=SCALE, prior_share=1 / k, draws=MANY, generator=generator())),
    "product-diagonal-divided": (lambda k: 1.0, lambda s, k: product.combine_diagonal(
        s, prior_scale=SCALE, prior_share=1.0, draws=MANY, generator=generator())),
    "pvi": (lambda k: 1.0, lambda s, k: pvi_combine(s)),
}  # fmt: skip
POINTS = {
    "fedavg": (lambda k: 1 / k, lambda s, k: fedavg.combine(s, EQUAL)),
    "fedbe": (lambda k: 1 / k, lambda s, k: fedbe.combine(s, EQUAL, draws=0, spread=1.0, generator=generator())),
    "fedpa": (lambda k: 1 / k, lambda s, k: fedpa_combine(s)),
}
RULES = WIDE | POINTS


def moments_of(aggregate: Aggregate) -> tuple[np.ndarray, np.ndarray]:
    draws = aggregate.samples.arrays["w"].astype(np.float64)
    weights = aggregate.samples.weights / aggregate.samples.weights.sum()
    mean = weights @ draws
    return mean, (draws - mean).T * weights @ (draws - mean)


def samples_of(name: str, exact_samples, moments, count: int = 400):
    """One set of samples with exactly these moments for each site, so that none is the other's copy."""
    return {site: exact_samples(moments, count, seed=seed) for seed, site in enumerate(name)}


@pytest.mark.parametrize("rule", RULES)
def test_sites_without_records_give_the_prior_and_not_its_power(exact_samples, rule: str) -> None:
    share, combine = RULES[rule]
    prior = np.zeros(DIMENSION), SCALE**2 / share(len(SITES)) * np.eye(DIMENSION)
    found = combine(samples_of(SITES, exact_samples, prior), len(SITES))
    mean, covariance = moments_of(found)
    # The sites' moments are exact; precisions are divided by at most (1 - 6 / 400), and 20,000 draws are taken.
    error = 4 * SCALE / np.sqrt(MANY)
    assert np.abs(mean).max() < error
    if rule in WIDE:
        np.testing.assert_allclose(covariance / SCALE**2, np.eye(DIMENSION), atol=4 * np.sqrt(2 / MANY) + 6 / 400)


@pytest.mark.parametrize("rule", RULES)
def test_one_site_is_the_identity(linear_gaussian, orthogonal, exact_samples, rule: str) -> None:
    _, combine = RULES[rule]
    # Rules on single parameters see no correlation.
    diagonal = rule not in ("mixture", "consensus-full", "consensus-uniform", "product-full")
    expected_mean, expected = (orthogonal if diagonal else linear_gaussian).moments("b", 1.0)
    mean, covariance = moments_of(combine(samples_of("b", exact_samples, (expected_mean, expected)), 1))
    root = np.linalg.inv(np.linalg.cholesky(expected))
    assert np.abs(root @ (mean - expected_mean)).max() < 4 / np.sqrt(MANY)
    if rule in WIDE:
        found = root @ covariance @ root.T
        np.testing.assert_allclose(found, np.eye(DIMENSION), atol=4 * np.sqrt(2 / MANY) + 6 / 400)


@pytest.mark.parametrize("rule", RULES)
def test_order_of_sites_does_not_matter(orthogonal, exact_samples, rule: str) -> None:
    share, combine = RULES[rule]
    samples = {site: exact_samples(orthogonal.moments(site, share(4)), 50) for site in SITES}
    one, other = (moments_of(combine(given, 4)) for given in (samples, dict(reversed(samples.items()))))
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_stated_temperature_is_that_of_the_draws_whatever_the_sites_temperatures(
    orthogonal, exact_samples, rule: str
) -> None:
    share, combine = RULES[rule]
    heat = {"a": 0.4, "b": 1.0, "c": 2.5, "d": 6.0}
    moments = {site: orthogonal.moments(site, share(4)) for site in SITES}
    cool = combine({site: exact_samples(moments[site], 400) for site in SITES}, 4)
    hot = combine({site: exact_samples(moments[site], 400, heat[site]) for site in SITES}, 4)
    if rule == "mixture":
        # It corrects nothing: each draw keeps the temperature of its site.
        for site, temperature in heat.items():
            draws = hot.samples.arrays["w"][hot.samples.temperatures == temperature].astype(np.float64)
            expected = temperature * moments[site][1]
            np.testing.assert_allclose(np.cov(draws.T), expected, rtol=1e-4, atol=1e-4 * expected.max())
        return
    # Rules that state temperature 1 give what sites at temperature 1 give; points state none.
    assert set(hot.samples.temperatures) == {1.0 if rule in WIDE else 0.0}
    for first, second in zip(moments_of(cool), moments_of(hot), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


def test_average_of_langevin_chains_of_one_site_is_that_chain_and_order_does_not_matter() -> None:
    states = {site: {"w": generator().normal(size=5).astype(np.float32) + seed} for seed, site in enumerate(SITES)}
    np.testing.assert_array_equal(average_states({"b": states["b"]}, {"b": 0.3})["w"], states["b"]["w"])
    weights = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    reverse = average_states(dict(reversed(states.items())), weights)["w"]
    np.testing.assert_allclose(average_states(states, weights)["w"], reverse, rtol=1e-6)


def test_averaged_langevin_chains_without_records_keep_the_prior() -> None:
    # Each of K sites takes E steps on p(w)^(1/K) / w_k with noise 2 g / w_k; equal weights, so that all chains agree.
    step, local_steps, chains = 0.05, 3, 40_000
    state, noise = SCALE * generator().normal(size=chains), generator()
    for _ in range(40):
        states = {}
        for site in SITES:
            local = state.copy()
            for _ in range(local_steps):
                local += -step * local / SCALE**2 + np.sqrt(2 * step * 4) * noise.normal(size=chains)
            states[site] = {"w": local}
        state = average_states(states, EQUAL)["w"].astype(np.float64)
    expected = SCALE**2 / (1 - step / SCALE**2 / 2)
    assert abs(state.mean()) < 4 * np.sqrt(expected / chains)
    assert abs(state.var() / expected - 1) < 4 * np.sqrt(2 / chains)
