"""Langevin samplers on targets of known posterior and known stationary law at a finite step."""

import numpy as np
import pytest

from fl_dpbayes.config.sampler import SGD, SGHMC, SGLD
from fl_dpbayes.schedules.noise import noise_multipliers
from tests import analytic_targets
from tests.analytic_targets import (
    CHAINS,
    SIZE,
    assert_within_four_standard_errors,
    independent_chains,
    regression,
)

EVERY = [
    SGD(kind="dp-sgd", step_size=SIZE, momentum=0.6),
    SGHMC(kind="dp-sghmc", step_size=SIZE, friction=0.3),
]
EVERY += [SGLD(step_size=SIZE)]
SAMPLERS = pytest.mark.parametrize("sampler", EVERY, ids=lambda sampler: sampler.kind)


@pytest.mark.slow
@SAMPLERS
@pytest.mark.parametrize("sampling_rate", [1.0, 0.4])
def test_mean_and_covariance_are_the_closed_form_gaussian_target(sampler, sampling_rate):
    target = regression(sampling_rate=sampling_rate)
    positions = independent_chains(target, sampler, 0.25, sigma=0.5)
    law = target.stationary_covariance(
        sampler, 0.25, 0.5 * target.clip_norm / (sampling_rate * target.units)
    )
    assert_within_four_standard_errors(positions, target.posterior_mean, law)


@SAMPLERS
@pytest.mark.parametrize("step_size", [1e-4, 0.1, 0.5])
def test_covariance_is_temperature_times_the_posterior_with_the_documented_correction(
    sampler, step_size
):
    target = regression()
    scale = target.scale(sampler.momentum_lost)
    temperature = scale.temperatures(np.array([step_size]), np.array([0.7]))[0]
    found = target.stationary_covariance(sampler, step_size, 0.7 * target.clip_norm / target.units)
    np.testing.assert_allclose(found, target.law(sampler, step_size, temperature), rtol=1e-7)


@pytest.mark.slow
@SAMPLERS
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_langevin_coupling_samples_the_posterior_at_its_temperature_gaussian_target(
    sampler, temperature
):
    analytic_targets.check_gaussian_target(sampler, temperature=temperature)


@SAMPLERS
@pytest.mark.slow
def test_langevin_coupling_samples_a_posterior_that_is_not_gaussian_logistic_grid(sampler):
    target = analytic_targets.logistic()
    step_size = 0.15
    sigma = target.scale(sampler.momentum_lost).langevin_noise(np.array([step_size]), 1.0)[0]
    positions = independent_chains(target, sampler, step_size, sigma, steps=200, seed=3)
    mean, covariance = target.moments()
    # The step's own bias, of the order of a h / 4, stays below a hundredth of a deviation.
    deviations = np.sqrt(np.diag(covariance))
    assert (
        np.abs(positions.mean(axis=0) - mean) <= (4 / np.sqrt(CHAINS) + 0.01) * deviations
    ).all()
    found = np.cov(positions.T)
    assert (
        np.abs(found - covariance)
        <= (4 * np.sqrt(2 / CHAINS) + 0.01) * np.outer(deviations, deviations)
    ).all()


@pytest.mark.slow
@SAMPLERS
@pytest.mark.parametrize(("sigma", "hotter"), [(0.05, False), (15.0, True)])
def test_floor_samples_at_tau_unless_privacy_needs_more_noise_gaussian_target(
    sampler, sigma, hotter
):
    target = regression()
    sizes = np.array([0.2])
    scale = target.scale(sampler.momentum_lost)
    floored = noise_multipliers("floor", sizes, scale, sigma, 1.0)
    temperature = scale.temperatures(sizes, floored)[0]
    assert temperature > 2 if hotter else temperature == pytest.approx(1.0, rel=1e-12)
    positions = independent_chains(target, sampler, 0.2, floored[0], seed=2)
    assert_within_four_standard_errors(
        positions, target.posterior_mean, target.law(sampler, 0.2, temperature)
    )
