"""One unit moves the sum by at most C: alone, whatever its layers, draws or masks, and beside others."""

import math
from pathlib import Path

import numpy as np

from fl_dpbayes.config.clipping import GlobalClipping
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.models.build import build_model, model_input_shape
from fl_dpbayes.privacy.audit_statistics import Check, mean_test, verdicts
from fl_dpbayes.run.audit.amplification import worst_movement
from fl_dpbayes.run.audit.canary_site import CanaryRecords, canary_task, write_canary_site
from fl_dpbayes.run.audit.gradients import (
    clip_norm_for,
    reaching_start,
    synthetic_records,
    tensor_lengths,
    unit_gradient,
)
from fl_dpbayes.run.audit.reading import Course, loud_plan, own_plan, private_settings, read_all
from fl_dpbayes.samplers.algorithm import build_algorithm
from fl_dpbayes.samplers.gradients.loss import summed_cross_entropy

FALSE_ALARM = 1e-5
RECORDS_PER_UNIT = (1, 3)
REQUESTS = 4
NOISE = 0.01
# Weight draws of Bayes by backprop, so that gradients reach its spreads too.
SPREAD = -3.0
# Share of C by which float32 may lengthen a sum as it is read.
SLACK = 1e-3
# Numbers of units: where a pass of 16 rows follows one of 15, other rounding comes into play.
SIZES = (1, 15, 16)
# Of reading a difference of two sums.
TOLERANCE = 1e-5


def audit_alone(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test that one unit alone moves the sum by at most the clip norm.

        |y|^2 - d sigma^2 = |clip(g)|^2 / C^2 + noise of standard deviation sigma sqrt(2 d sigma^2 + 4)

    C is chosen below the gradient's length in every tensor, so that clipping each apart gives a longer sum. Units of
    one record and of several are checked; `generator` draws the record and the start state.
    """
    task = canary_task(scenario)
    levels, labels = synthetic_records(task, generator, 1)
    start = reaching_start(scenario, folder, generator, levels, labels)
    gradient = unit_gradient(scenario, folder, start, levels[0], int(labels[0]))
    rule = private_settings(scenario).clipping
    lengths = tensor_lengths(gradient, scenario)
    length = float(np.linalg.norm(gradient)) if isinstance(rule, GlobalClipping) else min(lengths)
    plan = loud_plan(
        own_plan(scenario),
        clip_norm=clip_norm_for(private_settings(scenario), length),
        sampling_rate=1.0,
        noise_multiplier=NOISE,
        move=1.0,
        rounds=REQUESTS,
        steps_per_round=1,
    )
    findings = []
    for records in RECORDS_PER_UNIT:
        site = write_canary_site(
            folder / f"alone-{records}",
            scenario,
            CanaryRecords(task, levels.repeat(records, axis=0), labels.repeat(records), ["unit-1"] * records),
            units=1,
        )
        course = Course(site, scenario.model, plan, 1)
        vectors = {"parameters": start, "spread": np.full(len(start), SPREAD)}
        sums = [reading.mean for reading in read_all(course, vectors, 1)]
        size = len(sums[0])
        squared = float(np.mean([y @ y for y in sums])) - size * NOISE**2
        deviation = NOISE * math.sqrt((2 * size * NOISE**2 + 4) / len(sums))
        where = f"a unit of {records} record{'s'[: records - 1]}, {math.sqrt(max(0.0, squared)):.4g} C"
        findings.append(mean_test(squared - 1, deviation, where, unit=1.0, slack=SLACK, one_sided=True))
    return verdicts("one unit", {"one unit moves the sum by at most C, all layers together": findings}, FALSE_ALARM)


def audit_rounding(scenario: Scenario) -> list[Check]:
    """Attack by start states that amplify rounding: one more unit must move the clipped sum by at most the clip norm.

    They are tried on the scenario's own model, sampler and pre-noise, through the sum that sites compute; clipping is
    flat. The check is over units of one record and of several.
    """
    task, moves = canary_task(scenario), {}
    for records in RECORDS_PER_UNIT:
        algorithm = build_algorithm(scenario.sampler, build_model(scenario.model, task, seed=0))
        moves[records] = worst_movement(
            algorithm.module,
            model_input_shape(scenario.model, task),
            task.classes,
            SIZES,
            loss=algorithm.record_loss(summed_cross_entropy),
            records_per_unit=records,
            pre_noise=private_settings(scenario).pre_noise,
        )
    worst = max(moves, key=lambda records: moves[records])
    return [
        Check(
            "rounding",
            "one more unit moves the sum by at most C from start states that amplify rounding",
            moves[worst],
            1 + TOLERANCE,
            "at most",
            f"units of {worst} record{'s'[: worst - 1]}",
            f"more than C at {', '.join(map(str, SIZES))} units",
        )
    ]
