"""The noise within a request: its law, every direction of it, and what its numbers have in common.

Every step of long requests is read off the samples that they keep, at three sites: of records that
stay silent, of units whose clipped gradients the auditor knows, and of units of which few join a
batch.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit import gradients as auditor
from fl_dpbayes.audit.canary_site import DELTA, CanaryRecords, CanarySite, write_canary_site
from fl_dpbayes.audit.low_bits import covered_bits, low_bit_questions
from fl_dpbayes.audit.noise import (
    LARGEST_ROUNDING,
    noise_layout,
    silent_site,
    silent_start,
    state_size,
)
from fl_dpbayes.audit.noise_questions import (
    again_question,
    beside_questions,
    noise_questions,
    tested_layout,
)
from fl_dpbayes.audit.reading import Course, loud_plan, own_plan
from fl_dpbayes.audit.steps import Steps, read_requests, shows_every_step
from fl_dpbayes.config import Scenario
from fl_dpbayes.privacy.audit_statistics import Check, Questions, verdicts

Array = npt.NDArray[np.float64]

FALSE_ALARM = 2e-5
PART = "noise within a request"
NOISE = 1.0
# Numbers of noise that are asked for, and steps, of large models fewer.
NUMBERS = 20_000
LEAST_STEPS = 600
MOST_NUMBERS = 2_000_000
FEWEST_STEPS = 64
# Half of so many steps for each number of a small state span all directions: one without noise is
# then found.
SPANNING = 4
MOST_SPANNING = 1000
LONGEST_REQUEST = 300
# Requests of one step each, where kept samples are not the chain's positions.
SINGLE_STEPS = 64
# How far noise moves a number in one step: its start and the gradients stay what they are.
MOVE = 1e-5
# Units of which few join: a batch of 2 on average, and none at all in every ninth.
CROWD = 20
FEW_RATE = 0.1
GROUPS = 2
# Scale of weight draws, before the softplus, that makes each draw the mean.
NO_SPREAD = -20.0
# By how much the small moves may change a sum of gradients, in deviations of the noise.
SLACK = 0.03
# By how much float32 may change what a state holds beside its position, over that vector's length.
LARGEST_MOMENT_DIFFERENCE = 0.05


@dataclass(frozen=True)
class Situation:
    """A site and how it is asked.

    Attributes:
        name: In words.
        site: That trains.
        start: State of every request, name -> vector of shape (d,).
        labels: Of its records, as far as an auditor looks for them in last bits.
        clip_norm: C.
        rate: q, in (0, 1].
        gradients: Its units' clipped gradients over C, shape (units, d).
    """

    name: str
    site: CanarySite
    start: dict[str, Array]
    labels: npt.NDArray[np.int64]
    clip_norm: float
    rate: float
    gradients: Array


def audit_within(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test the noise of every step of long requests in three situations.

    Records are silent, their gradients are known, or few units join.

    Args:
        scenario: Whose sampler, model and clipping are tested.
        folder: To write the sites into.
        generator: Draws records and start states, and later directions to look along.

    Returns:
        A check for each question, over all situations.

    Raises:
        UserError: If no start lets gradients reach every layer.
    """
    questions: Questions = {}
    sample_difference = 0.0
    moment_difference = 0.0
    for number, situation in enumerate(_situations(scenario, folder, generator), start=1):
        steps = _read_steps(scenario, situation, number)
        sample_difference = max(sample_difference, steps.sample_difference)
        moment_difference = max(moment_difference, steps.moment_difference)
        for what, findings in situation_questions(scenario, situation, steps, generator).items():
            questions[what] = questions.get(what, []) + findings
    checks = verdicts(PART, questions, FALSE_ALARM)
    checks.append(
        Check(
            part=PART,
            what="a kept sample is the released state, to the last bit",
            value=sample_difference,
            limit=0.0,
            relation="at most",
            finds="one bit",
        )
    )
    if set(scenario.sampler.state_vectors) - set(scenario.sampler.position):
        checks.append(
            Check(
                part=PART,
                what="momentum and moments in a state follow from its noisy sums",
                value=moment_difference,
                limit=LARGEST_MOMENT_DIFFERENCE,
                relation="at most",
                finds=f"a difference of {LARGEST_MOMENT_DIFFERENCE:.0%}",
            )
        )
    return checks


def situation_questions(
    scenario: Scenario, situation: Situation, steps: Steps, generator: np.random.Generator
) -> Questions:
    """Ask everything of the noise in one situation.

    Args:
        scenario: Whose model decides where tensors lie.
        situation: That the steps were read in.
        steps: As the site released them.
        generator: Draws directions, after the site has answered.

    Returns:
        Findings by question.
    """
    tested: npt.NDArray[np.bool_] = np.all(steps.resolution < LARGEST_ROUNDING, axis=0)
    resolution = steps.resolution[:, tested]
    name = situation.name
    gradients = situation.gradients
    questions: Questions = {}
    if steps.states.size:
        questions = low_bit_questions(
            states=steps.states[:, tested],
            bits=covered_bits(resolution),
            covered=steps.covered[:, tested],
            labels=situation.labels,
            where=name,
        )
    if situation.rate < 1 and len(gradients):
        return questions | beside_questions(steps.sums[:, tested], gradients[:, tested], name)
    noise = steps.sums[:, tested] - gradients[:, tested].sum(axis=0) / NOISE
    directions = {
        f"gradient {number + 1}": gradient[tested] for number, gradient in enumerate(gradients)
    }
    directions["the start state"] = np.resize(situation.start["parameters"], len(tested))[tested]
    questions |= noise_questions(
        noise=noise,
        layout=tested_layout(noise_layout(scenario), tested),
        directions=directions,
        name=name,
        generator=generator,
        slack=SLACK if len(gradients) else 0.0,
    )
    # With gradients the state is far from 0, and float32 too coarse for it.
    if not len(gradients):
        questions |= again_question(noise, resolution, name, generator)
    return questions


def _read_steps(scenario: Scenario, situation: Situation, run: int) -> Steps:
    plan = own_plan(scenario, pre_noise=0.0)
    size = len(situation.start["parameters"])
    length = 1
    rounds = SINGLE_STEPS
    if shows_every_step(plan):
        steps = max(LEAST_STEPS, math.ceil(NUMBERS / size), min(SPANNING * size, MOST_SPANNING))
        steps = max(FEWEST_STEPS, min(steps, MOST_NUMBERS // size))
        rounds = math.ceil(steps / LONGEST_REQUEST)
        length = math.ceil(steps / rounds)
    loud = loud_plan(
        plan,
        clip_norm=situation.clip_norm,
        sampling_rate=situation.rate,
        noise_multiplier=NOISE,
        move=MOVE * situation.site.file.units / NOISE,
        rounds=rounds,
        steps_per_round=length,
    )
    course = Course(site=situation.site, model=scenario.model, plan=loud, run=run)
    return read_requests(course, situation.start, length)


def _situations(
    scenario: Scenario, folder: Path, generator: np.random.Generator
) -> list[Situation]:
    return [
        _silent_situation(scenario, folder / "silent"),
        _gradient_situation(
            scenario,
            folder / "known",
            generator,
            name="known gradients",
            units_of_group=1,
            rate=1.0,
        ),
        _gradient_situation(
            scenario,
            folder / "few",
            generator,
            name="few units join",
            units_of_group=CROWD // GROUPS,
            rate=FEW_RATE,
        ),
    ]


def _silent_situation(scenario: Scenario, folder: Path) -> Situation:
    plan = own_plan(scenario, pre_noise=0.0)
    return Situation(
        name="silent records",
        site=silent_site(folder, scenario, delta=DELTA),
        start=silent_start(scenario, low_biases=False),
        labels=np.zeros(1, np.int64),
        clip_norm=plan.privacy.noise_unit,
        rate=plan.privacy.sampling_rate,
        gradients=np.zeros((0, state_size(scenario) * len(plan.sampler.position))),
    )


def _gradient_situation(
    scenario: Scenario,
    folder: Path,
    generator: np.random.Generator,
    *,
    name: str,
    units_of_group: int,
    rate: float,
) -> Situation:
    """Write a site of GROUPS kinds of units whose clipped gradients the auditor knows."""
    task = scenario.data.source.task
    plan = own_plan(scenario, pre_noise=0.0)
    levels, labels = auditor.synthetic_records(task, generator, GROUPS)
    # Masks of hidden units are the site's own secret: from a zero start they reach no gradient.
    if plan.sampler.needs_hidden_units:
        start = auditor.start_vector(scenario.model, task, generator, 0.0)
    else:
        start = auditor.reaching_start(scenario, folder, generator, levels[0], int(labels[0]))
    gradients = [
        auditor.unit_gradient(scenario, folder, start, levels[group], int(labels[group]))
        for group in range(GROUPS)
    ]
    longest = max(float(np.linalg.norm(gradient)) for gradient in gradients)
    clip_norm = auditor.clip_norm_for(plan.privacy, longest)
    has_spread = "spread" in plan.sampler.position
    clipped = np.stack(
        [
            auditor.clipped(gradient, scenario, clip_norm, spread=has_spread)
            for gradient in gradients
        ]
    )
    rows = np.repeat(np.arange(GROUPS), units_of_group)
    records = CanaryRecords(
        task=task,
        features=levels[rows],
        labels=labels[rows],
        units=[f"unit-{number}" for number in range(len(rows))],
    )
    return Situation(
        name=name,
        site=write_canary_site(folder / "site", scenario, records, units=len(rows)),
        start={"parameters": start, "spread": np.full(len(start), NO_SPREAD)},
        labels=labels[rows],
        clip_norm=clip_norm,
        rate=rate,
        gradients=clipped / clip_norm,
    )
