"""Faults of earlier implementations that a test of the result alone would not see."""

from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from fl_dpbayes.config.plan import NoPrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD, ExponentialStepSize, FlatPrior
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.privacy.events import history_of_steps, noise_of_steps
from fl_dpbayes.samplers import chain, minibatch
from fl_dpbayes.samplers.gradients import book_keeping
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords, poisson_units
from tests import chains

# Steps of an epoch as 1 / q: for these many counts below 2000, int(1 / q) is one short.
LOST_STEPS = [count for count in range(1, 2000) if int(1 / (1 / count)) != count]
# Each test of sampling fails a sound sampler with this probability, fixed seeds aside.
LEVEL = 1e-6


def plan_of(steps: int, sampling_rate: float, pre_noise: float = 0.0) -> TrainingPlan:
    sampler = SGLD(step_size=ExponentialStepSize(initial=0.1, decay=0.9), prior=FlatPrior())
    privacy = {"clip_norm": 1.7, "sampling_rate": sampling_rate, "pre_noise": pre_noise, "coupling": "constant"}
    return chains.plan_of(sampler, privacy, steps_per_round=steps)


def run(plan: TrainingPlan, units: int = 3):
    module = build_model(LogisticModel(), Task(input_shape=(2,), classes=2), seed=0)
    records = np.random.default_rng(0).normal(size=(units, 2)).astype(np.float32)
    unlabelled = np.zeros(units, np.int64), np.arange(units)
    sigmas = np.linspace(2.0, 1.0, plan.total_steps)
    return chains.run(module, (records, *unlabelled), plan, sigmas, streams=chains.streams_of(1, 2, 3, 4))


@pytest.mark.parametrize("pre_noise", [0.0, 0.1])
def test_clipping_and_noise_use_one_clip_norm_at_every_step(monkeypatch, pre_noise: float) -> None:
    clipped = []
    ghost, materialised = book_keeping.clipped_sum, minibatch.sum_clipped
    step = mock.Mock(wraps=chain.noisy_gradient)

    def watched_ghost(*arguments, clip_norm, **rest):
        if np.isfinite(clip_norm):  # The choice of the engine probes it without clipping.
            clipped.append(clip_norm)
        return ghost(*arguments, clip_norm=clip_norm, **rest)

    def watched_materialised(gradients, clip_norm, *rest):
        clipped.append(clip_norm)
        return materialised(gradients, clip_norm, *rest)

    monkeypatch.setattr(book_keeping, "clipped_sum", watched_ghost)
    monkeypatch.setattr(minibatch, "sum_clipped", watched_materialised)
    monkeypatch.setattr(chain, "noisy_gradient", step)
    run(plan_of(7, 1.0, pre_noise))
    assert [call.kwargs["noise_unit"] for call in step.call_args_list] == [1.7] * 7
    # What rounding can add to the sum is taken off the bound of each contribution.
    assert clipped == [clipped[0]] * 7
    assert 1.7 * (1 - 1e-6) <= clipped[0] <= 1.7


def test_history_holds_every_planned_step_for_every_count() -> None:
    assert len(LOST_STEPS) == 141
    assert LOST_STEPS[:3] == [93, 99, 105]
    for count in range(1, 2000):
        plan = plan_of(count, 1 / count)
        history = history_of_steps([1.0] * count, plan.privacy.sampling_rate)
        assert plan.total_steps == sum(event.steps for event in history) == len(noise_of_steps(history)) == count


@pytest.mark.parametrize("count", LOST_STEPS[:5])
@pytest.mark.parametrize("divide", [lambda count: 1 / count, lambda count: 1.0, lambda count: 0.3])
def test_chain_runs_every_planned_step_whatever_the_sampling_rate(count: int, divide) -> None:
    result = run(plan_of(count, divide(count)))
    assert result.sample_steps == tuple(range(count))


def participation(steps: int, units: int, sampling_rate: float, seed: int) -> np.ndarray:
    """Say which unit is in which batch, read from the clipped sums: each unit owns an input."""
    module = build_model(LogisticModel(), Task(input_shape=(units,), classes=2), seed=0)
    records = TrainingRecords(np.eye(units, dtype=np.float32), np.zeros(units, np.int64), np.arange(units))
    privacy = NoPrivacyPlan(kind="none", sampling_rate=sampling_rate, clip_norm=10.0)
    gradient = BatchGradient(module, records, privacy, units, chains.streams_of(seed, 1, 2, 3))
    sums = torch.stack([gradient().total for _ in range(steps)])
    return (sums[:, :units] != 0).numpy()


def sampling_faults(joined: np.ndarray, sampling_rate: float) -> list[str]:
    """Test batches against independent joining with one probability: sizes, units, and pairs of neighbouring steps."""
    steps, units = joined.shape
    variance = sampling_rate * (1 - sampling_rate)
    sizes = np.square(joined.sum(axis=1) - units * sampling_rate).sum() / (units * variance)
    counts = np.square(joined.sum(axis=0) - steps * sampling_rate).sum() / (steps * variance)
    centred = joined - sampling_rate
    pairs = (centred[1:] * centred[:-1]).sum() / (variance * np.sqrt((steps - 1) * units))
    probabilities = {
        "sizes": 2 * min(chi2.cdf(sizes, steps), chi2.sf(sizes, steps)),
        "units": 2 * min(chi2.cdf(counts, units), chi2.sf(counts, units)),
        "steps": 2 * norm.sf(abs(pairs)),
    }
    return [name for name, probability in probabilities.items() if probability < LEVEL]


@pytest.mark.parametrize("sampling_rate", [0.05, 0.25, 0.5])
def test_batches_are_poisson(sampling_rate: float) -> None:
    for seed in range(5):
        assert not sampling_faults(participation(200, 100, sampling_rate, seed), sampling_rate)


def test_shuffled_loader_is_found(monkeypatch) -> None:
    def shuffled():
        waiting: list[int] = []

        def batch(generator: np.random.Generator, unit_count: int, sampling_rate: float) -> np.ndarray:
            if not waiting:
                waiting.extend(generator.permutation(unit_count).tolist())
            size = round(sampling_rate * unit_count)
            taken, waiting[:] = waiting[:size], waiting[size:]
            return np.sort(taken)

        return batch

    for seed in range(5):
        monkeypatch.setattr(minibatch, "poisson_units", shuffled())
        assert {"sizes", "units", "steps"} <= set(sampling_faults(participation(200, 100, 0.25, seed), 0.25))


def test_unit_that_is_added_last_moves_no_other_units_draw() -> None:
    fewer = poisson_units(np.random.default_rng(0), 50, 0.3)
    more = poisson_units(np.random.default_rng(0), 51, 0.3)
    np.testing.assert_array_equal(fewer, more[more < 50])
