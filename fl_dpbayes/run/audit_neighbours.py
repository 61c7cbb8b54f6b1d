"""The detector of coupled neighbours: train with and without one unit, under the same noise and the same batches."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.data.load import source_task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector, vector_to_arrays
from fl_dpbayes.privacy.audit_check import Check
from fl_dpbayes.privacy.audit_neighbours import gradient_check, norm_check
from fl_dpbayes.protocol.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.protocol.sampler import SGLD, ConstantStepSize, GaussianPrior
from fl_dpbayes.protocol.task import Model, Task
from fl_dpbayes.run.audit_site import GREY_LEVELS, MadeUpRecords, Release, release, write_site
from fl_dpbayes.run.audited_plan import audited_model, private_settings
from fl_dpbayes.scenario import Scenario

Array = npt.NDArray[np.float64]

UNITS, DECLARED_UNITS = 22, 20
# A unit that joins rarely says nothing in most runs.
LEAST_SAMPLING_RATE = 0.5
ATTEMPTS = 64
# A model's own output layer is zero, and then no gradient reaches the layers below; much more would saturate it.
WEIGHT_SCALE = 0.05


def audit_neighbours(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Compare what one unit adds to the released sum with its own gradient and with the clip norm.

    The scenario's model, task, sampling rate (at least 1/2) and pre-noise run for one step on random records. Step
    size, noise, prior and clip norm are the audit's own, so that rounding is small and the unit's gradient is twice
    the clip norm; the accounted noise is the business of the other detectors.

    Args:
        scenario: the audited scenario.
        folder: where the sites may write.
        generator: draws records, start state and seeds.

    Returns:
        The checks.
    """
    model, task = audited_model(scenario), source_task(scenario.data.source)
    levels = generator.integers(0, 256, (UNITS + 1, *task.input_shape), dtype=np.uint8)
    labels = generator.integers(0, task.classes, UNITS + 1)
    labels[-1] = task.classes - 1
    records = MadeUpRecords(levels, labels)
    module = build_model(model, task, seed=0)
    initial = to_vector(module)
    start = initial + torch.from_numpy(generator.normal(0.0, WEIGHT_SCALE, len(initial)).astype(np.float32))
    gradient = _gradient(model, task, start, levels[-1] / np.float32(GREY_LEVELS), int(labels[-1]))
    clip_norm = float(np.linalg.norm(gradient)) / 2
    checks = []
    for pre_noise in sorted({0.0, private_settings(scenario).pre_noise}):
        plan = _plan(scenario, clip_norm, pre_noise)
        contribution = _contribution(folder / f"{pre_noise}", model, task, plan, start, records, generator)
        checks.append(norm_check(contribution, clip_norm=clip_norm))
        if pre_noise == 0:
            checks.append(gradient_check(contribution, gradient, clip_norm=clip_norm))
    return checks


def _plan(scenario: Scenario, clip_norm: float, pre_noise: float) -> TrainingPlan:
    return TrainingPlan(
        rounds=1,
        steps_per_round=1,
        burn_in=0,
        thinning=1,
        sampler=SGLD(step_size=ConstantStepSize(initial=float(DECLARED_UNITS)), prior=GaussianPrior(scale=1.0)),
        privacy=PrivacyPlan(
            epsilon=100.0,
            delta=1e-3,
            coupling="constant",
            noise_multiplier=1.0,
            clip_norm=clip_norm,
            sampling_rate=max(LEAST_SAMPLING_RATE, scenario.privacy.sampling_rate),
            pre_noise=pre_noise,
        ),
        chain_start="broadcast",
    )


def _gradient(model: Model, task: Task, start: torch.Tensor, features: npt.NDArray[np.float32], label: int) -> Array:
    # Float64 and plain autograd: nothing that the site's own gradient engine uses.
    module = build_model(model, task, seed=0).double()
    torch.nn.utils.vector_to_parameters(start.double(), module.parameters())
    logits = module(torch.from_numpy(features)[None].double())
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([label]), reduction="sum")
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()


def _contribution(
    folder: Path,
    model: Model,
    task: Task,
    plan: TrainingPlan,
    start: torch.Tensor,
    records: MadeUpRecords,
    generator: np.random.Generator,
) -> Array:
    """Return the difference that the last record makes to the released sum."""
    arrays = vector_to_arrays(start, build_model(model, task, seed=0))

    def trained(name: str, count: int, seed: int) -> Release:
        part = MadeUpRecords(records.levels[:count], records.labels[:count])
        # The same name at both: a site's streams follow from its seed and its name.
        site_file = write_site(
            folder / name, "site-1", part, task, plan.privacy, units=DECLARED_UNITS, insecure_seed=seed
        )
        return release(site_file, model, task, plan, arrays, run=f"{1:032x}", round_number=1, first_step=0, steps=1)

    for attempt in range(ATTEMPTS):
        seed = int(generator.integers(2**63))
        without, added = (trained(f"{attempt}-{count}", count, seed) for count in (UNITS, UNITS + 1))
        difference = added.noisy_sums[0] - without.noisy_sums[0]
        if difference.any():
            break
    return difference
