"""Every Langevin sampler on linear regression, whose posterior and whose stationary law at a finite step are known.

loss_i = (x_i w - y_i)^2 / 2, prior N(0, scale^2) with share s, nothing clipped. The posterior is N(m, (n H)^-1), H the
curvature of the mean energy. A step is linear in the state z = (w - m, velocity), so the stationary covariance solves

    Cov z = F Cov z F' + a^2 J [q (1 - q) / B^2 sum_i x_i x_i' (x_i' Cov w x_i + r_i^2) + (sigma C / B)^2 I] J'

exactly, Poisson batches included: r_i is record i's residual at m, J the way noise enters both parts of the state.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fl_dpbayes.config.sampler import GaussianPrior
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.samplers import sgd, sghmc, sgld
from fl_dpbayes.samplers.noise import langevin_noise, noise_multipliers, temperatures
from fl_dpbayes.samplers.noisy_gradient import private_drift

CHAINS = 20_000
# Name: (kernel, share of the momentum that is lost in each step).
KERNELS = {"sgld": (sgld.kernel(), 1.0), "sgd": (sgd.kernel(0.6), 0.4), "sghmc": (sghmc.kernel(0.3), 0.3)}
SAMPLERS = pytest.mark.parametrize("name", KERNELS)


@dataclass(frozen=True)
class Regression:
    """A site's records and everything public of its chain."""

    features: np.ndarray
    targets: np.ndarray
    prior: GaussianPrior
    share: float
    sampling_rate: float
    clip_norm: float = 1.5

    @property
    def units(self):
        return len(self.targets)

    @property
    def place(self):
        return {
            "clip_norm": self.clip_norm,
            "expected_batch_size": self.sampling_rate * self.units,
            "units": self.units,
        }

    @property
    def curvature(self):
        prior_precision = self.share / self.prior.scale**2
        return (self.features.T @ self.features + prior_precision * np.eye(self.features.shape[1])) / self.units

    @property
    def posterior_mean(self):
        return np.linalg.solve(self.units * self.curvature, self.features.T @ self.targets)


def regression(*, sampling_rate=1.0, copies=1, share=0.5):
    generator = np.random.default_rng(5)
    features = generator.standard_normal((12, 2)) @ np.array([[1.0, 0.5], [0.0, 0.7]])
    targets = features @ np.array([0.5, -1.0]) + 0.5 * generator.standard_normal(12)
    return Regression(
        np.tile(features, (copies, 1)), np.tile(targets, copies), GaussianPrior(scale=0.8), share, sampling_rate
    )


def stationary_covariance(problem, name, step_size, noise_scale):
    """Solve the fixed point above for Cov w, noise_scale = sigma C / B."""
    friction = KERNELS[name][1]
    curvature, rate = problem.curvature, problem.sampling_rate
    dimensions = len(curvature)
    identity, zero = np.eye(dimensions), np.zeros((dimensions, dimensions))
    velocity = (1 - friction) * identity
    transition = np.block([[identity - step_size * curvature, velocity], [-step_size * curvature, velocity]])
    into_state = np.vstack([identity, identity])
    residuals = problem.features @ problem.posterior_mean - problem.targets
    weight = rate * (1 - rate) / (rate * problem.units) ** 2

    def new_noise(position_covariance, residual_squares, constant):
        spread = np.einsum("ni,ij,nj->n", problem.features, position_covariance, problem.features) + residual_squares
        batch = weight * (problem.features.T * spread) @ problem.features
        return step_size**2 * into_state @ (batch + constant * identity) @ into_state.T

    size = 2 * dimensions
    columns = []
    for unit in np.eye(size * size):
        covariance = unit.reshape(size, size)
        image = transition @ covariance @ transition.T + new_noise(covariance[:dimensions, :dimensions], 0.0, 0.0)
        columns.append((covariance - image).ravel())
    constant = new_noise(zero, residuals**2, noise_scale**2)
    solution = np.linalg.solve(np.array(columns).T, constant.ravel())
    return solution.reshape(size, size)[:dimensions, :dimensions]


def independent_chains(problem, name, step_size, sigma, *, offset=0.0, steps=150, seed=0):
    """Final positions of many chains that start at the posterior mean plus an offset, shape (CHAINS, d)."""
    generator = np.random.default_rng(seed)
    kernel = KERNELS[name][0]
    features, targets = (torch.from_numpy(part).float() for part in (problem.features, problem.targets))
    state = kernel.init(torch.from_numpy(problem.posterior_mean + offset).float().repeat(CHAINS, 1), 0)
    for _ in range(steps):
        residuals = state.parameters @ features.T - targets
        if problem.sampling_rate < 1:
            joins = generator.random((CHAINS, problem.units), dtype=np.float32) < problem.sampling_rate
            residuals = residuals * torch.from_numpy(joins)
        drift = private_drift(
            residuals @ features,
            noise=torch.from_numpy(generator.standard_normal(tuple(state.parameters.shape), dtype=np.float32)),
            noise_multiplier=sigma,
            noise_unit=problem.clip_norm,
            expected_batch_size=problem.sampling_rate * problem.units,
            data_free_gradient=-problem.share * prior_gradient(problem.prior, state.parameters),
            units=problem.units,
        )
        state = kernel.step(state, drift, step_size)
    return state.parameters.double().numpy()


def assert_within_four_standard_errors(positions, mean, covariance):
    error = positions - mean
    assert (np.abs(error.mean(axis=0)) <= 4 * error.std(axis=0) / np.sqrt(len(error))).all()
    products = error[:, :, None] * error[:, None, :]
    assert (np.abs(products.mean(axis=0) - covariance) <= 4 * products.std(axis=0) / np.sqrt(len(error))).all()


@SAMPLERS
@pytest.mark.parametrize("sampling_rate", [1.0, 0.4])
def test_mean_and_covariance_are_the_closed_form_gaussian_target(name, sampling_rate):
    problem = regression(sampling_rate=sampling_rate)
    positions = independent_chains(problem, name, 0.25, sigma=0.5)
    noise_scale = 0.5 * problem.clip_norm / (sampling_rate * problem.units)
    assert_within_four_standard_errors(
        positions, problem.posterior_mean, stationary_covariance(problem, name, 0.25, noise_scale)
    )


@SAMPLERS
@pytest.mark.parametrize("step_size", [1e-4, 0.1, 0.5])
def test_covariance_is_temperature_times_the_posterior_with_the_documented_correction(name, step_size):
    problem = regression()
    friction = KERNELS[name][1]
    sigma = np.array([0.7])
    temperature = temperatures(np.array([step_size]), sigma, **problem.place, friction=friction)[0]
    values, vectors = np.linalg.eigh(problem.curvature)
    variances = temperature / (problem.units * values) / (1 - step_size * values / (2 * (2 - friction)))
    noise_scale = 0.7 * problem.clip_norm / problem.units
    found = stationary_covariance(problem, name, step_size, noise_scale)
    np.testing.assert_allclose(found, vectors * variances @ vectors.T, rtol=1e-7)


@SAMPLERS
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_langevin_coupling_samples_the_posterior_at_its_temperature_gaussian_target(name, temperature):
    problem, step_size, friction = regression(), 0.2, KERNELS[name][1]
    sigma = langevin_noise(np.array([step_size]), temperature, **problem.place, friction=friction)[0]
    positions = independent_chains(problem, name, step_size, sigma, seed=1)
    # Along the eigenvectors the chain is a sum of independent autoregressions, each with its own correction.
    values, vectors = np.linalg.eigh(problem.curvature)
    along = (positions - problem.posterior_mean) @ vectors
    found = along.var(axis=0) * problem.units * values * (1 - step_size * values / (2 * (2 - friction)))
    assert (np.abs(found / temperature - 1) <= 4 * np.sqrt(2 / CHAINS)).all()


@SAMPLERS
def test_doubling_the_data_halves_the_variance_at_fixed_temperature(name):
    variances = []
    for copies in (2, 4):
        problem = regression(copies=copies, share=1e-9)
        sigma = langevin_noise(np.array([0.2]), 1.0, **problem.place, friction=KERNELS[name][1])[0]
        variances.append(independent_chains(problem, name, 0.2, sigma, seed=copies).var(axis=0))
    assert (np.abs(variances[0] / variances[1] / 2 - 1) <= 4 * np.sqrt(2) * np.sqrt(2 / CHAINS)).all()


@SAMPLERS
@pytest.mark.parametrize(("sigma", "hotter"), [(0.05, False), (15.0, True)])
def test_floor_samples_at_tau_unless_privacy_needs_more_noise_gaussian_target(name, sigma, hotter):
    problem, sizes, friction = regression(), np.array([0.2]), KERNELS[name][1]
    floored = noise_multipliers(
        "floor", step_sizes=sizes, noise_multiplier=sigma, temperature=1.0, **problem.place, friction=friction
    )
    temperature = temperatures(sizes, floored, **problem.place, friction=friction)[0]
    assert temperature > 2 if hotter else temperature == pytest.approx(1.0, rel=1e-12)
    positions = independent_chains(problem, name, 0.2, floored[0], seed=2)
    values, vectors = np.linalg.eigh(problem.curvature)
    variances = temperature / (problem.units * values) / (1 - 0.2 * values / (2 * (2 - friction)))
    assert_within_four_standard_errors(positions, problem.posterior_mean, vectors * variances @ vectors.T)


@SAMPLERS
@pytest.mark.parametrize(("share", "stable"), [(0.95, True), (1.05, False)])
def test_longest_stable_step_is_the_documented_one(name, share, stable):
    problem, friction = regression(), KERNELS[name][1]
    step_size = share * 2 * (2 - friction) / np.linalg.eigvalsh(problem.curvature)[-1]
    distance = np.abs(independent_chains(problem, name, step_size, 0.0, offset=0.1) - problem.posterior_mean).max()
    assert (distance < 0.1) == stable
