"""One unit by itself moves the sum by at most C, whatever its layers or draws."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit import gradients
from fl_dpbayes.audit.canary_site import CanaryRecords, write_canary_site
from fl_dpbayes.audit.crowd import RECORDS_PER_UNIT
from fl_dpbayes.audit.plans import loud_plan, own_plan, private_settings
from fl_dpbayes.audit.reading import Course, read_mean, record_all
from fl_dpbayes.config import GlobalClipping, Scenario
from fl_dpbayes.privacy.audit_statistics import Check, Finding, mean_test, verdicts

FALSE_ALARM = 5e-6
REQUESTS = 4
NOISE = 0.01
# Weight draws of Bayes by backprop, so that gradients reach its spreads too.
SPREAD = -3.0
# Share of C by which float32 may lengthen a sum as it is read.
SLACK = 1e-3


def audit_one_unit(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test that one unit by itself moves the sum by at most the clip norm.

        |y|^2 - d sigma^2 = |clip(g)|^2 / C^2 + noise
        standard deviation of the noise: sigma sqrt(2 d sigma^2 + 4)

    C is chosen below the gradient's length in every tensor, so that clipping each apart gives a
    longer sum.

    Args:
        scenario: Whose model, sampler and clipping are tested.
        folder: To write the sites into.
        generator: Draws the record and the start state.

    Returns:
        One check, over units of one record and of several.

    Raises:
        UserError: If no start lets gradients reach every layer.
    """
    task = scenario.data.source.task
    privacy = private_settings(scenario)
    levels, labels = gradients.synthetic_records(task, generator, 1)
    label = int(labels[0])
    start = gradients.reaching_start(scenario, folder, generator, levels[0], label)
    gradient = gradients.unit_gradient(scenario, folder, start, levels[0], label)
    if isinstance(privacy.clipping, GlobalClipping):
        length = float(np.linalg.norm(gradient))
    else:
        length = min(gradients.tensor_lengths(gradient, scenario))
    plan = loud_plan(
        own_plan(scenario),
        clip_norm=gradients.clip_norm_for(privacy, length),
        sampling_rate=1.0,
        noise_multiplier=NOISE,
        move=1.0,
        rounds=REQUESTS,
        steps_per_round=1,
    )
    vectors = {"parameters": start, "spread": np.full(len(start), SPREAD)}
    findings = []
    for records in RECORDS_PER_UNIT:
        site = write_canary_site(
            folder / f"alone-{records}",
            scenario,
            CanaryRecords(
                task=task,
                features=levels.repeat(records, axis=0),
                labels=labels.repeat(records),
                units=["unit-1"] * records,
            ),
            units=1,
        )
        course = Course(site=site, model=scenario.model, plan=plan, run=1)
        sums = [read_mean(recording).mean for recording in record_all(course, vectors, 1)]
        findings.append(_length_finding(sums, records))
    return verdicts(
        "one unit",
        {"one unit moves the sum by at most C, all layers together": findings},
        FALSE_ALARM,
    )


def _length_finding(sums: list[npt.NDArray[np.float64]], records: int) -> Finding:
    """Test that the squared length of noisy sums of one unit, in clip norms, is at most 1."""
    size = len(sums[0])
    squared = float(np.mean([y @ y for y in sums])) - size * NOISE**2
    deviation = NOISE * math.sqrt((2 * size * NOISE**2 + 4) / len(sums))
    length = math.sqrt(max(0.0, squared))
    where = f"a unit of {records} record{'s'[: records - 1]}, {length:.4g} C"
    return mean_test(squared - 1, deviation, where, unit=1.0, slack=SLACK, one_sided=True)
