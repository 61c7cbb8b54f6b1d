"""The noise detector: silent records, so that what a site releases is its start, the prior and the noise."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.data.load import source_task
from fl_dpbayes.data.site_file import SiteFile
from fl_dpbayes.gradients.loss import summed_cross_entropy
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.models.parameters import (
    load_vector,
    to_vector,
    trainable_parameters,
    vector_to_arrays,
    vector_views,
)
from fl_dpbayes.privacy.audit_check import Check
from fl_dpbayes.privacy.audit_noise import NoiseOfRound, noise_checks
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.protocol.plan import TrainingPlan
from fl_dpbayes.protocol.task import Model, Task
from fl_dpbayes.run.audit_site import MadeUpRecords, Release, release, write_site
from fl_dpbayes.run.audited_plan import audited_model, audited_plan
from fl_dpbayes.scenario import Scenario

Array = npt.NDArray[np.float64]

FALSE_ALARM = 1e-6
STEPS_PER_ROUND = 4
UNITS = 20
# exp(-104) is zero in float32: beyond it a record of the favoured class has a gradient of exactly zero.
SILENT_LOGIT = 200.0
# Of a coordinate whose rounding reaches this share of its noise, the rounding would be tested, not the noise.
LARGEST_ROUNDING = 0.01


def audit_noise(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test the noise of two rounds at two sites, and of a second run at the first.

    The scenario's model and privacy plan run on blank records that the start state predicts with certainty, so their
    gradients are exactly zero. Pre-noise is switched off: it goes through the clip and is not accounted.

    Args:
        scenario: the audited scenario.
        folder: where the sites may write.
        generator: seeds the sites, where the scenario seeds its noise.

    Returns:
        The checks.
    """
    task, plan = source_task(scenario.data.source), _plan(scenario)
    seed = None if scenario.simulation.insecure_seed is None else int(generator.integers(2**63))
    first, second = (_silent_site(folder / name, name, task, plan, scenario, seed) for name in ("site-1", "site-2"))
    start = _silent_start(audited_model(scenario), task)
    releases = [
        _release(audited_model(scenario), task, plan, start, site_file, run, round_number)
        for site_file, run, round_number in ((first, 1, 1), (first, 1, 2), (second, 1, 1), (first, 2, 1))
    ]
    tested = np.logical_and.reduce([_is_tested(released, plan, first.units) for _, released in releases])
    rounds = [
        replace(label, noise=_noise(released, plan, tested, audited_model(scenario), task))
        for label, released in releases
    ]
    return noise_checks(rounds, false_alarm=FALSE_ALARM)


def _plan(scenario: Scenario) -> TrainingPlan:
    plan = audited_plan(scenario)
    return plan.model_copy(update={"rounds": max(2, plan.rounds)})


def _silent_site(
    folder: Path, name: str, task: Task, plan: TrainingPlan, scenario: Scenario, seed: int | None
) -> SiteFile:
    units = max(1, min(UNITS, math.ceil(1 / plan.privacy.delta) - 1))
    records = MadeUpRecords(np.zeros((units, *task.input_shape), np.uint8), np.zeros(units, np.int64))
    return write_site(
        folder,
        name,
        records,
        task,
        plan.privacy,
        units=units,
        insecure_seed=seed,
        device=scenario.resources.device,
    )


def _silent_start(model: Model, task: Task) -> Arrays:
    module = build_model(model, task, seed=0)
    start = vector_to_arrays(to_vector(module), module)
    start[list(start)[-1]][0] = SILENT_LOGIT
    return start


def _release(
    model: Model, task: Task, plan: TrainingPlan, start: Arrays, site_file: SiteFile, run: int, round_number: int
) -> tuple[NoiseOfRound, Release]:
    steps = min(STEPS_PER_ROUND, plan.steps_per_round)
    released = release(
        site_file,
        model,
        task,
        plan,
        start,
        run=f"{run:032x}",
        round_number=round_number,
        first_step=(round_number - 1) * steps,
        steps=steps,
    )
    return NoiseOfRound(site_file.name, str(run), round_number, {}), released


def _noise(
    released: Release, plan: TrainingPlan, tested: npt.NDArray[np.bool_], model: Model, task: Task
) -> dict[str, Array]:
    silent = _silent_steps(released, model, task)
    scales = released.noise_multipliers[:silent] * plan.privacy.noise_unit
    noise = torch.from_numpy(released.noisy_sums[:silent] / scales[:, None])
    shapes = model_shapes(model, task)
    kept = vector_views(torch.from_numpy(tested), shapes)
    tensors = {
        name: value.flatten(1)[:, kept[name].flatten()].numpy() for name, value in vector_views(noise, shapes).items()
    }
    return {name: value for name, value in tensors.items() if value.size}


def _silent_steps(released: Release, model: Model, task: Task) -> int:
    """Count the first steps whose gradient was exactly zero; the first always is, later noise may wake a record."""
    module = build_model(model, task, seed=0)
    record, label = torch.zeros((1, *task.input_shape)), torch.zeros(1, dtype=torch.int64)
    for step, state in enumerate(released.states):
        load_vector(module, torch.from_numpy(state).float())
        loss = summed_cross_entropy(module(record), label)
        gradients = torch.autograd.grad(loss, list(trainable_parameters(module).values()))
        if any(bool(gradient.any()) for gradient in gradients):
            return step
    return len(released.states)


def _is_tested(released: Release, plan: TrainingPlan, units: int) -> npt.NDArray[np.bool_]:
    batch_size = plan.privacy.sampling_rate * units
    noise = released.step_sizes * released.noise_multipliers * plan.privacy.noise_unit / batch_size
    rounding = np.finfo(np.float32).eps * np.abs(released.states[0])
    return rounding <= LARGEST_ROUNDING * float(noise.min())
