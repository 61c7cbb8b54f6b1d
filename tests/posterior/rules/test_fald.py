"""FALD's averaging on quadratics: its chain has a closed form, exact at one local step and biased beyond."""

import numpy as np
import pytest

from fl_dpbayes.posterior.averages import average_states
from fl_dpbayes.posterior.rules.fald import averaged_temperature

STEP = 2e-5
SITES = ("a", "b", "c", "d")


def closed_form(factors, weights, local_steps):
    """The averaged chain is w <- m + M (w - m) + N(0, Q): return m, M and Q.

    Site k steps on U_k / w_k with noise variance 2 g / w_k, so that the average's drift is g grad sum_k U_k and, at
    one local step, its noise variance 2 g.
    """
    matrices, noises = [], []
    for factor, weight in zip(factors, weights, strict=True):
        step = np.eye(3) - STEP * factor.precision / weight
        all_steps = np.linalg.matrix_power(step, local_steps)
        matrices.append(all_steps)
        # sum_{e < E} A^{2 e} = (I - A^{2 E}) (I - A^2)^{-1}
        noises.append(2 * STEP / weight * np.linalg.solve(np.eye(3) - step @ step, np.eye(3) - all_steps @ all_steps))
    pulls = [w * (np.eye(3) - m) for w, m in zip(weights, matrices, strict=True)]
    mean = np.linalg.solve(sum(pulls), sum(p @ f.mean for p, f in zip(pulls, factors, strict=True)))
    transition = sum(w * m for w, m in zip(weights, matrices, strict=True))
    return mean, transition, sum(w**2 * q for w, q in zip(weights, noises, strict=True))


def stationary_covariance(transition, noise):
    return np.linalg.solve(np.eye(9) - np.kron(transition, transition), noise.reshape(-1)).reshape(3, 3)


def simulate(factors, weights, local_steps, chains, rounds, generator, start):
    """Every site starts from the average, takes its steps, and is averaged again; `chains` independent federations."""
    state = np.tile(start, (chains, 1))
    for _ in range(rounds):
        states = {}
        for site, factor, weight in zip(SITES, factors, weights, strict=True):
            local = state.copy()
            for _ in range(local_steps):
                gradient = (local @ factor.precision - factor.precision_mean) / weight
                local = local - STEP * gradient + np.sqrt(2 * STEP / weight) * generator.normal(size=local.shape)
            states[site] = {"w": local}
        state = average_states(states, dict(zip(SITES, weights, strict=True)))["w"].astype(np.float64)
    return state


WEIGHTS = (12 / 252, 30 / 252, 60 / 252, 150 / 252)


@pytest.mark.parametrize("local_steps", [1, 10])
def test_averaged_chain_has_the_closed_forms_moments(linear_gaussian, local_steps):
    factors = linear_gaussian.factors(0.25)
    mean, transition, noise = closed_form(factors, WEIGHTS, local_steps)
    chains, rounds, start = 20_000, 12, np.zeros(3)
    powers = [np.linalg.matrix_power(transition, r) for r in range(rounds + 1)]
    expected = mean + powers[rounds] @ (start - mean)
    covariance = sum(p @ noise @ p.T for p in powers[:rounds])
    draws = simulate(factors, WEIGHTS, local_steps, chains, rounds, np.random.default_rng(0), start)
    assert (np.abs(draws.mean(axis=0) - expected) < 4 * np.sqrt(np.diag(covariance) / chains)).all()
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert (np.abs(np.cov(draws.T) - covariance) / scale).max() < 4 * np.sqrt(2 / chains)


def test_one_local_step_is_exact_and_more_drift_towards_the_mean_of_means(linear_gaussian):
    factors = linear_gaussian.factors(0.25)
    exact_mean, exact_covariance = linear_gaussian.posterior
    forms = {e: closed_form(factors, WEIGHTS, e) for e in (1, 10, 100, 20_000_000)}
    errors = [np.linalg.norm(mean - exact_mean) for mean, _, _ in forms.values()]
    np.testing.assert_allclose(forms[1][0], exact_mean, atol=1e-10)
    assert min(errors[1:]) > 0.01
    average = sum(w * f.mean for w, f in zip(WEIGHTS, factors, strict=True))
    np.testing.assert_allclose(forms[20_000_000][0], average, atol=1e-6)
    # The covariance is not divided by the number of sites: what is left is the finite step's g L / 2.
    covariance = stationary_covariance(*forms[1][1:])
    precision = np.linalg.inv(exact_covariance)
    corrected = np.linalg.inv(precision @ (np.eye(3) - STEP * precision / 2))
    np.testing.assert_allclose(covariance, corrected, rtol=0, atol=1e-10)


def test_temperature_of_the_average_golden():
    heat, units = {"a": 2.0, "b": 6.0}, {"a": 30, "b": 10}
    assert averaged_temperature(heat, {"a": 3.0, "b": 1.0}, units) == pytest.approx(3.0)
    # N (w_a^2 T_a / n_a + w_b^2 T_b / n_b) = 40 (2 / 30 + 6 / 10) / 4
    assert averaged_temperature(heat, {"a": 1.0, "b": 1.0}, units) == pytest.approx(20 / 3)
