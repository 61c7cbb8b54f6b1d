import math

import numpy as np
import pytest
import torch

from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.protocol.plan import FlatPrior, GaussianPrior
from fl_dpbayes.samplers import dp_sgld
from fl_dpbayes.schedules.noise import langevin_noise, temperatures

ZERO = torch.zeros(1)


def test_step_is_the_formula_by_hand():
    state = dp_sgld.init(torch.tensor([2.0, -1.0]), step=7)
    after = dp_sgld.step(
        state,
        torch.tensor([3.0, 0.5]),
        step_size=0.1,
        noise_multiplier=2.0,
        clip_norm=0.5,
        expected_batch_size=4.0,
        units=20,
        log_prior_gradient=torch.tensor([-8.0, 4.0]),
        prior_share=0.25,
        noise=torch.tensor([1.5, -0.5]),
    )
    # w - a [(G + sigma C xi) / B - (s / n) grad log p]
    expected = [
        2.0 - 0.1 * ((3.0 + 2.0 * 0.5 * 1.5) / 4 - 0.25 / 20 * -8.0),
        -1.0 - 0.1 * ((0.5 + 2.0 * 0.5 * -0.5) / 4 - 0.25 / 20 * 4.0),
    ]
    torch.testing.assert_close(after.parameters, torch.tensor(expected))
    assert after.step == 8
    assert torch.equal(state.parameters, torch.tensor([2.0, -1.0]))


@pytest.mark.parametrize("clip_norm", [1.0, math.inf])
def test_no_noise_is_sgd_bit_for_bit_limit(clip_norm):
    generator = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(50, generator=generator), torch.randn(50, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.SGD([parameter], lr=0.3)
    state = dp_sgld.init(start)
    for _ in range(5):
        parameter.grad = gradient / 8.0
        optimiser.step()
        state = dp_sgld.step(
            state,
            gradient,
            step_size=0.3,
            noise_multiplier=0.0,
            clip_norm=clip_norm,
            expected_batch_size=8.0,
            units=8,
            log_prior_gradient=torch.zeros(50),
            prior_share=1.0,
            noise=torch.full((50,), 1e9),
        )
    assert torch.equal(state.parameters, parameter.detach())


def gaussian_target_variance(*, units, step_size, noise_multiplier, sampling_rate, clip_norm, prior, share, seed):
    """Variance over many parallel one-dimensional chains with loss_i = (w - x_i)^2 / 2 and never clipped gradients."""
    data_sum, chains, steps = 3.0, 20_000, 400
    generator = np.random.default_rng(seed)
    state = dp_sgld.init(torch.full((chains,), data_sum / units))
    for _ in range(steps):
        # Expected clipped sum of a Poisson batch, so the noise on the sum is the only randomness.
        expected_sum = sampling_rate * (units * state.parameters - data_sum)
        state = dp_sgld.step(
            state,
            expected_sum,
            step_size=step_size,
            noise_multiplier=noise_multiplier,
            clip_norm=clip_norm,
            expected_batch_size=sampling_rate * units,
            units=units,
            log_prior_gradient=prior_gradient(prior, state.parameters),
            prior_share=share,
            noise=torch.from_numpy(generator.standard_normal(chains, dtype=np.float32)),
        )
    return state.parameters.double().var().item(), math.sqrt(2 / chains)


@pytest.mark.parametrize(
    ("prior", "share", "prior_precision"),
    [(FlatPrior(), 1.0, 0.0), (GaussianPrior(scale=0.2), 1.0, 25.0), (GaussianPrior(scale=0.2), 0.25, 6.25)],
)
def test_stationary_variance_is_temperature_over_precision_gaussian_target(prior, share, prior_precision):
    units, step_size, sigma, rate, clip_norm = 40, 0.1, 0.7, 0.25, 1.5
    found, relative_error = gaussian_target_variance(
        units=units,
        step_size=step_size,
        noise_multiplier=sigma,
        sampling_rate=rate,
        clip_norm=clip_norm,
        prior=prior,
        share=share,
        seed=1,
    )
    temperature = temperatures(
        np.array([step_size]), np.array([sigma]), clip_norm=clip_norm, expected_batch_size=rate * units, units=units
    )[0]
    precision = units + prior_precision
    # AR(1) with coefficient 1 - (a / n) precision: the finite step inflates T / precision by 1 / (1 - coefficient').
    expected = temperature / precision / (1 - step_size / units * precision / 2)
    assert abs(found / expected - 1) <= 4 * relative_error


def test_doubling_the_data_halves_the_variance_at_fixed_temperature():
    variances = []
    for units in (50, 100):
        step_size = 0.05
        sigma = langevin_noise(np.array([step_size]), 1.0, clip_norm=1.0, expected_batch_size=0.5 * units, units=units)
        found, relative_error = gaussian_target_variance(
            units=units,
            step_size=step_size,
            noise_multiplier=float(sigma[0]),
            sampling_rate=0.5,
            clip_norm=1.0,
            prior=FlatPrior(),
            share=1.0,
            seed=units,
        )
        variances.append(found)
        assert abs(found * units * (1 - step_size / 2) - 1) <= 4 * relative_error
    assert abs(variances[0] / variances[1] / 2 - 1) <= 4 * math.sqrt(2) * relative_error
