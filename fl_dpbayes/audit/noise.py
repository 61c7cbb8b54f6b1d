"""The noise of training, at records that stay silent: a site releases its start, prior and noise.

The plan is the scenario's own over its whole length, with step sizes so small that records stay
silent and the prior's pull stays what it is at the start; the couplings' temperature follows, so
that every sigma_t is the scenario's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
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
UNITS = 20
HELD = 17
MOST_CHAINS = 8
THIRDS = ("early", "middle", "late")
# Numbers of noise that each third of each chain is tested on, one step at a time, as far as it has
# steps.
NUMBERS = 600
LEAST_SINGLES = 2
MOST_SINGLES = 24
LONGEST_STRETCH = 8
# How far a coordinate moves in a step.
MOVE = 1e-5
# Where it starts: far enough from 0 that a prior's gradient keeps its sign.
START = 2e-4
# exp(-10000) is zero in float32: a record of the favoured class has a gradient of exactly zero.
SILENT_LOGIT = 1e4
# Of a coordinate whose rounding reaches this share of its noise, the rounding would be tested, not
# the noise.
LARGEST_ROUNDING = 0.01
PLACE = "the scenario's plan"


@dataclass(frozen=True)
class Stretch:
    """Steps that are asked for in one request.

    Attributes:
        chain: From 0.
        third: Of the chain, of THIRDS.
        first_step: Of the plan, from 0.
        steps: One or more.
    """

    chain: int
    third: str
    first_step: int
    steps: int

    @property
    def place(self) -> str:
        """The part of the plan that it belongs to."""
        return f"chain {self.chain + 1} {self.third}"


@dataclass(frozen=True)
class NoiseReading:
    """The noise of one request.

    Attributes:
        label: Its place, steps, site and run.
        place: The part of the plan that its stretch belongs to.
        noise: N(0, 1) at a sound site, shape (d,), 0 where it is not tested.
        tested: Where rounding is small beside the noise, shape (d,).
        resolution: Distance of the numbers that float32 lets the noise take, shape (d,).
        steps: Of the request.
    """

    label: str
    place: str
    noise: Array
    tested: npt.NDArray[np.bool_]
    resolution: Array
    steps: int


def audit_noise(
    scenario: Scenario, folder: Path, units: int, generator: np.random.Generator
) -> list[Check]:
    """Test the noise of early, middle and late steps of every chain; no two releases may share any.

    Args:
        scenario: Whose plan is tested.
        folder: To write the sites into.
        units: n of the scenario's site.
        generator: Draws directions to look along, once all sites have answered.

    Returns:
        A check for each question.
    """
    plan = still_plan(scenario, units)
    first_site = silent_site(folder / "site-1", scenario, delta=plan.privacy.delta)
    second_site = silent_site(folder / "site-2", scenario, delta=plan.privacy.delta)
    stretches = list(_stretches(plan, state_size(scenario)))
    # Ten or more chains: their labels begin as that of the first, and are read again too.
    repeated = [stretch for stretch in stretches if stretch.place.startswith("chain 1")]
    readings = [
        *_read_noise(Course(first_site, scenario.model, plan, run=1), scenario, stretches),
        *_read_noise(Course(first_site, scenario.model, plan, run=2), scenario, repeated),
        *_read_noise(Course(second_site, scenario.model, plan, run=1), scenario, repeated),
    ]
    questions = _questions(readings, scenario, generator)
    return verdicts("noise of training", questions, FALSE_ALARM)


def still_plan(scenario: Scenario, units: int) -> TrainingPlan:
    """Return the scenario's plan with the same noise and steps too small to move the state.

        a_t' = f a_t;   langevin: tau' = f tau n / n';   temperature: tau' = tau / f

    for n units of the scenario's site, n' = UNITS.

    Args:
        scenario: Whose plan it is.
        units: n > 0.

    Returns:
        The plan for a site of UNITS units.
    """
    plan = own_plan(scenario, pre_noise=0.0)
    privacy = scenario.privacy
    assert isinstance(privacy, PrivacyPlan)
    farthest = planned_step_sizes(plan)
    if not plan.sampler.rescales:
        sigmas = solve_plan(plan, units).noise_multipliers
        farthest = farthest * (sigmas * privacy.clip_norm / (privacy.sampling_rate * UNITS))
    factor = MOVE / float(farthest.max())
    temperature = privacy.temperature
    if temperature is not None:
        temperature *= 1 / factor if privacy.coupling == "temperature" else factor * units / UNITS
    schedule = plan.sampler.step_size
    small_steps = schedule.model_copy(update={"initial": schedule.initial * factor})
    still_privacy = plan.privacy.model_copy(
        update={"temperature": temperature, "delta": min(privacy.delta, 0.5 / UNITS)}
    )
    return with_step_size(plan, small_steps).model_copy(update={"privacy": still_privacy})


def silent_site(folder: Path, scenario: Scenario, *, delta: float) -> CanarySite:
    """Write a site of black records of class 0, fewer than it declares.

    Args:
        folder: To write it into.
        scenario: Whose task it has.
        delta: Of its ledger.

    Returns:
        A site of HELD units that declares UNITS.
    """
    task = scenario.data.source.task
    records = CanaryRecords(
        task=task,
        features=np.zeros((HELD, *task.input_shape), np.uint8),
        labels=np.zeros(HELD, np.int64),
        units=[f"unit-{number}" for number in range(HELD)],
    )
    return write_canary_site(folder, scenario, records, UNITS, delta=delta)


def state_size(scenario: Scenario) -> int:
    """Return the number d of the model's parameters.

    Args:
        scenario: Whose model it is.

    Returns:
        d > 0.
    """
    shapes = model_shapes(scenario.model, scenario.data.source.task)
    return sum(math.prod(shape) for shape in shapes.values())


def silent_start(scenario: Scenario, *, low_biases: bool) -> dict[str, Array]:
    """Return a state in which records of class 0 have no gradient.

    Args:
        scenario: Whose model it is for.
        low_biases: Whether the biases of all classes but 0 are low; else that of class 0 is high.

    Returns:
        Parameters and spread, shape (d,) each.
    """
    vector = np.full(state_size(scenario), START)
    # The last parameter is the output layer's bias; every record is of class 0.
    bias = vector[-scenario.data.source.task.outcome.outputs :]
    if low_biases:
        bias[1:] = -SILENT_LOGIT
    else:
        bias[0] = SILENT_LOGIT
    return {"parameters": vector, "spread": np.full(len(vector), START)}


def noise_layout(scenario: Scenario) -> dict[str, npt.NDArray[np.int64]]:
    """Return where the numbers of each tensor lie in what is read.

    Args:
        scenario: Whose model and sampler decide.

    Returns:
        Tensor -> places, in its own shape.
    """
    size = state_size(scenario)
    shapes = model_shapes(scenario.model, scenario.data.source.task)
    views = vector_views(torch.arange(size), shapes)
    layout = {name: view.numpy() for name, view in views.items()}
    if "spread" in scenario.sampler.position:
        layout |= {f"spread of {name}": places + size for name, places in layout.items()}
    return layout


def _stretches(plan: TrainingPlan, size: int) -> Iterator[Stretch]:
    """Choose single steps of each third of each chain, and one longer stretch behind them."""
    length = plan.chain_steps
    edges = [0, length // 3, 2 * length // 3, length]
    singles = min(MOST_SINGLES, max(LEAST_SINGLES, math.ceil(NUMBERS / size)))
    spread_out = np.linspace(0, plan.chains - 1, min(plan.chains, MOST_CHAINS))
    for chain in sorted({round(number) for number in spread_out}):
        for third, low, high in zip(THIRDS, edges[:-1], edges[1:], strict=True):
            steps = list(range(chain * length + low, chain * length + high))
            if third == THIRDS[-1]:
                # The chain's very last step is among the single ones.
                single_steps = steps[-singles:]
                longer = steps[:-singles]
            else:
                single_steps = steps[:singles]
                longer = steps[singles:]
            for step in single_steps:
                yield Stretch(chain=chain, third=third, first_step=step, steps=1)
            if len(longer) > 1:
                yield Stretch(
                    chain=chain,
                    third=third,
                    first_step=longer[0],
                    steps=min(len(longer), LONGEST_STRETCH),
                )


def _read_noise(
    course: Course, scenario: Scenario, stretches: list[Stretch]
) -> Iterator[NoiseReading]:
    for number, stretch in enumerate(stretches, start=1):
        # Each sign leaves other coordinates near 0, where float32 can tell the noise from the
        # start.
        reading = read_stretch(
            course,
            silent_start(scenario, low_biases=number % 2 == 0),
            round_number=number,
            first_step=stretch.first_step,
            steps=stretch.steps,
        )
        yield _noise_reading(reading, course, stretch)


def _noise_reading(reading: Reading, course: Course, stretch: Stretch) -> NoiseReading:
    last_step = stretch.first_step + stretch.steps - 1
    tested = reading.rounding < LARGEST_ROUNDING * reading.noise_std
    return NoiseReading(
        label=(
            f"{stretch.place}, steps {stretch.first_step} to {last_step}, "
            f"{course.site.file.name}, run {course.run}"
        ),
        place=stretch.place,
        noise=np.where(tested, reading.mean / reading.noise_std, 0.0),
        tested=tested,
        resolution=2 * reading.rounding / reading.noise_std,
        steps=len(reading.weights),
    )


def _pooled_variance(where: str, readings: list[NoiseReading]) -> Finding:
    squares = sum(float(reading.noise @ reading.noise) for reading in readings)
    numbers = sum(int(reading.tested.sum()) for reading in readings)
    return variance_test(squares, numbers, where)


def _questions(
    readings: list[NoiseReading], scenario: Scenario, generator: np.random.Generator
) -> Questions:
    layout = noise_layout(scenario)
    by_place: dict[str, list[NoiseReading]] = {}
    for reading in readings:
        by_place.setdefault(reading.place, []).append(reading)
    # Where the steps of a stretch shared their noise, its deviations would add up instead of its
    # variances.
    together = [reading for reading in readings if reading.steps > 1]
    if together:
        by_place["steps asked for together"] = together
    tensors = []
    for name, places in layout.items():
        numbers = sum(int(reading.tested[places].sum()) for reading in readings)
        if numbers:
            squares = sum(float(np.square(reading.noise[places]).sum()) for reading in readings)
            tensors.append(variance_test(squares, numbers, name))
    tested = np.logical_and.reduce([reading.tested for reading in readings])
    noise = np.stack([reading.noise[tested] for reading in readings])
    resolution = np.stack([reading.resolution[tested] for reading in readings])
    by_label = {reading.label: reading.noise[tested] for reading in readings}
    questions = noise_questions(noise, tested_layout(layout, tested), {}, PLACE, generator)
    questions |= again_question(noise, resolution, PLACE, generator)
    return questions | {
        "noise has the accounted deviation, early, middle and late in every chain": [
            _pooled_variance(place, pooled) for place, pooled in by_place.items()
        ],
        "noise has the accounted deviation in every single request": [
            _pooled_variance(reading.label, [reading]) for reading in readings
        ],
        "noise has the accounted deviation on every tensor": tensors,
        "no two steps, rounds, chains, runs or sites share noise": correlation_tests(by_label),
    }
