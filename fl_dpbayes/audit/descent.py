"""Recalibration by descent: whose gradients its sums hold, and how much noise they have."""

import itertools
import math

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit.canary_site import ask
from fl_dpbayes.audit.noise_questions import (
    Release,
    law_questions,
    mean_noise_std,
    noise_of,
    place_tests,
)
from fl_dpbayes.audit.parts import RECORDS_PER_UNIT, UNITS, PartedSite
from fl_dpbayes.calibration import recalibrate
from fl_dpbayes.config import recalibration as config
from fl_dpbayes.data import recalibration_units
from fl_dpbayes.privacy.audit_statistics import Questions, mean_test, variance_test
from fl_dpbayes.protocol import RecalibrateReply

Array = npt.NDArray[np.float64]

# Numbers of noise that a descent is tested on, as far as the stretches suffice.
NUMBERS = 800
# Stretches of each length.
MOST_STRETCHES = 40
STRETCH_LENGTHS = (1, 4)
EPSILON = 400.0
RUN = 1000
# Of the central differences.
DIFFERENCE = 1e-5
# Share by which the small moves may change a sum of gradients.
SLACK = 0.01


def descent_questions(parted: PartedSite) -> Questions:
    """Read the noisy sums of short stretches of a descent from 0 and test them.

    Units of the recalibration part pull against those of the others.

    Args:
        parted: The site that is asked.

    Returns:
        Findings by question.
    """
    section = parted.scenario.recalibration
    if not isinstance(section, config.Recalibration):
        section = config.Recalibration(method="vector")
    outcome = parted.scenario.data.source.task.outcome
    count = config.parameter_count(section.method, outcome)
    gradients = {
        part: RECORDS_PER_UNIT
        * _gradient(section, count, probabilities=parted.predictions[part], label=label)
        for part, label in parted.labels.items()
    }
    gradient = gradients["recalibration"]
    clip_norm = 0.7 * min(float(np.linalg.norm(values)) for values in gradients.values())
    stretches = min(MOST_STRETCHES, math.ceil(NUMBERS / len(gradient) / len(STRETCH_LENGTHS)))
    lengths = STRETCH_LENGTHS * stretches
    plan = _descent_plan(parted, section, clip_norm, 2 * sum(lengths))
    ends = [0, *itertools.accumulate(lengths)]
    releases = [
        _descend(parted, plan, first_step=first, last_step=last, parameters=len(gradient))
        for first, last in itertools.pairwise(ends)
    ]
    along = gradient / float(np.linalg.norm(gradient))
    noise = noise_of(releases, UNITS * along)
    deviations = []
    differences = []
    for number, length in enumerate(STRETCH_LENGTHS):
        rows = noise[number :: len(STRETCH_LENGTHS)]
        where = f"requests of {length} steps"
        squares = float(np.square(rows).sum())
        deviations.append(variance_test(squares, rows.size, where, slack=SLACK))
        even_rows = len(rows) // 2 * 2
        difference = rows[0:even_rows:2] - rows[1:even_rows:2]
        # A difference of two has twice the variance.
        squares = float(np.square(difference).sum()) / 2
        differences.append(
            variance_test(squares, difference.size, f"differences of {where}", slack=SLACK)
        )
    amount = mean_test(
        float(np.mean([release.sums @ along for release in releases])) - UNITS,
        mean_noise_std([release.noise_std for release in releases]),
        "sums of clipped gradients",
        unit=float(UNITS),
        slack=SLACK * UNITS,
    )
    return {
        "reads the units of the recalibration part, each clipped once, and no other": [amount],
        "noise has the accounted deviation, within a request and across": deviations,
        # What requests had in common would be missing from the difference of two.
        "no two requests in a row share noise": differences,
        "noise has the accounted deviation in every parameter": [place_tests(noise, "parameter")],
        **law_questions(noise, "all requests"),
    }


def _descent_plan(
    parted: PartedSite, section: config.Recalibration, clip_norm: float, steps: int
) -> config.RecalibrationPlan:
    """Return a plan of steps too small to move the gradients."""
    plan = config.recalibration_plan(section, parted.scenario.privacy)
    assert isinstance(plan, config.RecalibrationPlan)
    return plan.model_copy(
        update={
            "epsilon": EPSILON,
            "delta": parted.delta,
            "clip_norm": clip_norm,
            "steps": steps,
            "rounds": 1,
            "step_size": 1e-3 / clip_norm,
        }
    )


def _gradient(section: config.Recalibration, count: int, probabilities: Array, label: int) -> Array:
    """Return the gradient of -log of the recalibrated probability at 0, by central differences."""

    def loss(parameters: Array) -> float:
        mapping = config.RecalibrationMap(
            method=section.method, parameters=tuple(parameters.tolist())
        )
        return -math.log(recalibrate(probabilities[None], mapping)[0, label])

    moves = DIFFERENCE * np.eye(count)
    return np.array([(loss(move) - loss(-move)) / (2 * DIFFERENCE) for move in moves])


def _descend(
    parted: PartedSite,
    plan: config.RecalibrationPlan,
    *,
    first_step: int,
    last_step: int,
    parameters: int,
) -> Release:
    """Have the site descend from 0 and read the mean noisy sum, over C, off the parameters.

    y = -theta n / (C sum a_k) = G / C + sum a_k sigma xi_k / sum a_k
    """
    requests = parted.requests
    request = requests.recalibrate(
        RUN,
        plan,
        first_step=first_step,
        steps=last_step - first_step,
        parameters=parameters,
    )
    site = parted.site
    reply, _ = ask(site, "train.recalibrate", request, requests.arrays, RecalibrateReply)
    assert reply.parameters is not None
    sizes = plan.step_size * (1 - np.arange(first_step, last_step) / plan.steps)
    scale = recalibration_units(site.file) / (float(sizes.sum()) * plan.clip_norm)
    noise_multiplier = reply.privacy.history[-1][0]
    return Release(
        sums=-scale * np.array(reply.parameters),
        noise_std=noise_multiplier * float(np.linalg.norm(sizes) / sizes.sum()),
    )
