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
from fl_dpbayes.config import Scenario, TrainingPlan
from fl_dpbayes.privacy import Check, Questions, verdicts

Array = npt.NDArray[np.float64]

FALSE_ALARM = 2e-5
PART = "noise within a request"
NOISE = 1.0
# Numbers of noise that are asked for, and steps, of large models fewer.
NUMBERS, LEAST_STEPS, MOST_NUMBERS, FEWEST_STEPS = 20_000, 600, 2_000_000, 64
# Half of so many steps for each number of a small state span all directions: one without noise is
# then found.
SPANNING, MOST_SPANNING = 4, 1000
REQUEST = 300
# Requests of one step each, where kept samples are not the chain's positions.
ALONE = 64
# How far noise moves a number in one step: its start and the gradients stay what they are.
MOVE = 1e-5
# Units of which few join: a batch of 2 on average, and none at all in every ninth.
CROWD, FEW_RATE = 20, 0.1
GROUPS = 2
# By how much the small moves may change a sum of gradients, in deviations of the noise.
SLACK = 0.03
# By how much float32 may change what a state holds beside its position, over that vector's length.
LARGEST_REST = 0.05


@dataclass(frozen=True)
class Situation:
    """A site and how it is asked: `gradients` are its units' clipped gradients over C, (units, d)."""

    name: str
    site: CanarySite
    start: dict[str, Array]
    labels: npt.NDArray[np.int64]
    clip_norm: float
    rate: float
    gradients: Array


def audit_within(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test the noise of every step of long requests, silent, with known gradients, and where few units join."""
    questions: Questions = {}
    apart = 0.0
    rest = 0.0
    for number, situation in enumerate(_situations(scenario, folder, generator), start=1):
        steps = _read(scenario, situation, number)
        apart = max(apart, steps.apart)
        rest = max(rest, steps.moment_difference)
        asked = situation_questions(scenario, situation, steps, generator)
        for what, findings in asked.items():
            questions[what] = questions.get(what, []) + findings
    checks = verdicts(PART, questions, FALSE_ALARM)
    what = "a kept sample is the released state, to the last bit"
    checks.append(Check(PART, what, apart, 0.0, "at most", finds="one bit"))
    if set(scenario.sampler.state_vectors) - set(scenario.sampler.position):
        what = "momentum and moments in a state follow from its noisy sums"
        checks.append(
            Check(
                PART,
                what,
                rest,
                LARGEST_REST,
                "at most",
                finds=f"a difference of {LARGEST_REST:.0%}",
            )
        )
    return checks


def situation_questions(
    scenario: Scenario, situation: Situation, steps: Steps, generator: np.random.Generator
) -> Questions:
    """Ask everything of the noise in one situation.

    Directions are drawn by `generator` after the site has answered.
    """
    tested: npt.NDArray[np.bool_] = np.all(steps.resolution < LARGEST_ROUNDING, axis=0)
    resolution = steps.resolution[:, tested]
    name = situation.name
    questions: Questions = {}
    if steps.states.size:
        bits = covered_bits(resolution)
        covered = steps.covered[:, tested]
        questions = low_bit_questions(
            steps.states[:, tested], bits, covered, situation.labels, name
        )
    known = situation.gradients
    if situation.rate < 1 and len(known):
        return questions | beside_questions(steps.sums[:, tested], known[:, tested], name)
    noise = steps.sums[:, tested] - known[:, tested].sum(axis=0) / NOISE
    layout = tested_layout(noise_layout(scenario), tested)
    directions = {f"gradient {number + 1}": each[tested] for number, each in enumerate(known)}
    directions["the start state"] = np.resize(situation.start["parameters"], len(tested))[tested]
    slack = SLACK if len(known) else 0.0
    questions |= noise_questions(noise, layout, directions, name, generator, slack=slack)
    # With gradients the state is far from 0, and float32 too coarse for it.
    if not len(known):
        questions |= again_question(noise, resolution, name, generator)
    return questions


def _read(scenario: Scenario, situation: Situation, run: int) -> Steps:
    plan = own_plan(scenario, pre_noise=0.0)
    size = len(situation.start["parameters"])
    length = 1
    rounds = ALONE
    if shows_every_step(plan):
        steps = max(LEAST_STEPS, math.ceil(NUMBERS / size), min(SPANNING * size, MOST_SPANNING))
        steps = max(FEWEST_STEPS, min(steps, MOST_NUMBERS // size))
        rounds = math.ceil(steps / REQUEST)
        length = math.ceil(steps / rounds)
    asked = _plan(plan, situation, rounds, length)
    return read_requests(
        Course(situation.site, scenario.model, asked, run), situation.start, length
    )


def _plan(plan: TrainingPlan, situation: Situation, rounds: int, length: int) -> TrainingPlan:
    return loud_plan(
        plan,
        clip_norm=situation.clip_norm,
        sampling_rate=situation.rate,
        noise_multiplier=NOISE,
        move=MOVE * situation.site.file.units / NOISE,
        rounds=rounds,
        steps_per_round=length,
    )


def _situations(
    scenario: Scenario, folder: Path, generator: np.random.Generator
) -> list[Situation]:
    plan = own_plan(scenario, pre_noise=0.0)
    size = state_size(scenario)
    silent = silent_site(folder / "silent", scenario, delta=DELTA)
    nothing = np.zeros((0, size * len(plan.sampler.position)))
    quiet = Situation(
        name="silent records",
        site=silent,
        start=silent_start(scenario, low_biases=False),
        labels=np.zeros(1, np.int64),
        clip_norm=plan.privacy.noise_unit,
        rate=plan.privacy.sampling_rate,
        gradients=nothing,
    )
    return [
        quiet,
        _loud(scenario, folder / "known", generator, 1),
        _loud(scenario, folder / "few", generator, CROWD),
    ]


def _loud(
    scenario: Scenario, folder: Path, generator: np.random.Generator, of_group: int
) -> Situation:
    model, task = scenario.model, scenario.data.source.task
    plan = own_plan(scenario, pre_noise=0.0)
    levels, labels = auditor.synthetic_records(task, generator, GROUPS)
    # Masks of hidden units are the site's own secret: from a zero start they reach no gradient.
    if plan.sampler.needs_hidden_units:
        start = auditor.start_vector(model, task, generator, 0.0)
    else:
        start = auditor.reaching_start(scenario, folder, generator, levels[0], int(labels[0]))
    each = [
        auditor.unit_gradient(scenario, folder, start, levels[g], int(labels[g]))
        for g in range(GROUPS)
    ]
    clip_norm = auditor.clip_norm_for(
        plan.privacy, max(float(np.linalg.norm(gradient)) for gradient in each)
    )
    bayes = "spread" in plan.sampler.position
    shares = (
        np.stack(
            [auditor.clipped(gradient, scenario, clip_norm, spread=bayes) for gradient in each]
        )
        / clip_norm
    )
    few = of_group > 1
    rows = np.repeat(np.arange(GROUPS), of_group // GROUPS if few else 1)
    names = [f"unit-{number}" for number in range(len(rows))]
    held = CanaryRecords(task, levels[rows], labels[rows], names)
    site = write_canary_site(folder / "site", scenario, held, units=len(rows))
    return Situation(
        name="few units join" if few else "known gradients",
        site=site,
        start={"parameters": start, "spread": np.full(len(start), -20.0)},
        labels=labels[rows],
        clip_norm=clip_norm,
        rate=FEW_RATE if few else 1.0,
        gradients=shares,
    )
