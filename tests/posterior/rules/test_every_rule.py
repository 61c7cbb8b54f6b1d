"""What holds for every rule.

Sites without records give the prior, one site is the identity, order does not matter.
"""

import numpy as np
import pytest

from fl_dpbayes.posterior.averages import average_states
from fl_dpbayes.posterior.rules.combine import Aggregate
from fl_dpbayes.posterior.rules.fald import averaged_temperature
from fl_dpbayes.posterior.rules.fedpa import server_step
from fl_dpbayes.posterior.samples import PosteriorSamples
from tests.analytic_targets import as_samples, combined, exact_samples

SCALE = 1.5
DIMENSION = 3
SITES = "abcd"
MANY = 20_000
EQUAL = dict.fromkeys(SITES, 1.0)
# Rule -> share of the prior that each of K sites targets.
WIDE = {
    "mixture": lambda k: 1.0,
    "consensus-full": lambda k: 1 / k,
    "consensus-diagonal": lambda k: 1 / k,
    "consensus-uniform": lambda k: 1 / k,
    "product-full": lambda k: 1 / k,
    "product-diagonal": lambda k: 1.0,
}
POINTS = dict.fromkeys(("fedavg", "fedbe", "fedpa"), lambda k: 1 / k)
RULES = WIDE | POINTS
SETTINGS = {
    "mixture": {},
    "fedavg": {"move_bound": "none"},
    "fedbe": {"draws": 0},
    "product-diagonal": {"prior": "divided", "draws": MANY},
}


def combine(rule: str, samples, sites: int) -> Aggregate:
    if rule == "fedpa":
        # Without shrinkage a step of rate 1 ends at the mean of the sites' means.
        start = {"w": np.zeros(DIMENSION)}
        state, warnings = server_step(
            start, samples, EQUAL, shrinkage=0.0, prior_scale=SCALE, learning_rate=1.0
        )
        return Aggregate(
            PosteriorSamples({"w": state["w"][np.newaxis]}, np.ones(1), np.zeros(1)), warnings
        )
    settings = SETTINGS.get(rule, {"draws": MANY})
    return combined(
        rule, samples, sites=sites, scale=SCALE, generator=np.random.default_rng(1), **settings
    )


def moments_of(aggregate: Aggregate) -> tuple[np.ndarray, np.ndarray]:
    samples = aggregate.samples.in_memory()
    draws = samples.arrays["w"].astype(np.float64)
    weights = samples.weights / samples.weights.sum()
    mean = weights @ draws
    return mean, (draws - mean).T * weights @ (draws - mean)


def samples_of(names: str, moments, count: int = 400):
    """Make samples with exactly these moments for each site, none a copy of another's."""
    return {site: exact_samples(moments, count, seed=seed) for seed, site in enumerate(names)}


@pytest.mark.parametrize("rule", RULES)
def test_sites_without_records_give_the_prior_and_not_its_power(rule: str) -> None:
    prior = np.zeros(DIMENSION), SCALE**2 / RULES[rule](len(SITES)) * np.eye(DIMENSION)
    found = combine(rule, samples_of(SITES, prior), len(SITES))
    mean, covariance = moments_of(found)
    # The sites' moments are exact; precisions are divided by at most (1 - 6 / 400), and 20,000
    # draws are taken.
    error = 4 * SCALE / np.sqrt(MANY)
    assert np.abs(mean).max() < error
    if rule in WIDE:
        np.testing.assert_allclose(
            covariance / SCALE**2, np.eye(DIMENSION), atol=4 * np.sqrt(2 / MANY) + 6 / 400
        )


@pytest.mark.parametrize("rule", RULES)
def test_one_site_is_the_identity(linear_gaussian, orthogonal, rule: str) -> None:
    # Rules on single parameters see no correlation.
    diagonal = rule not in ("mixture", "consensus-full", "consensus-uniform", "product-full")
    expected_mean, expected = (orthogonal if diagonal else linear_gaussian).moments("b", 1.0)
    found = combine(rule, samples_of("b", (expected_mean, expected)), 1)
    assert found.warnings == ()
    mean, covariance = moments_of(found)
    root = np.linalg.inv(np.linalg.cholesky(expected))
    assert np.abs(root @ (mean - expected_mean)).max() < 4 / np.sqrt(MANY)
    if rule in WIDE:
        found = root @ covariance @ root.T
        np.testing.assert_allclose(found, np.eye(DIMENSION), atol=4 * np.sqrt(2 / MANY) + 6 / 400)


@pytest.mark.parametrize("rule", RULES)
def test_order_of_sites_does_not_matter(orthogonal, rule: str) -> None:
    samples = {site: exact_samples(orthogonal.moments(site, RULES[rule](4)), 50) for site in SITES}
    one, other = (
        combine(rule, given, 4).samples.in_memory()
        for given in (samples, dict(reversed(samples.items())))
    )
    if rule == "mixture":
        for first, second in zip(
            *(moments_of(Aggregate(found, ())) for found in (one, other)), strict=True
        ):
            np.testing.assert_allclose(first, second, rtol=1e-9, atol=1e-12)
        return
    np.testing.assert_array_equal(one.arrays["w"], other.arrays["w"])


@pytest.mark.parametrize("rule", RULES)
def test_stated_temperature_is_that_of_the_draws_whatever_the_sites_temperatures(
    orthogonal, rule: str
) -> None:
    heat = {"a": 0.4, "b": 1.0, "c": 2.5, "d": 6.0}
    moments = {site: orthogonal.moments(site, RULES[rule](4)) for site in SITES}
    cool = combine(rule, {site: exact_samples(moments[site], 400) for site in SITES}, 4)
    hot = combine(rule, {site: exact_samples(moments[site], 400, heat[site]) for site in SITES}, 4)
    if rule == "mixture":
        # It corrects nothing: each draw keeps the temperature of its site.
        for site, temperature in heat.items():
            samples = hot.samples.in_memory()
            draws = samples.arrays["w"][samples.temperatures == temperature].astype(np.float64)
            expected = temperature * moments[site][1]
            np.testing.assert_allclose(
                np.cov(draws.T), expected, rtol=1e-4, atol=1e-4 * expected.max()
            )
        return
    # Rules that state temperature 1 give what sites at temperature 1 give; points state none.
    assert set(hot.samples.temperatures) == {1.0 if rule in WIDE else 0.0}
    for first, second in zip(moments_of(cool), moments_of(hot), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "fedpa"])
def test_sites_without_a_sample_are_passed_over(orthogonal, rule: str) -> None:
    samples = {site: exact_samples(orthogonal.moments(site, 1.0), 40) for site in "ab"}
    more = samples | {"c": as_samples(np.zeros((0, DIMENSION)))}
    one, other = (
        combine(rule, given, 4).samples.in_memory().arrays["w"] for given in (samples, more)
    )
    np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match=r"no site .*sent a sample"):
        combine(rule, {"c": more["c"]}, 4)


def test_average_of_langevin_chains_of_one_site_is_that_chain_and_order_does_not_matter() -> None:
    generator = np.random.default_rng(1)
    states = {
        site: {"w": generator.normal(size=5).astype(np.float32) + seed}
        for seed, site in enumerate(SITES)
    }
    np.testing.assert_array_equal(
        average_states({"b": states["b"]}, {"b": 0.3})["w"], states["b"]["w"]
    )
    weights = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    reverse = average_states(dict(reversed(states.items())), weights)["w"]
    np.testing.assert_allclose(average_states(states, weights)["w"], reverse, rtol=1e-6)


def test_temperature_of_averaged_chains_golden() -> None:
    heat = {"a": 2.0, "b": 6.0}
    units = {"a": 30, "b": 10}
    assert averaged_temperature(heat, {"a": 3.0, "b": 1.0}, units) == pytest.approx(3.0)
    # N (w_a^2 T_a / n_a + w_b^2 T_b / n_b) = 40 (2 / 30 + 6 / 10) / 4
    assert averaged_temperature(heat, {"a": 1.0, "b": 1.0}, units) == pytest.approx(20 / 3)
