"""The noise of training, at records that stay silent: a site releases its start, prior and noise.

The plan is the scenario's own over its whole length, with step sizes so small that records stay
silent and the prior's pull stays what it is at the start; the couplings' temperature follows, so
that every sigma_t is the scenario's.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit.directions import noise_layout, state_size, tested_layout
from fl_dpbayes.audit.noise_questions import LARGEST_ROUNDING, again_question, noise_questions
from fl_dpbayes.audit.plans import own_plan, with_step_size
from fl_dpbayes.audit.reading import Course, read_mean, record
from fl_dpbayes.audit.requests import Stretch
from fl_dpbayes.audit.silent import UNITS, silent_site, silent_start
from fl_dpbayes.config import PrivacyPlan, Scenario, TrainingPlan
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
PLACE = "the scenario's plan"


@dataclass(frozen=True)
class PlacedSteps:
    """Steps that are asked for in one request.

    Attributes:
        place: The chain and the third of it that they belong to.
        first_step: Of the plan, from 0.
        steps: One or more.
    """

    place: str
    first_step: int
    steps: int


@dataclass(frozen=True)
class NoiseReading:
    """The noise of one request.

    Attributes:
        label: Its place, steps, site and run.
        place: As of its steps.
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
    requests = list(_requests(plan, state_size(scenario)))
    # Ten or more chains: their labels begin as that of the first, and are read again too.
    repeated = [steps for steps in requests if steps.place.startswith("chain 1")]
    readings = [
        *_read_noise(Course(first_site, scenario.model, plan, run=1), scenario, requests),
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


def _requests(plan: TrainingPlan, size: int) -> Iterator[PlacedSteps]:
    """Choose single steps of each third of each chain, and one longer stretch behind them."""
    length = plan.chain_steps
    edges = [0, length // 3, 2 * length // 3, length]
    singles = min(MOST_SINGLES, max(LEAST_SINGLES, math.ceil(NUMBERS / size)))
    spread_out = np.linspace(0, plan.chains - 1, min(plan.chains, MOST_CHAINS))
    for chain in sorted({round(number) for number in spread_out}):
        for third, low, high in zip(THIRDS, edges[:-1], edges[1:], strict=True):
            place = f"chain {chain + 1} {third}"
            steps = list(range(chain * length + low, chain * length + high))
            if third == THIRDS[-1]:
                # The chain's very last step is among the single ones.
                single_steps = steps[-singles:]
                longer = steps[:-singles]
            else:
                single_steps = steps[:singles]
                longer = steps[singles:]
            for step in single_steps:
                yield PlacedSteps(place, first_step=step, steps=1)
            if len(longer) > 1:
                most = min(len(longer), LONGEST_STRETCH)
                yield PlacedSteps(place, first_step=longer[0], steps=most)


def _read_noise(
    course: Course, scenario: Scenario, requests: Sequence[PlacedSteps]
) -> Iterator[NoiseReading]:
    for number, request in enumerate(requests, start=1):
        # Each sign leaves other coordinates near 0, where float32 can tell the noise from the
        # start.
        start = silent_start(scenario, low_biases=number % 2 == 0)
        stretch = Stretch(round_number=number, first_step=request.first_step, steps=request.steps)
        reading = read_mean(record(course, start, stretch))
        tested = reading.rounding < LARGEST_ROUNDING * reading.noise_std
        last_step = request.first_step + request.steps - 1
        yield NoiseReading(
            label=(
                f"{request.place}, steps {request.first_step} to {last_step}, "
                f"{course.site.file.name}, run {course.run}"
            ),
            place=request.place,
            noise=np.where(tested, reading.mean / reading.noise_std, 0.0),
            tested=tested,
            resolution=2 * reading.rounding / reading.noise_std,
            steps=len(reading.weights),
        )


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
    tested = np.logical_and.reduce([reading.tested for reading in readings])
    noise = np.stack([reading.noise[tested] for reading in readings])
    resolution = np.stack([reading.resolution[tested] for reading in readings])
    by_label = {reading.label: reading.noise[tested] for reading in readings}
    questions = noise_questions(noise, tested_layout(layout, tested), {}, PLACE, generator)
    questions |= again_question(noise, resolution, PLACE, generator)
    return questions | {
        "noise has the accounted deviation, early, middle and late in every chain": [
            finding for place, pooled in by_place.items() for finding in _variances(place, pooled)
        ],
        "noise has the accounted deviation in every single request": [
            finding for reading in readings for finding in _variances(reading.label, [reading])
        ],
        "noise has the accounted deviation on every tensor": [
            finding
            for name, places in layout.items()
            for finding in _variances(name, readings, places)
        ],
        "no two steps, rounds, chains, runs or sites share noise": correlation_tests(by_label),
    }


def _variances(
    where: str,
    readings: Sequence[NoiseReading],
    places: npt.NDArray[np.int64] | slice = slice(None),
) -> list[Finding]:
    """Test the deviation of the tested numbers of readings; nothing where none is tested."""
    numbers = sum(int(reading.tested[places].sum()) for reading in readings)
    if not numbers:
        return []
    squares = sum(float(np.square(reading.noise[places]).sum()) for reading in readings)
    return [variance_test(squares, numbers, where)]
