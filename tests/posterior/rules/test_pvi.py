import numpy as np
import pytest

from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.pvi import PVIState, update, update_from_samples
from fl_dpbayes.report.warnings import sentence
from tests.analytic_targets import assert_within_standard_errors, random_samples


def likelihood(problem, site):
    return problem.natural(site, 0.0)


def prior_of(problem):
    return NaturalGaussian(np.eye(3) / problem.prior_scale**2, np.zeros(3))


@pytest.mark.parametrize(("damping", "rounds"), [(0.4, 2), (0.25, 7), (1.0, 1)])
def test_conjugate_precision_after_rounds_golden(linear_gaussian, damping, rounds):
    state = PVIState(prior_of(linear_gaussian))
    for _ in range(rounds):
        answers = {s: state.cavity(s) + likelihood(linear_gaussian, s) for s in linear_gaussian.sites}
        state = update(state, answers, damping=damping)
    used = 1 - (1 - damping) ** rounds
    if (damping, rounds) == (0.4, 2):
        assert used == pytest.approx(0.64)
    expected = prior_of(linear_gaussian).precision + used * sum(linear_gaussian.information.values())
    np.testing.assert_allclose(state.posterior.precision, expected, rtol=1e-10)
    assert (state.warnings, state.noisy_factors) == ((), ())


def test_fixed_point_is_the_exact_posterior(linear_gaussian):
    state = PVIState(prior_of(linear_gaussian))
    for _ in range(60):
        answers = {s: state.cavity(s) + likelihood(linear_gaussian, s) for s in linear_gaussian.sites}
        state = update(state, answers, damping=0.5)
    mean, covariance = linear_gaussian.posterior
    np.testing.assert_allclose(state.posterior.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.linalg.inv(state.posterior.precision), covariance, rtol=0, atol=1e-10)


def test_sequential_updates_reach_the_same_posterior(linear_gaussian):
    state = PVIState(prior_of(linear_gaussian))
    for site in reversed(linear_gaussian.sites):
        state = update(state, {site: state.cavity(site) + likelihood(linear_gaussian, site)}, damping=1.0)
    np.testing.assert_allclose(state.posterior.mean, linear_gaussian.posterior[0], rtol=0, atol=1e-10)


def test_empty_sites_leave_the_prior_limit(linear_gaussian):
    state = PVIState(prior_of(linear_gaussian))
    for _ in range(3):
        state = update(state, {name: state.cavity(name) for name in "wxyz"}, damping=0.3)
    np.testing.assert_allclose(state.posterior.precision, prior_of(linear_gaussian).precision, rtol=1e-12)


@pytest.mark.parametrize("damping", [0.3, 1.0])
def test_wider_answer_moves_the_mean_only_and_is_said(damping):
    state = PVIState(NaturalGaussian(np.ones(2), np.zeros(2)))
    answer = NaturalGaussian(np.array([0.5, 3.0]), np.array([1.0, 1.0]))
    updated = update(state, {"a": answer}, damping=damping)
    damped = (1 - damping) + damping * answer.precision
    np.testing.assert_allclose(updated.posterior.precision, [1.0, damped[1]])
    np.testing.assert_allclose(updated.posterior.mean, damping * answer.precision_mean / damped)
    assert "'a' has a negative precision in 1 of 2 directions" in sentence(updated.noisy_factors[0])


def test_wider_direction_of_a_matrix_is_treated_as_in_its_own_axes():
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    axes = NaturalGaussian(np.array([0.5, 3.0]), np.array([1.0, 1.0]))
    turned = NaturalGaussian(turn @ np.diag(axes.precision) @ turn.T, turn @ axes.precision_mean)
    one = update(PVIState(NaturalGaussian(np.ones(2), np.zeros(2))), {"a": axes}, damping=0.4).posterior
    other = update(PVIState(NaturalGaussian(np.eye(2), np.zeros(2))), {"a": turned}, damping=0.4)
    np.testing.assert_allclose(other.posterior.precision, turn @ np.diag(one.precision) @ turn.T, atol=1e-12)
    np.testing.assert_allclose(other.posterior.mean, turn @ one.mean, atol=1e-12)
    assert other.negative


def test_extreme_answers_leave_every_cavity_proper():
    generator = np.random.default_rng(2)
    state = PVIState(NaturalGaussian(np.ones(50), np.zeros(50)))
    for damping in (1.0, 0.5, 0.1, 1.0):
        answers = {
            site: NaturalGaussian(10.0 ** generator.uniform(-12, 12, 50), generator.normal(size=50)) for site in "abc"
        }
        state = update(state, answers, damping=damping)
        for site in "abcd":
            assert (state.cavity(site).precision >= 1).all()
            assert np.isfinite(state.cavity(site).mean).all()


def test_absent_sites_keep_their_factor(linear_gaussian):
    state = PVIState(prior_of(linear_gaussian))
    first = update(state, {"a": state.cavity("a") + likelihood(linear_gaussian, "a")}, damping=1.0)
    second = update(first, {"b": first.cavity("b") + likelihood(linear_gaussian, "b")}, damping=1.0)
    np.testing.assert_array_equal(second.factors["a"].precision, first.factors["a"].precision)
    assert set(state.factors) == set()


def test_samples_reach_the_posterior_of_a_diagonal_problem(orthogonal):
    generator = np.random.default_rng(4)
    prior = NaturalGaussian(np.full(3, 1 / orthogonal.prior_scale**2), np.zeros(3))
    means, precisions = [], []
    for _ in range(40):
        samples = {}
        for site in orthogonal.sites:
            samples[site] = random_samples(orthogonal.moments(site, 1.0), 400, generator, temperature=1.7)
        state = update_from_samples(PVIState(prior), samples, damping=1.0)
        assert (state.warnings, state.noisy_factors) == ((), ())
        means.append(state.posterior.mean)
        precisions.append(state.posterior.precision)
    mean, covariance = orthogonal.posterior
    assert_within_standard_errors(means, mean)
    assert_within_standard_errors(precisions, 1 / np.diag(covariance))
