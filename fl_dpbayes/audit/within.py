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

from fl_dpbayes.audit.canary_site import DELTA
from fl_dpbayes.audit.crowd import Crowd, write_crowd
from fl_dpbayes.audit.directions import noise_layout, state_size, tested_layout
from fl_dpbayes.audit.low_bits import covered_bits, low_bit_questions
from fl_dpbayes.audit.noise_questions import (
    LARGEST_ROUNDING,
    again_question,
    beside_questions,
    noise_questions,
)
from fl_dpbayes.audit.plans import loud_plan, own_plan
from fl_dpbayes.audit.reading import (
    Course,
    Recording,
    Steps,
    read_steps,
    record_all,
    shows_every_step,
)
from fl_dpbayes.audit.silent import silent_site, silent_start
from fl_dpbayes.config import Scenario
from fl_dpbayes.privacy.audit_statistics import Check, Questions, verdicts

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
# By how much the small moves may change a sum of gradients, in deviations of the noise.
SLACK = 0.03
# By how much float32 may change what a state holds beside its position, over that vector's length.
LARGEST_MOMENT_DIFFERENCE = 0.05


@dataclass(frozen=True)
class Situation:
    """A site and how it is asked.

    Attributes:
        name: In words.
        crowd: The site, and what is known of its units; of silent ones there is no group.
        rate: q, in (0, 1].
    """

    name: str
    crowd: Crowd
    rate: float


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
    known = write_crowd(scenario, folder / "known", generator, groups=GROUPS, units=GROUPS)
    few = write_crowd(scenario, folder / "few", generator, groups=GROUPS, units=CROWD)
    situations = [
        _silent_situation(scenario, folder / "silent"),
        Situation("known gradients", known, rate=1.0),
        Situation("few units join", few, rate=FEW_RATE),
    ]
    questions: Questions = {}
    sample_differences = []
    moment_differences = []
    for run, situation in enumerate(situations, start=1):
        recordings = _record(scenario, situation, run)
        steps = read_steps(recordings)
        sample_differences += [recording.sample_difference for recording in recordings]
        moment_differences.append(steps.moment_difference)
        for what, findings in _questions(scenario, situation, steps, generator).items():
            questions[what] = questions.get(what, []) + findings
    checks = verdicts(PART, questions, FALSE_ALARM)
    checks.append(
        Check(
            part=PART,
            what="a kept sample is the released state, to the last bit",
            value=float(np.max(sample_differences)),
            limit=0.0,
            finds="one bit",
        )
    )
    if scenario.sampler.moments:
        checks.append(
            Check(
                part=PART,
                what="momentum and moments in a state follow from its noisy sums",
                value=float(np.max(moment_differences)),
                limit=LARGEST_MOMENT_DIFFERENCE,
                finds=f"a difference of {LARGEST_MOMENT_DIFFERENCE:.0%}",
            )
        )
    return checks


def _questions(
    scenario: Scenario, situation: Situation, steps: Steps, generator: np.random.Generator
) -> Questions:
    """Ask everything of the noise in one situation; directions are drawn after its answers."""
    tested: npt.NDArray[np.bool_] = np.all(steps.resolution < LARGEST_ROUNDING, axis=0)
    resolution = steps.resolution[:, tested]
    name = situation.name
    crowd = situation.crowd
    gradients = crowd.shares[:, tested]
    questions: Questions = {}
    if steps.states.size:
        questions = low_bit_questions(
            states=steps.states[:, tested],
            bits=covered_bits(resolution),
            covered=steps.covered[:, tested],
            labels=crowd.labels,
            where=name,
        )
    if situation.rate < 1 and len(gradients):
        return questions | beside_questions(steps.sums[:, tested], gradients, name)
    noise = steps.sums[:, tested] - crowd.sizes @ gradients / NOISE
    directions = {f"gradient {number + 1}": gradient for number, gradient in enumerate(gradients)}
    directions["the start state"] = np.resize(crowd.start["parameters"], len(tested))[tested]
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


def _record(scenario: Scenario, situation: Situation, run: int) -> list[Recording]:
    plan = own_plan(scenario, pre_noise=0.0)
    crowd = situation.crowd
    size = len(crowd.start["parameters"])
    length = 1
    rounds = SINGLE_STEPS
    if shows_every_step(plan):
        steps = max(LEAST_STEPS, math.ceil(NUMBERS / size), min(SPANNING * size, MOST_SPANNING))
        steps = max(FEWEST_STEPS, min(steps, MOST_NUMBERS // size))
        rounds = math.ceil(steps / LONGEST_REQUEST)
        length = math.ceil(steps / rounds)
    loud = loud_plan(
        plan,
        clip_norm=crowd.clip_norm,
        sampling_rate=situation.rate,
        noise_multiplier=NOISE,
        move=MOVE * crowd.site.file.units / NOISE,
        rounds=rounds,
        steps_per_round=length,
    )
    course = Course(site=crowd.site, model=scenario.model, plan=loud, run=run)
    return record_all(course, crowd.start, length)


def _silent_situation(scenario: Scenario, folder: Path) -> Situation:
    plan = own_plan(scenario)
    crowd = Crowd(
        site=silent_site(folder, scenario, delta=DELTA),
        start=silent_start(scenario, low_biases=False),
        labels=np.zeros(1, np.int64),
        clip_norm=plan.privacy.noise_unit,
        sizes=np.zeros(0),
        shares=np.zeros((0, state_size(scenario) * len(plan.sampler.position))),
    )
    return Situation("silent records", crowd, rate=plan.privacy.sampling_rate)
