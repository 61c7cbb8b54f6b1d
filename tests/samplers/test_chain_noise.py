"""What `run_chain` adds and whom it draws, read from what it leaves: every private sampler, every chain."""

import math

import numpy as np
import pytest
import torch

from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import (
    SGD,
    SGHMC,
    SGLD,
    Adam,
    BayesByBackprop,
    ConstantStepSize,
    FlatPrior,
    MCDropout,
    Sampler,
)
from fl_dpbayes.config.task import LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.samplers.chain import ChainResult, ChainStreams, run_chain
from fl_dpbayes.samplers.state_vectors import initial_slots

STEP_SIZE, CLIP_NORM, UNITS, CHAIN_STEPS = 0.5, 1.7, 40, 4
SETTINGS = {"step_size": ConstantStepSize(initial=STEP_SIZE), "prior": FlatPrior()}
# Of two steps of a stretch from rest: a, or the weight of each drift in what is read, first step first.
SAMPLERS: dict[str, tuple[Sampler, tuple[float, float]]] = {
    "dp-sgld": (SGLD(**SETTINGS), (1.0, 1.0)),
    "dp-sgd": (SGD(kind="dp-sgd", **SETTINGS), (1.0, 1.0)),
    "dp-sgd with momentum": (SGD(kind="dp-sgd", momentum=0.5, **SETTINGS), (1.5, 1.0)),
    "dp-sghmc": (SGHMC(kind="dp-sghmc", friction=0.5, **SETTINGS), (1.5, 1.0)),
    "dp-adam": (Adam(kind="dp-adam", first_decay=0.5, **SETTINGS), (0.25 / STEP_SIZE, 0.5 / STEP_SIZE)),
    "dp-bbp": (BayesByBackprop(kind="dp-bbp", **SETTINGS), (1.0, 1.0)),
    "dp-mc-dropout": (MCDropout(kind="dp-mc-dropout", **SETTINGS), (1.0, 1.0)),
}
MULTIPLIERS = np.linspace(3.0, 1.0, 2 * CHAIN_STEPS)
# Standard errors.
ERRORS = 4.5


def plan_of(sampler: Sampler, sampling_rate: float = 0.5) -> TrainingPlan:
    return TrainingPlan(
        rounds=1,
        steps_per_round=CHAIN_STEPS,
        chains=2,
        burn_in=0,
        thinning=1,
        sampler=sampler,
        privacy=PrivacyPlan(epsilon=1.0, delta=1e-5, clip_norm=CLIP_NORM, sampling_rate=sampling_rate),
        chain_start="broadcast",
    )


def run(sampler: Sampler, first_step: int, steps: int) -> tuple[ChainResult, np.ndarray]:
    """Run without records from a state of zeros, and return the result and the start."""
    task = Task(input_shape=(1000,), classes=2)
    hidden = isinstance(sampler, MCDropout)
    module = build_model(MLPModel(hidden=(3,)) if hidden else LogisticModel(), task, seed=0)
    size = sum(value.numel() for value in module.parameters())
    start = initial_slots(sampler, torch.zeros(size))
    result = run_chain(
        module,
        np.empty((0, 1000), np.float32),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        plan=plan_of(sampler),
        noise_multipliers=MULTIPLIERS,
        units=UNITS,
        first_step=first_step,
        steps=steps,
        start=start,
        streams=ChainStreams(*(np.random.default_rng([first_step, steps, purpose]) for purpose in range(4))),
    )
    return result, start["parameters"].numpy()


def noise_of(sampler: Sampler, first_step: int, steps: int) -> np.ndarray:
    """Return the weighted sum of the noise in the drifts, in units of the step size."""
    result, start = run(sampler, first_step, steps)
    if isinstance(sampler, Adam):
        return result.last["first_moment"] / STEP_SIZE
    return (start - result.last["parameters"]) / STEP_SIZE


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


def test_noise_of_spreads_is_the_accounted_one() -> None:
    sampler, _ = SAMPLERS["dp-bbp"]
    result, start = run(sampler, CHAIN_STEPS, 1)
    moves = (initial_slots(sampler, torch.from_numpy(start))["spread"].numpy() - result.last["spread"]) / STEP_SIZE
    deviation = MULTIPLIERS[CHAIN_STEPS] * CLIP_NORM / (0.5 * UNITS)
    assert abs(moves.std() / deviation - 1) < ERRORS / math.sqrt(2 * len(moves))


def test_chains_share_no_noise() -> None:
    first, second = (noise_of(SAMPLERS["dp-sgld"][0], first_step, 1) for first_step in (0, CHAIN_STEPS))
    assert abs(np.corrcoef(first, second)[0, 1]) < ERRORS / math.sqrt(len(first))


@pytest.mark.parametrize("sampling_rate", [0.1, 0.5])
def test_units_join_at_the_planned_rate_and_in_batches_of_poisson_sizes(sampling_rate: float) -> None:
    units, sizes = 600, []
    module = build_model(LogisticModel(), Task(input_shape=(2,), classes=2), seed=0)
    plan = plan_of(SAMPLERS["dp-sgld"][0], sampling_rate).model_copy(update={"rounds": 15})
    records = np.random.default_rng(0).normal(size=(units, 2)).astype(np.float32)
    run_chain(
        module,
        records,
        np.zeros(units, np.int64),
        np.arange(units),
        plan=plan,
        noise_multipliers=np.ones(plan.total_steps),
        units=units,
        first_step=0,
        steps=plan.chain_steps,
        start=initial_slots(plan.sampler, torch.zeros(6)),
        streams=ChainStreams(*(np.random.default_rng(purpose) for purpose in range(4))),
        on_step=lambda number, state, clipped: sizes.append(clipped.units),
    )
    joined, variance = np.array(sizes), units * sampling_rate * (1 - sampling_rate)
    assert abs(joined.mean() - units * sampling_rate) < ERRORS * math.sqrt(variance / len(joined))
    squares = np.square(joined - units * sampling_rate).mean() / variance
    assert abs(squares - 1) < ERRORS * math.sqrt(2 / len(joined))
