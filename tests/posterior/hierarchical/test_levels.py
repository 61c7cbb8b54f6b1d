"""The posterior over hospitals against exact values: its own prior, limits, closed forms."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import chi2

from fl_dpbayes.posterior.hierarchical.distribution import mixed
from fl_dpbayes.posterior.hierarchical.effects import Effects
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior, _Fit

LEVEL = 0.9


def draw(
    generator: np.random.Generator,
    variances: np.ndarray,
    own: float,
    above: float = 0.0,
    groups=None,
):
    """Effects of hospitals of a population, and what a run tells of them."""
    of = np.zeros(len(variances), dtype=int) if groups is None else groups
    effects = above * generator.normal(size=of.max() + 1)[of] + own * generator.normal(size=len(of))
    return effects + np.sqrt(variances) * generator.normal(size=len(of)), effects


def unequal(generator: np.random.Generator, hospitals: int) -> np.ndarray:
    """Variances of hospitals of 20 to 400 patients, each with noise of its own."""
    units = np.exp(generator.uniform(np.log(20), np.log(400), hospitals))
    return 1 / (0.172 * units) + np.square(generator.uniform(0, 3, hospitals) / (0.172 * units))


def covered(interval: tuple[float, float], value: float) -> bool:
    return interval[0] <= value <= interval[1]


def within(hits: list[bool], share: float, errors: float = 3.0) -> bool:
    """Whether a share of hits is the stated one, to so many standard errors."""
    return abs(np.mean(hits) - share) <= errors * np.sqrt(share * (1 - share) / len(hits))


def posterior(
    estimates: np.ndarray, variances: np.ndarray, groups=None, largest_sd: float = 3.0
) -> HospitalPosterior:
    return HospitalPosterior([Effects(estimates, variances)], groups, largest_sd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hospitals", "tau"), [(4, 0.5), (5, 0.2), (50, 0.1), (50, 0.2), (50, 0.6), (400, 0.2)]
)
def test_intervals_cover_at_a_given_spread(hospitals: int, tau: float) -> None:
    # Under a prior that is uniform in the spread, those of a new hospital cover .85 where the
    # noise is as large as the spread.
    generator = np.random.default_rng(hospitals)
    hits = {"tau": [], "own": [], "new": []}
    for _ in range(250):
        variances = unequal(generator, hospitals)
        estimates, truth = draw(generator, variances, tau)
        fit = posterior(estimates, variances)
        hits["tau"].append(covered(fit.spreads[0].interval(LEVEL), tau))
        hits["own"].append(covered(fit.of_hospital(0).interval(LEVEL), truth[0]))
        hits["new"].append(covered(fit.of_new().interval(LEVEL), tau * generator.normal()))
    assert within(hits["tau"], LEVEL)
    # Few hospitals leave large spreads in, so that these may be wider than they need.
    for name in ("own", "new"):
        assert np.mean(hits[name]) > LEVEL or within(hits[name], LEVEL), name


@pytest.mark.slow
@pytest.mark.parametrize("spreads", [(0.3, 0.4), (0.1, 0.2), (0.6, 0.2)])
def test_intervals_of_two_levels_cover_at_given_spreads(spreads: tuple[float, float]) -> None:
    hospital_sd, group_sd = spreads
    generator = np.random.default_rng(11)
    groups = np.repeat(np.arange(20), generator.integers(2, 12, 20))
    hits = {"hospitals": [], "groups": [], "known group": [], "new group": []}
    for _ in range(150):
        variances = unequal(generator, len(groups))
        centres = group_sd * generator.normal(size=20)
        effects = centres[groups] + hospital_sd * generator.normal(size=len(groups))
        estimates = effects + np.sqrt(variances) * generator.normal(size=len(groups))
        fit = posterior(estimates, variances, groups)
        hits["hospitals"].append(covered(fit.spreads[0].interval(LEVEL), hospital_sd))
        hits["groups"].append(covered(fit.spreads[1].interval(LEVEL), group_sd))
        of_new = centres[3] + hospital_sd * generator.normal()
        hits["known group"].append(covered(fit.of_new(3).interval(LEVEL), of_new))
        of_new = np.hypot(hospital_sd, group_sd) * generator.normal()
        hits["new group"].append(covered(fit.of_new().interval(LEVEL), of_new))
    assert within(hits["hospitals"], LEVEL)
    assert within(hits["groups"], LEVEL)
    for name in ("known group", "new group"):
        assert np.mean(hits[name]) > LEVEL or within(hits[name], LEVEL), name


def test_where_hospitals_are_alike_the_spread_has_an_upper_bound_and_all_get_one_effect() -> None:
    generator = np.random.default_rng(0)
    estimates, _ = draw(generator, np.full(400, 0.01), 0.0)
    found = posterior(estimates, np.full(400, 0.01))
    assert found.spreads[0].interval(0.9)[1] < 0.05
    assert max(abs(found.of_hospital(k).mean - found.of_new().mean) for k in range(20)) < 0.06


def test_one_hospital_leaves_the_prior_of_the_spread_and_two_cannot_tell_it_either() -> None:
    def fitted(*estimates: float) -> HospitalPosterior:
        return posterior(np.array(estimates), np.full(len(estimates), 0.1), largest_sd=2.0)

    assert np.allclose(fitted(0.3).spreads[0].interval(0.9), (0.1, 1.9), atol=0.01)
    assert np.isclose(fitted(0.3).of_hospital(0).mean, 0.3)
    assert [fitted(*[0.3, 0.2, 0.1][:count]).identified[0] for count in (1, 2, 3)] == [
        False,
        False,
        True,
    ]


def test_two_levels_are_the_conjugate_posterior_at_every_pair_of_spreads() -> None:
    generator = np.random.default_rng(4)
    groups = np.array([0, 0, 0, 1, 1, 2])
    u = generator.normal(size=6)
    v = generator.uniform(0.1, 1, 6)
    fit = _Fit(Effects(u, v), group_of=groups, largest_sd=2.0, nested=True)
    of_all = fit.of_all()
    of_new = fit.of_new()
    same = np.equal.outer(groups, groups)
    for number in range(0, 64, 7):
        between = fit.hospital_sds[number] ** 2
        between_groups = fit.group_sds[number] ** 2
        # u ~ N(m 1, S) with a flat m.
        inverse = np.linalg.inv(between_groups * same + np.diag(between + v))
        precision_of_m = inverse.sum()
        m = inverse.sum(axis=1) @ u / precision_of_m

        def exact(covariance: np.ndarray, variance: float) -> tuple[float, float]:
            """Return mean and variance of an effect with this covariance with u - m."""
            gain = covariance @ inverse  # noqa: B023
            lost = (1 - gain.sum()) ** 2 / precision_of_m  # noqa: B023
            return m + gain @ (u - m), variance - gain @ covariance + lost  # noqa: B023

        both = between + between_groups
        own = exact(between_groups * same[3] + between * np.eye(6)[3], both)
        new_of_group = exact(between_groups * same[3], both)
        new = exact(np.zeros(6), both)
        assert np.allclose((of_all.means[number, 3], of_all.variances[number, 3]), own)
        assert np.allclose((of_new.means[number, 1], of_new.variances[number, 1]), new_of_group)
        assert np.allclose((of_new.means[number, 3], of_new.variances[number, 3]), new)


def test_memory_grows_with_the_hospitals_and_not_with_their_square() -> None:
    groups = np.arange(3000)
    variances = np.full(3000, 0.1)
    estimates, _ = draw(np.random.default_rng(1), variances, 0.5)
    tracemalloc.start()
    posterior(estimates, variances, groups=groups)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A table of all hospitals and groups alone has 72 MB.
    assert peak < 40e6


def test_spreads_are_where_the_sums_of_squares_have_their_chi_square_quantiles() -> None:
    generator = np.random.default_rng(9)
    variances = unequal(generator, 30)
    estimates, _ = draw(generator, variances, 0.4)
    median = float(posterior(estimates, variances).spreads[0].quantiles(np.array(0.5)))
    weights = 1 / (median**2 + variances)
    off = estimates - np.average(estimates, weights=weights)
    assert (weights * off**2).sum() == pytest.approx(chi2.ppf(0.5, 29), rel=0.02)


def test_several_sets_of_estimates_are_mixed_evenly() -> None:
    generator = np.random.default_rng(10)
    variances = unequal(generator, 12)
    estimates, _ = draw(generator, variances, 0.4)
    fits = [Effects(estimates, variances), Effects(estimates + 1, variances)]
    both = HospitalPosterior(fits, None, 3.0)
    first, second = (HospitalPosterior([fit], None, 3.0).of_hospital(2) for fit in fits)
    assert both.of_hospital(2).mean == pytest.approx((first.mean + second.mean) / 2, abs=0.005)
    assert both.of_hospital(2).sd == pytest.approx(np.sqrt(first.sd**2 + 0.25), rel=0.01)


def test_a_mixture_has_the_quantiles_of_its_components() -> None:
    one = mixed(np.ones(1), np.array([2.0]), np.array([0.25]))
    assert np.allclose(one.interval(0.95), (2 - 0.98, 2 + 0.98), atol=1e-3)
    apart = mixed(np.array([3.0, 1.0]), np.array([-50.0, 50.0]), np.array([1e-4, 1.0]))
    assert np.allclose(apart.quantiles(np.array([0.375, 0.7499, 0.875])), (-50, -50, 50), atol=0.5)
    assert np.allclose([apart.mean, apart.sd], [-25, np.sqrt(1875.25)], rtol=0.01)


def test_a_hospital_of_a_group_that_nobody_says_is_of_each_as_often_as_those_that_trained() -> None:
    groups = np.repeat([0, 1, 2], [8, 1, 1])
    estimates = np.repeat([1.0, -1.0], [8, 2]) + np.tile([0.1, -0.1], 5)
    found = posterior(estimates, np.full(10, 0.01), groups)
    parts = [found.of_new(0), found.of_new(1), found.of_new(2), found.of_new()]
    shares = np.array([8, 1, 1, 1]) / 11
    mean = sum(share * part.mean for share, part in zip(shares, parts, strict=True))
    square = sum(
        share * (part.sd**2 + part.mean**2) for share, part in zip(shares, parts, strict=True)
    )
    assert found.of_any().mean == pytest.approx(mean, abs=1e-3)
    assert found.of_any().sd == pytest.approx(np.sqrt(square - mean**2), rel=1e-3)
    assert mean > found.of_new().mean + 0.5
