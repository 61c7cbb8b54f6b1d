"""One unit moves the sum by at most C: alone, whatever its layers, draws or masks, and beside others.

A server that knows what float32 rounds away can scale it up until one bit of a record's forward
pass turns that record's clipped gradient round. Where that bit depends on who else is in the batch,
one unit moves many contributions.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fl_dpbayes.audit import gradients
from fl_dpbayes.audit.canary_site import CanaryRecords, write_canary_site
from fl_dpbayes.audit.reading import Course, loud_plan, own_plan, private_settings, read_all
from fl_dpbayes.config import GlobalClipping, PrivacyPlan, Scenario
from fl_dpbayes.models import DropoutModule, VariationalModule, build_model, model_input_shape
from fl_dpbayes.privacy.audit_statistics import Check, mean_test, verdicts
from fl_dpbayes.samplers import (
    BatchGradient,
    RecordLoss,
    TrainingRecords,
    build_algorithm,
    summed_cross_entropy,
)
from fl_dpbayes.schedules import ChainStreams

Array = npt.NDArray[np.float32]

LARGEST_INTEGER = 2**20
# A spread whose scale is 0 in float32, so that every weight draw is the mean.
NO_SPREAD = -200.0
START_STATES = 4


def worst_movement(
    module: nn.Module,
    input_shape: tuple[int, ...],
    classes: int,
    sizes: Sequence[int],
    *,
    loss: RecordLoss = summed_cross_entropy,
    records_per_unit: int = 1,
    pre_noise: float = 0.0,
) -> float:
    """Return how far one more unit moves the clipped sum under amplifying start states, in clip norms.

        max |G(n + 1) - G(n)| / C    over start states, sizes n, and the newcomer first and last

    through `BatchGradient`, which a site's chains run, at full batches and C = 1; 1 is what is
    accounted. `pre_noise`: on each unit's gradient before the clip.
    """
    largest, privacy = (
        0.0,
        PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=1.0, pre_noise=pre_noise),
    )
    # Masks and noise are drawn record by record, so only a newcomer at the end leaves those of the
    # others alone.
    orders = (False,) if isinstance(module, DropoutModule) or pre_noise > 0 else (False, True)
    for seed in range(START_STATES):
        generator = np.random.default_rng(seed)
        records = _records(module, input_shape, max(sizes) + 1, records_per_unit, generator)
        amplify(module, generator)
        labels = generator.integers(0, classes, len(records))
        for newcomer_first in orders:
            rows = slice(None, None, -1 if newcomer_first else 1)
            totals: dict[int, Tensor] = {}
            for size in sorted({n + extra for n in sizes for extra in (0, 1)}):
                count = size * records_per_unit
                shown, told = (
                    np.ascontiguousarray(records[:count][rows]),
                    np.ascontiguousarray(labels[:count][rows]),
                )
                some = TrainingRecords(
                    shown, told, np.repeat(np.arange(size), records_per_unit), loss
                )
                streams = ChainStreams(*map(np.random.default_rng, (0, 3, 1, 2)))
                totals[size] = BatchGradient(
                    module, some, privacy, max(sizes), streams
                )().total.double()
            largest = max(largest, *[float((totals[n + 1] - totals[n]).norm()) for n in sizes])
    return largest


def amplify(module: nn.Module, generator: np.random.Generator) -> None:
    """Overwrite a module's parameters so that its logits are rounding errors of float32, scaled up.

    Several layers: one of them has units (or channels) w, u and w + u of positive integers, the
    next their sum h_0 + h_1 - h_2 and its negative, the layers behind carry both on, and those in
    front are positive integers. One layer: weights of equal columns cancel. Modules of other parts
    get random integers.
    """
    with torch.no_grad():
        if isinstance(module, VariationalModule):
            for value in module.spread.parameters():
                value.fill_(NO_SPREAD)
            module = module.mean
        for value in module.parameters():
            value.zero_()
        layers = _layers(module)
        wide = [number for number, layer in enumerate(layers[:-1]) if len(layer.weight) >= 3]
        if len(layers) == 1:
            layers[0].weight[0] = _cancelling(layers[0].weight[0].numel(), generator)
        elif wide:
            _cancel_behind(layers, int(generator.choice(wide)), generator)
        else:
            for value in module.parameters():
                value.copy_(_integers(value, -LARGEST_INTEGER, generator))


def _layers(module: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def _cancel_behind(
    layers: list[nn.Linear | nn.Conv2d], number: int, generator: np.random.Generator
) -> None:
    for layer in layers[:number]:
        layer.weight.copy_(_integers(layer.weight, 1, generator))
    weight = layers[number].weight
    weight[0], weight[1] = (_integers(weight[0], 1, generator) for _ in range(2))
    weight[2] = weight[0] + weight[1]
    signs = {0: 1.0, 1: 1.0, 2: -1.0}
    for before, layer in pairwise(layers[number:]):
        for unit, sign in ((0, 1.0), (1, -1.0)):
            for source, share in signs.items():
                if unit < len(layer.weight) and source < len(before.weight):
                    _connect(layer, len(before.weight), unit, source, sign * share)
        signs = {0: 1.0, 1: -1.0}


def _integers(like: Tensor, low: int, generator: np.random.Generator) -> Tensor:
    return torch.from_numpy(generator.integers(low, LARGEST_INTEGER + 1, tuple(like.shape))).to(
        like
    )


def _connect(
    layer: nn.Linear | nn.Conv2d, sources: int, unit: int, source: int, value: float
) -> None:
    if isinstance(layer, nn.Conv2d):
        _, _, height, width = layer.weight.shape
        layer.weight[unit, source % layer.weight.shape[1], height // 2, width // 2] = value
    else:
        # Behind a convolution every channel has a block of columns, one for each of its pixels.
        block = max(1, layer.in_features // sources)
        layer.weight[unit, source * block : (source + 1) * block] = value


def _cancelling(size: int, generator: np.random.Generator) -> Tensor:
    weights = np.zeros(size, np.float32)
    half = size // 2
    weights[:half] = generator.integers(1, LARGEST_INTEGER, half)
    weights[half : 2 * half] = -weights[:half]
    return torch.from_numpy(weights).reshape(-1)


def _records(
    module: nn.Module,
    input_shape: tuple[int, ...],
    units: int,
    each: int,
    generator: np.random.Generator,
) -> Array:
    rows = generator.random((units * each, int(np.prod(input_shape))), dtype=np.float32)
    if len(_layers(module)) == 1:
        half = rows.shape[1] // 2
        rows[:, half : 2 * half] = rows[:, :half]
    return rows.reshape(-1, *input_shape)


FALSE_ALARM = 5e-6
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

    C is chosen below the gradient's length in every tensor, so that clipping each apart gives a
    longer sum.
    """
    task = scenario.data.source.task
    levels, labels = gradients.synthetic_records(task, generator, 1)
    record = levels[0], int(labels[0])
    start = gradients.reaching_start(scenario, folder, generator, *record)
    gradient = gradients.unit_gradient(scenario, folder, start, *record)
    rule = private_settings(scenario).clipping
    lengths = gradients.tensor_lengths(gradient, scenario)
    length = float(np.linalg.norm(gradient)) if isinstance(rule, GlobalClipping) else min(lengths)
    plan = loud_plan(
        own_plan(scenario),
        clip_norm=gradients.clip_norm_for(private_settings(scenario), length),
        sampling_rate=1.0,
        noise_multiplier=NOISE,
        move=1.0,
        rounds=REQUESTS,
        steps_per_round=1,
    )
    findings, vectors = [], {"parameters": start, "spread": np.full(len(start), SPREAD)}
    for records in RECORDS_PER_UNIT:
        unit = CanaryRecords(
            task, levels.repeat(records, axis=0), labels.repeat(records), ["unit-1"] * records
        )
        site = write_canary_site(folder / f"alone-{records}", scenario, unit, units=1)
        sums = [
            reading.mean for reading in read_all(Course(site, scenario.model, plan, 1), vectors, 1)
        ]
        size = len(sums[0])
        squared = float(np.mean([y @ y for y in sums])) - size * NOISE**2
        deviation = NOISE * math.sqrt((2 * size * NOISE**2 + 4) / len(sums))
        where = (
            f"a unit of {records} record{'s'[: records - 1]}, {math.sqrt(max(0.0, squared)):.4g} C"
        )
        findings.append(
            mean_test(squared - 1, deviation, where, unit=1.0, slack=SLACK, one_sided=True)
        )
    return verdicts(
        "one unit",
        {"one unit moves the sum by at most C, all layers together": findings},
        FALSE_ALARM,
    )


def audit_rounding(scenario: Scenario) -> list[Check]:
    """Attack by start states that amplify rounding: one more unit must move the clipped sum by at most the clip norm.

    They are tried on the scenario's own model, sampler and pre-noise, through the sum that sites
    compute; clipping is flat. The check is over units of one record and of several.
    """
    task, moves = scenario.data.source.task, {}
    for records in RECORDS_PER_UNIT:
        algorithm = build_algorithm(scenario.sampler, build_model(scenario.model, task, seed=0))
        moves[records] = worst_movement(
            algorithm.module,
            model_input_shape(scenario.model, task),
            task.classes,
            SIZES,
            records_per_unit=records,
            loss=algorithm.record_loss(summed_cross_entropy),
            pre_noise=private_settings(scenario).pre_noise,
        )
    worst = max(moves, key=lambda records: moves[records])
    what = "one more unit moves the sum by at most C from start states that amplify rounding"
    where, finds = (
        f"units of {worst} record{'s'[: worst - 1]}",
        f"more than C at {', '.join(map(str, SIZES))} units",
    )
    return [Check("rounding", what, moves[worst], 1 + TOLERANCE, "at most", where, finds)]
