"""The posterior over hospitals against what is known exactly: its own prior, limits, closed forms."""

import numpy as np
import pytest

from fl_dpbayes.posterior.hierarchical.levels import Effects, HospitalPosterior
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture

LEVEL = 0.9


def draw(generator: np.random.Generator, variances: np.ndarray, own: float, above: float = 0.0, groups=None):
    """Effects of hospitals of a population, and what a run tells of them."""
    groups = np.zeros(len(variances), dtype=int) if groups is None else groups
    centres = above * generator.normal(size=groups.max() + 1)
    effects = centres[groups] + own * generator.normal(size=len(groups))
    return Effects(effects + np.sqrt(variances) * generator.normal(size=len(groups)), variances, groups), effects


def unequal(generator: np.random.Generator, hospitals: int) -> np.ndarray:
    """Variances of hospitals of 20 to 400 patients, each with noise of its own."""
    units = np.exp(generator.uniform(np.log(20), np.log(400), hospitals))
    return 1 / (0.172 * units) + np.square(generator.uniform(0, 3, hospitals) / (0.172 * units))


def covered(interval: tuple[float, float], value: float) -> bool:
    return interval[0] <= value <= interval[1]


def within(hits: list[bool], share: float, errors: float = 3.0) -> bool:
    """Whether a share of hits is the stated one, to so many standard errors."""
    return abs(np.mean(hits) - share) <= errors * np.sqrt(share * (1 - share) / len(hits))


@pytest.mark.slow
@pytest.mark.parametrize(("hospitals", "repeats"), [(4, 500), (5, 500), (50, 500)])
def test_intervals_cover_exactly_where_the_spread_is_drawn_from_its_prior(hospitals: int, repeats: int) -> None:
    generator, hits = np.random.default_rng(hospitals), {"tau": [], "own": [], "new": []}
    for _ in range(repeats):
        tau = generator.uniform(0, 1)
        effects, truth = draw(generator, unequal(generator, hospitals), tau)
        found = HospitalPosterior(effects, two_levels=False, largest_sd=1.0)
        hits["tau"].append(covered(found.between_hospitals.interval(LEVEL), tau))
        hits["own"].append(covered(found.of_hospital(0).interval(LEVEL), truth[0]))
        hits["new"].append(covered(found.of_new().interval(LEVEL), tau * generator.normal()))
    assert {name: within(values, LEVEL) for name, values in hits.items()} == dict.fromkeys(hits, True)


@pytest.mark.slow
def test_two_levels_cover_exactly_where_both_spreads_are_drawn_from_their_prior() -> None:
    generator, hits = np.random.default_rng(2), {"own": [], "above": [], "site": [], "new": [], "known": []}
    groups = np.repeat(np.arange(6), 4)
    for _ in range(200):
        own, above = generator.uniform(0, 1, 2)
        effects, truth = draw(generator, unequal(generator, 24), own, above, groups)
        # A hospital that nobody saw, of the first group.
        shown = Effects(effects.estimates[1:], effects.variances[1:], groups[1:])
        found = HospitalPosterior(shown, two_levels=True, largest_sd=1.0)
        hits["own"].append(covered(found.between_hospitals.interval(LEVEL), own))
        hits["above"].append(covered(found.between_groups.interval(LEVEL), above))
        hits["site"].append(covered(found.of_hospital(0).interval(LEVEL), truth[1]))
        hits["known"].append(covered(found.of_new(0).interval(LEVEL), truth[0]))
        hits["new"].append(covered(found.of_new().interval(LEVEL), np.hypot(own, above) * generator.normal()))
    assert {name: within(values, LEVEL) for name, values in hits.items()} == dict.fromkeys(hits, True)


@pytest.mark.slow
@pytest.mark.parametrize("hospitals", [5, 50, 400])
def test_intervals_cover_at_a_given_spread_on_a_grid_that_is_fine_enough(hospitals: int) -> None:
    # On a grid as coarse as the posterior is wide, those of 400 hospitals cover .83.
    generator, hits = np.random.default_rng(hospitals), {"tau": [], "own": [], "new": []}
    for _ in range(300):
        effects, truth = draw(generator, unequal(generator, hospitals), 0.2)
        found = HospitalPosterior(effects, two_levels=False, largest_sd=3.0)
        spread = found.between_hospitals
        variance = np.cov(spread.values, aweights=spread.weights, ddof=0)
        assert np.diff(spread.values).max() <= np.sqrt(variance) / 10
        hits["tau"].append(covered(spread.interval(LEVEL), 0.2))
        hits["own"].append(covered(found.of_hospital(4).interval(LEVEL), truth[4]))
        hits["new"].append(covered(found.of_new().interval(LEVEL), 0.2 * generator.normal()))
    # Five leave the prior's large spreads in, so that intervals may be wider than they need.
    assert all(within(values, LEVEL) or (hospitals == 5 and np.mean(values) > LEVEL) for values in hits.values())


def test_where_hospitals_are_alike_the_spread_has_an_upper_bound_and_all_get_one_effect() -> None:
    generator = np.random.default_rng(0)
    effects, _ = draw(generator, np.full(400, 0.01), 0.0)
    found = HospitalPosterior(effects, two_levels=False, largest_sd=3.0)
    assert found.between_hospitals.quantile(0.95) < 0.05
    assert max(abs(found.of_hospital(k).mean - found.of_new().mean) for k in range(20)) < 0.06


def test_one_hospital_leaves_the_prior_of_the_spread_and_two_cannot_tell_it_either() -> None:
    def fitted(*estimates: float) -> HospitalPosterior:
        count = len(estimates)
        effects = Effects(np.array(estimates), np.full(count, 0.1), np.zeros(count, int))
        return HospitalPosterior(effects, two_levels=False, largest_sd=2.0)

    assert not fitted(0.3).between_hospitals.identified
    assert np.allclose(fitted(0.3).between_hospitals.interval(0.9), (0.1, 1.9), atol=0.01)
    assert np.isclose(fitted(0.3).of_hospital(0).mean, 0.3)
    assert not fitted(0.3, 0.2).between_hospitals.identified
    assert fitted(0.3, 0.2, 0.1).between_hospitals.identified


def test_two_levels_at_known_spreads_are_the_conjugate_posterior_and_its_density() -> None:
    generator, groups = np.random.default_rng(4), np.array([0, 0, 0, 1, 1, 2])
    u, v = generator.normal(size=6), generator.uniform(0.1, 1, 6)
    found = HospitalPosterior(Effects(u, v, groups), two_levels=True, largest_sd=2.0)
    own, above = found.between_hospitals.values[20:25:4], found.between_groups.values[32:49:16]
    place = 5 * len(found.between_groups.values[::4]) + 8  # of the thinned grid: own[0], above[0]
    assert (own[0], above[0]) == (found.between_hospitals.values[20], found.between_groups.values[32])
    same = np.equal.outer(groups, groups)

    def marginal(tau_h: float, tau_c: float) -> np.ndarray:
        return np.diag(v + tau_h**2) + tau_c**2 * same

    def log_density(tau_h: float, tau_c: float) -> float:
        # u ~ N(m 1, S) with a flat m.
        inverse = np.linalg.inv(marginal(tau_h, tau_c))
        total = inverse.sum()
        rest = u @ inverse @ u - (inverse.sum(axis=0) @ u) ** 2 / total
        return -(np.linalg.slogdet(marginal(tau_h, tau_c))[1] + np.log(total) + rest) / 2

    inverse = np.linalg.inv(marginal(own[0], above[0]))
    m, spread = inverse.sum(axis=0) @ u / inverse.sum(), 1 / inverse.sum()
    shared = own[0] ** 2 * np.eye(6)[3] + above[0] ** 2 * same[3]  # cov(theta_3 - m, u - m)
    gain = shared @ inverse
    expected = own[0] ** 2 + above[0] ** 2 - gain @ shared + (1 - gain.sum()) ** 2 * spread
    hospital = found.of_hospital(3)
    assert np.isclose(hospital.means[place], m + gain @ (u - m))
    assert np.isclose(hospital.variances[place], expected)
    ratio = hospital.weights[place] / hospital.weights[place + 4]
    assert np.isclose(np.log(ratio), log_density(own[0], above[0]) - log_density(own[0], above[1]))


def test_a_mixture_has_the_quantiles_of_its_components() -> None:
    one = NormalMixture(np.ones(1), np.array([2.0]), np.array([0.25]))
    assert np.allclose(one.interval(0.95), (2 - 0.98, 2 + 0.98), atol=1e-3)
    apart = NormalMixture(np.array([3.0, 1.0]), np.array([-50.0, 50.0]), np.array([1e-4, 1.0]))
    low, middle, high = apart.quantiles(np.array([0.375, 0.7499, 0.875]))
    assert abs(low + 50) < 0.1
    assert middle < -49
    assert abs(high - 50) < 0.2
    assert np.isclose(apart.nodes(400).mean(), apart.mean, atol=0.2)
