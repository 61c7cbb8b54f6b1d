"""The posterior over hospitals against exact values: its own prior, limits, closed forms."""

import numpy as np
import pytest

from fl_dpbayes.posterior.hierarchical.distribution import mixed
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hospitals", "tau"), [(4, None), (5, None), (50, None), (5, 0.2), (50, 0.2), (400, 0.2)]
)
def test_intervals_cover_exactly_under_the_prior_and_at_a_given_spread(
    hospitals: int, tau: float | None
) -> None:
    # On a grid as coarse as the posterior is wide, those of 400 hospitals cover .83.
    generator = np.random.default_rng(hospitals)
    hits = {"tau": [], "own": [], "new": []}
    for _ in range(300 if tau else 500):
        true = tau or generator.uniform(0, 1)
        variances = unequal(generator, hospitals)
        estimates, truth = draw(generator, variances, true)
        found = HospitalPosterior(estimates, variances, None, 3.0 if tau else 1.0)
        spread = found.spreads[0]
        assert np.diff(spread.values).max() <= spread.sd / 10
        hits["tau"].append(covered(spread.interval(LEVEL), true))
        hits["own"].append(covered(found.of_hospital(0).interval(LEVEL), truth[0]))
        hits["new"].append(covered(found.of_new().interval(LEVEL), true * generator.normal()))
    # Five leave the prior's large spreads in, so that intervals may be wider than they need.
    wide = hospitals == 5 and tau is not None
    assert all(
        within(values, LEVEL) or (wide and np.mean(values) > LEVEL) for values in hits.values()
    )


def test_where_hospitals_are_alike_the_spread_has_an_upper_bound_and_all_get_one_effect() -> None:
    generator = np.random.default_rng(0)
    estimates, _ = draw(generator, np.full(400, 0.01), 0.0)
    found = HospitalPosterior(estimates, np.full(400, 0.01), None, 3.0)
    assert found.spreads[0].interval(0.9)[1] < 0.05
    assert max(abs(found.of_hospital(k).mean - found.of_new().mean) for k in range(20)) < 0.06


def test_one_hospital_leaves_the_prior_of_the_spread_and_two_cannot_tell_it_either() -> None:
    def fitted(*estimates: float) -> HospitalPosterior:
        return HospitalPosterior(np.array(estimates), np.full(len(estimates), 0.1), None, 2.0)

    assert np.allclose(fitted(0.3).spreads[0].interval(0.9), (0.1, 1.9), atol=0.01)
    assert np.isclose(fitted(0.3).of_hospital(0).mean, 0.3)
    assert [fitted(*[0.3, 0.2, 0.1][:count]).identified[0] for count in (1, 2, 3)] == [
        False,
        False,
        True,
    ]


def test_two_levels_are_the_conjugate_posterior_mixed_over_both_spreads() -> None:
    generator = np.random.default_rng(4)
    groups = np.array([0, 0, 0, 1, 1, 2])
    u = generator.normal(size=6)
    v = generator.uniform(0.1, 1, 6)
    found = HospitalPosterior(u, v, groups, 2.0)
    own, above = np.meshgrid(*(np.linspace(0.005, 1.995, 200),) * 2, indexing="ij")
    same = np.equal.outer(groups, groups)
    # u ~ N(m 1, S) with a flat m, at every pair of spreads.
    tau_h, tau_c = (np.square(spread)[:, :, None, None] for spread in (own, above))
    inverse = np.linalg.inv(tau_c * same + (tau_h + v) * np.eye(6))
    total = inverse.sum(axis=(2, 3))
    m = inverse.sum(axis=2) @ u / total
    log_density = (
        np.linalg.slogdet(inverse)[1] - np.log(total) - (inverse @ u) @ u + m**2 * total
    ) / 2
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    assert np.allclose(
        [(mass * one).sum() for one in (own, above)], [one.mean for one in found.spreads], rtol=0.01
    )

    def check(effect, covariance: np.ndarray, variance: np.ndarray) -> None:
        """Compare with theta of this covariance with u - m, (200, 200, 6), and variance about m."""
        gain = np.einsum("abi,abij->abj", covariance, inverse)
        means = m + gain @ u - gain.sum(axis=2) * m
        spread = variance - (gain * covariance).sum(axis=2) + (1 - gain.sum(axis=2)) ** 2 / total
        mean = (mass * means).sum()
        assert np.isclose(effect.mean, mean, atol=0.003)
        assert np.isclose(
            effect.sd, np.sqrt((mass * (spread + (means - mean) ** 2)).sum()), rtol=0.01
        )

    shared = np.square(above)[:, :, None] * same[3]
    both = np.square(own) + np.square(above)
    check(found.of_hospital(3), shared + np.square(own)[:, :, None] * np.eye(6)[3], both)
    check(found.of_new(1), shared, both)
    check(found.of_new(), 0 * shared, both)


def test_a_mixture_has_the_quantiles_of_its_components() -> None:
    one = mixed(np.ones(1), np.array([2.0]), np.array([0.25]))
    assert np.allclose(one.interval(0.95), (2 - 0.98, 2 + 0.98), atol=1e-3)
    apart = mixed(np.array([3.0, 1.0]), np.array([-50.0, 50.0]), np.array([1e-4, 1.0]))
    assert np.allclose(apart.quantiles(np.array([0.375, 0.7499, 0.875])), (-50, -50, 50), atol=0.5)
    assert np.allclose([apart.mean, apart.sd], [-25, np.sqrt(1875.25)], rtol=0.01)


def test_a_hospital_of_a_group_that_nobody_says_is_of_each_as_often_as_those_that_trained() -> None:
    groups = np.repeat([0, 1, 2], [8, 1, 1])
    found = HospitalPosterior(np.repeat([1.0, -1.0], [8, 2]), np.full(10, 0.01), groups, 3.0)
    parts = [found.of_new(0), found.of_new(1), found.of_new(2), found.of_new()]
    shares = np.array([8, 1, 1, 1]) / 11
    mean = sum(share * part.mean for share, part in zip(shares, parts, strict=True))
    square = sum(
        share * (part.sd**2 + part.mean**2) for share, part in zip(shares, parts, strict=True)
    )
    assert found.of_any().mean == pytest.approx(mean, abs=1e-3)
    assert found.of_any().sd == pytest.approx(np.sqrt(square - mean**2), rel=1e-3)
    assert mean > found.of_new().mean + 0.5
