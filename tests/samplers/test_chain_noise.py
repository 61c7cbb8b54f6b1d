"""What noise `run_chain` adds and whom it draws, read from what it leaves, for every sampler."""

import math
from unittest import mock

import numpy as np
import pytest
import torch

from fl_dpbayes.config.sampler import (
    SGD,
    SGHMC,
    SGLD,
    Adam,
    BayesByBackprop,
    ConstantStepSize,
    FlatPrior,
    MCDropout,
)
from fl_dpbayes.config.task import LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.samplers import chain, minibatch
from fl_dpbayes.samplers.chain import noisy_gradient
from fl_dpbayes.samplers.state_vectors import initial_vectors
from tests.chains import plan_of, run, streams_of

STEP_SIZE = 0.5
CLIP_NORM = 1.7
UNITS = 40
CHAIN_STEPS = 4
SETTINGS = {"step_size": ConstantStepSize(initial=STEP_SIZE), "prior": FlatPrior()}
# Of two steps of a stretch from rest: a, or the weight of each noisy gradient in what is read,
# first step first.
SAMPLERS: dict = {
    "dp-sgld": (SGLD(**SETTINGS), (1.0, 1.0)),
    "dp-sgd": (SGD(kind="dp-sgd", **SETTINGS), (1.0, 1.0)),
    "dp-sgd with momentum": (SGD(kind="dp-sgd", momentum=0.5, **SETTINGS), (1.5, 1.0)),
    "dp-sghmc": (SGHMC(kind="dp-sghmc", friction=0.5, **SETTINGS), (1.5, 1.0)),
    "dp-adam": (
        Adam(kind="dp-adam", first_decay=0.5, **SETTINGS),
        (0.25 / STEP_SIZE, 0.5 / STEP_SIZE),
    ),
    "dp-bbp": (BayesByBackprop(kind="dp-bbp", **SETTINGS), (1.0, 1.0)),
    "dp-mc-dropout": (MCDropout(kind="dp-mc-dropout", **SETTINGS), (1.0, 1.0)),
}
MULTIPLIERS = np.linspace(3.0, 1.0, 2 * CHAIN_STEPS)
# Standard errors.
ERRORS = 4.5


def noise_of(sampler, first_step: int, steps: int) -> np.ndarray:
    """Return the weighted sum of a chain's noise without records, in units of the step size."""
    task = Task(input_shape=(1000,), classes=2)
    module = build_model(
        MLPModel(hidden=(3,)) if isinstance(sampler, MCDropout) else LogisticModel(), task, seed=0
    )
    start = initial_vectors(sampler, torch.zeros(len(to_vector(module))))
    nobody = np.empty((0, 1000), np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
    plan = plan_of(sampler, {"clip_norm": CLIP_NORM}, steps_per_round=CHAIN_STEPS, chains=2)
    streams = streams_of(*([first_step, steps, purpose] for purpose in range(4)))
    stretch = range(first_step, first_step + steps)
    last = run(
        module, nobody, plan, MULTIPLIERS, units=UNITS, steps=stretch, start=start, streams=streams
    ).last
    if isinstance(sampler, Adam):
        return last["first_moment"] / STEP_SIZE
    return np.concatenate(
        [(start[name].numpy() - last[name]) / STEP_SIZE for name in sampler.position]
    )


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("first_step", [0, 2, CHAIN_STEPS, CHAIN_STEPS + 2])
def test_noise_of_every_sampler_and_chain_is_the_accounted_one(name: str, first_step: int) -> None:
    sampler, weights = SAMPLERS[name]
    for steps in (1, 2):
        noise = noise_of(sampler, first_step, steps)
        sigmas = MULTIPLIERS[first_step : first_step + steps] * CLIP_NORM / (0.5 * UNITS)
        # Of steps that shared their noise the deviations would add up, not the variances.
        variance = float(np.square(np.array(weights[2 - steps :]) * sigmas).sum())
        ratio = float(np.square(noise).mean()) / variance
        assert abs(ratio - 1) < ERRORS * math.sqrt(2 / len(noise)), steps


def test_chains_share_no_noise() -> None:
    first, second = (
        noise_of(SAMPLERS["dp-sgld"][0], first_step, 1) for first_step in (0, CHAIN_STEPS)
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < ERRORS / math.sqrt(len(first))


@pytest.mark.parametrize("sampling_rate", [1.0, 0.5, 1e-6])
def test_each_step_draws_once_over_all_parameters_and_once_over_all_units(
    monkeypatch, sampling_rate: float
) -> None:
    module = build_model(MLPModel(hidden=(5,)), Task(input_shape=(3,), classes=2), seed=0)
    units = 20
    steps = 6
    records = np.ones((units, 3), np.float32), np.zeros(units, np.int64), np.arange(units)
    streams = streams_of(2, 1, 3, 4)
    start = to_vector(module)
    noise, joining = (
        mock.Mock(wraps=each) for each in (chain.normal_vectors, minibatch.poisson_units)
    )
    monkeypatch.setattr(chain, "normal_vectors", noise)
    monkeypatch.setattr(minibatch, "poisson_units", joining)
    plan = plan_of(privacy={"sampling_rate": sampling_rate}, steps_per_round=steps)
    result = run(module, records, plan, start=start, streams=streams)
    # A batch that nobody joined (nearly all of them at the smallest rate) has its draw like any
    # other.
    noise.assert_called_once_with(
        streams.noise, size=start.numel(), count=steps, device=torch.device("cpu")
    )
    assert joining.mock_calls == [mock.call(streams.sampling, units, sampling_rate)] * steps
    moved = np.diff(np.vstack([start.numpy(), result.samples]), axis=0)
    assert (moved != 0).all()
    assert not np.isnan(moved).any()


def test_noisy_gradient_is_the_formula_by_hand_and_is_written_over_the_noise_alone():
    noise = torch.tensor([1.5, -0.5])
    prior = torch.tensor([2.0, -1.0])
    # (G + sigma C xi) / B - (s / n) grad log p
    expected = [(3.0 + 2.0 * 0.5 * 1.5) / 4 + 2.0 / 20, (0.5 + 2.0 * 0.5 * -0.5) / 4 - 1.0 / 20]
    settings = {"noise_multiplier": 2.0, "noise_unit": 0.5, "expected_batch_size": 4.0, "units": 20}
    clipped = torch.tensor([3.0, 0.5])
    assert noisy_gradient(clipped, noise=noise, data_free_gradient=prior, **settings) is noise
    torch.testing.assert_close(noise, torch.tensor(expected))
    assert prior.tolist() == [2.0, -1.0]
