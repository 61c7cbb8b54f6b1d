"""The noise of training: silent records, so that what a site releases is its start, the prior and the noise.

The plan is the scenario's own over its whole length, with step sizes so small that records stay
silent and the prior's pull stays what it is at the start; the couplings' temperature follows, so
that every sigma_t is the scenario's.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit.canary_site import CanaryRecords, CanarySite, write_canary_site
from fl_dpbayes.audit.noise_questions import again_question, noise_questions, tested_layout
from fl_dpbayes.audit.reading import Course, Reading, own_plan, read_stretch, with_step_size
from fl_dpbayes.config import PrivacyPlan, Scenario, TrainingPlan
from fl_dpbayes.models import model_shapes, vector_views
from fl_dpbayes.privacy import solve_plan
from fl_dpbayes.privacy.audit_statistics import (
    Check,
    Finding,
    Questions,
    correlation_tests,
    variance_test,
    verdicts,
)
from fl_dpbayes.schedules import planned_step_sizes

Array = npt.NDArray[np.float64]

FALSE_ALARM = 1e-5
# Units that the silent site declares, and holds: noise that follows from the real number would
# show.
UNITS, HELD = 20, 17
MOST_CHAINS = 8
THIRDS = ("early", "middle", "late")
# Numbers of noise that each third of each chain is tested on, one step at a time, as far as it has
# steps.
NUMBERS = 600
LEAST_SINGLES, MOST_SINGLES = 2, 24
LONGEST_STRETCH = 8
# How far a coordinate moves in a step, and where it starts: far enough from 0 that a prior's
# gradient keeps its sign.
MOVE, START = 1e-5, 2e-4
# exp(-10000) is zero in float32: a record of the favoured class has a gradient of exactly zero.
SILENT_LOGIT = 1e4
# Of a coordinate whose rounding reaches this share of its noise, the rounding would be tested, not
# the noise.
LARGEST_ROUNDING = 0.01


def audit_noise(
    scenario: Scenario, folder: Path, units: int, generator: np.random.Generator
) -> list[Check]:
    """Test the noise of early, middle and late steps of every chain at n = `units`.

    No two releases may share any.

    `generator` draws directions to look along, once all sites have answered.
    """
    plan = still_plan(scenario, units)
    first, second = (
        silent_site(folder / name, scenario, delta=plan.privacy.delta)
        for name in ("site-1", "site-2")
    )
    stretches = list(_stretches(plan, state_size(scenario)))
    restarted = [each for each in stretches if each[0].startswith("chain 1")]
    readings: dict[str, Reading] = {}
    for site, run, chosen in ((first, 1, stretches), (first, 2, restarted), (second, 1, restarted)):
        for number, (label, first_step, steps) in enumerate(chosen, start=1):
            # Each sign leaves other coordinates near 0, where float32 can tell the noise from the
            # start.
            start = silent_start(scenario, number % 2 == 0)
            reading = read_stretch(
                Course(site, scenario.model, plan, run), start, number, first_step, steps
            )
            readings[
                (
                    f"{label}, steps {first_step} to {first_step + steps - 1}, "
                    f"{site.file.name}, run {run}"
                )
            ] = reading
    return verdicts("noise of training", _questions(readings, scenario, generator), FALSE_ALARM)


def still_plan(scenario: Scenario, units: int) -> TrainingPlan:
    """Return the scenario's plan with steps so small that the state stays where it is, and the same noise.

        a_t' = f a_t;   langevin: tau' = f tau n / n';   temperature: tau' = tau / f

    for n units of the scenario's site, n' = UNITS.
    """
    plan, privacy = own_plan(scenario, pre_noise=0.0), scenario.privacy
    assert isinstance(privacy, PrivacyPlan)
    push = (
        solve_plan(plan, units).noise_multipliers
        * privacy.clip_norm
        / (privacy.sampling_rate * UNITS)
    )
    farthest = planned_step_sizes(plan) * (1.0 if plan.sampler.rescales else push)
    factor = MOVE / float(farthest.max())
    temperature = privacy.temperature
    if temperature is not None:
        temperature *= 1 / factor if privacy.coupling == "temperature" else factor * units / UNITS
    sizes = plan.sampler.step_size
    still = with_step_size(plan, sizes.model_copy(update={"initial": sizes.initial * factor}))
    private = plan.privacy.model_copy(
        update={"temperature": temperature, "delta": min(privacy.delta, 0.5 / UNITS)}
    )
    return still.model_copy(update={"privacy": private})


def silent_site(folder: Path, scenario: Scenario, *, delta: float) -> CanarySite:
    """Write a site of black records of class 0, fewer than it declares."""
    task = scenario.data.source.task
    names = [f"unit-{number}" for number in range(HELD)]
    records = CanaryRecords(
        task, np.zeros((HELD, *task.input_shape), np.uint8), np.zeros(HELD, np.int64), names
    )
    return write_canary_site(folder, scenario, records, UNITS, delta=delta)


def state_size(scenario: Scenario) -> int:
    """Return the number d of the model's parameters."""
    return sum(
        math.prod(shape)
        for shape in model_shapes(scenario.model, scenario.data.source.task).values()
    )


def silent_start(scenario: Scenario, others: bool) -> dict[str, Array]:
    """Return a state in which records of class 0 have no gradient: its bias is large, or the `others` are small."""
    vector = np.full(state_size(scenario), START)
    # The last parameter is the output layer's bias; every record is of class 0.
    bias = vector[-scenario.data.source.task.classes :]
    if others:
        bias[1:] = -SILENT_LOGIT
    else:
        bias[0] = SILENT_LOGIT
    return {"parameters": vector, "spread": np.full(len(vector), START)}


def _stretches(plan: TrainingPlan, size: int) -> Iterator[tuple[str, int, int]]:
    length = plan.chain_steps
    edges = [0, length // 3, 2 * length // 3, length]
    singles = min(MOST_SINGLES, max(LEAST_SINGLES, math.ceil(NUMBERS / size)))
    for chain in sorted(
        {round(chain) for chain in np.linspace(0, plan.chains - 1, min(plan.chains, MOST_CHAINS))}
    ):
        for third, low, high in zip(THIRDS, edges[:-1], edges[1:], strict=True):
            label, steps = (
                f"chain {chain + 1} {third}",
                list(range(chain * length + low, chain * length + high)),
            )
            # The last third ends with single steps: the chain's very last is among them.
            alone = steps[:singles] if third != THIRDS[-1] else steps[-singles:]
            rest = steps[singles:] if third != THIRDS[-1] else steps[:-singles]
            yield from ((label, step, 1) for step in alone)
            if len(rest) > 1:
                yield label, rest[0], min(len(rest), LONGEST_STRETCH)


def _questions(
    readings: dict[str, Reading], scenario: Scenario, generator: np.random.Generator
) -> Questions:
    tested = {
        label: each.rounding < LARGEST_ROUNDING * each.noise_std for label, each in readings.items()
    }
    noise = {
        label: np.where(tested[label], each.mean / each.noise_std, 0.0)
        for label, each in readings.items()
    }
    common = np.logical_and.reduce(list(tested.values()))
    thirds: dict[str, list[str]] = {}
    for label in noise:
        thirds.setdefault(label.split(",")[0], []).append(label)
    # Where the steps of a stretch shared their noise, its deviations would add up instead of its
    # variances.
    together = [label for label, each in readings.items() if len(each.weights) > 1]
    thirds |= {"steps asked for together": together} if together else {}

    def pooled(where: str, labels: list[str]) -> Finding:
        squares = sum(float(noise[label] @ noise[label]) for label in labels)
        return variance_test(squares, sum(int(tested[label].sum()) for label in labels), where)

    early_middle_late, tensors = [pooled(*each) for each in thirds.items()], []
    for name, columns in noise_layout(scenario).items():
        numbers = sum(int(tested[label][columns].sum()) for label in noise)
        if numbers:
            tensors.append(
                variance_test(
                    sum(float(np.square(z[columns]).sum()) for z in noise.values()), numbers, name
                )
            )
    correlations = correlation_tests({label: z[common] for label, z in noise.items()})
    rows = np.stack([z[common] for z in noise.values()])
    resolution = np.stack(
        [2 * each.rounding[common] / each.noise_std for each in readings.values()]
    )
    questions = noise_questions(
        rows, tested_layout(noise_layout(scenario), common), {}, "the scenario's plan", generator
    )
    questions |= again_question(rows, resolution, "the scenario's plan", generator)
    return questions | {
        "noise has the accounted deviation, early, middle and late in every chain": early_middle_late,
        "noise has the accounted deviation in every single request": [
            pooled(label, [label]) for label in noise
        ],
        "noise has the accounted deviation on every tensor": tensors,
        "no two steps, rounds, chains, runs or sites share noise": correlations,
    }


def noise_layout(scenario: Scenario) -> dict[str, npt.NDArray[np.int64]]:
    """Return where the numbers of each tensor lie in what is read, in its own shape.

    Tensor -> places.
    """
    views = vector_views(
        torch.arange(state_size(scenario)), model_shapes(scenario.model, scenario.data.source.task)
    )
    columns = {name: view.numpy() for name, view in views.items()}
    if "spread" in scenario.sampler.position:
        columns |= {
            f"spread of {name}": each + state_size(scenario) for name, each in columns.items()
        }
    return columns
