"""One unit moves the sum by at most C beside others too, from starts that amplify rounding.

A server that knows what float32 rounds away can scale it up until one bit of a record's forward
pass turns that record's clipped gradient round. Where that bit depends on which records share the
batch, one unit moves many contributions.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fl_dpbayes.audit.crowd import RECORDS_PER_UNIT
from fl_dpbayes.audit.plans import private_settings
from fl_dpbayes.config import AnyOutcome, PrivacyPlan, Scenario
from fl_dpbayes.models import DropoutModule, VariationalModule, build_model, model_input_shape
from fl_dpbayes.outcomes import outcome_of
from fl_dpbayes.privacy.audit_statistics import Check
from fl_dpbayes.samplers import (
    BatchGradient,
    RecordLoss,
    TrainingRecords,
    build_algorithm,
    summed_cross_entropy,
)
from fl_dpbayes.schedules import ChainStreams

Array = npt.NDArray[np.float32]

# Numbers of units: where a pass of 16 rows follows one of 15, other rounding comes into play.
SIZES = (1, 15, 16)
# Of reading a difference of two sums.
TOLERANCE = 1e-5
LARGEST_INTEGER = 2**20
# A spread whose scale is 0 in float32, so that every weight draw is the mean.
NO_SPREAD = -200.0
START_STATES = 4


def audit_rounding(scenario: Scenario) -> list[Check]:
    """Test that one more unit moves the sum by at most C, from starts that amplify rounding.

    They are tried on the scenario's own model, sampler and pre-noise, through the sum that sites
    compute; clipping is flat.

    Args:
        scenario: To be audited.

    Returns:
        One check, over units of one record and of several.
    """
    task = scenario.data.source.task
    movements = {}
    for records in RECORDS_PER_UNIT:
        algorithm = build_algorithm(scenario.sampler, build_model(scenario.model, task, seed=0))
        movements[records] = worst_movement(
            module=algorithm.module,
            input_shape=model_input_shape(scenario.model, task),
            outcome=task.outcome,
            sizes=SIZES,
            loss=algorithm.record_loss(outcome_of(task.outcome).loss),
            records_per_unit=records,
            pre_noise=private_settings(scenario).pre_noise,
        )
    worst = max(movements, key=lambda records: movements[records])
    check = Check(
        part="rounding",
        what="one more unit moves the sum by at most C from start states that amplify rounding",
        value=movements[worst],
        limit=1 + TOLERANCE,
        where=f"units of {worst} record{'s'[: worst - 1]}",
        finds=f"more than C at {', '.join(map(str, SIZES))} units",
    )
    return [check]


def worst_movement(
    module: nn.Module,
    input_shape: tuple[int, ...],
    outcome: AnyOutcome,
    sizes: Sequence[int],
    *,
    loss: RecordLoss = summed_cross_entropy,
    records_per_unit: int = 1,
    pre_noise: float = 0.0,
) -> float:
    """Return how far one more unit moves the clipped sum under amplifying start states.

        max |G(n + 1) - G(n)| / C    over start states, sizes n, and the newcomer first and last

    through `BatchGradient`, which a site's chains run, at full batches and C = 1.

    Args:
        module: Its parameters are overwritten.
        input_shape: Of a record.
        outcome: Of the made-up records.
        sizes: Numbers n of units.
        loss: Minus the log likelihood of records, summed.
        records_per_unit: One or more.
        pre_noise: On each unit's gradient before the clip.

    Returns:
        The movement in clip norms; 1 is what is accounted.
    """
    privacy = PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=1.0, pre_noise=pre_noise)
    # Masks and noise are drawn record by record, so only a newcomer at the end leaves those of the
    # others alone.
    draws_by_record = isinstance(module, DropoutModule) or pre_noise > 0
    orders = (1,) if draws_by_record else (1, -1)
    counts = sorted({*sizes, *(size + 1 for size in sizes)})
    largest = 0.0
    for seed in range(START_STATES):
        generator = np.random.default_rng(seed)
        features = _draw_features(
            module=module,
            input_shape=input_shape,
            count=(max(sizes) + 1) * records_per_unit,
            generator=generator,
        )
        amplify(module, generator)
        labels = outcome.made_up(generator, len(features))
        for order in orders:
            totals: dict[int, Tensor] = {}
            for units in counts:
                rows = units * records_per_unit
                records = TrainingRecords(
                    features=np.ascontiguousarray(features[:rows][::order]),
                    targets=labels[:rows][::order].copy(),
                    unit_index=np.repeat(np.arange(units), records_per_unit),
                    loss=loss,
                )
                totals[units] = _clipped_total(module, records, privacy, max(sizes))
            for size in sizes:
                largest = max(largest, float((totals[size + 1] - totals[size]).norm()))
    return largest


def _clipped_total(
    module: nn.Module, records: TrainingRecords, privacy: PrivacyPlan, units: int
) -> Tensor:
    """Sum clipped gradients as a site does, always with the same draws."""
    streams = ChainStreams(
        sampling=np.random.default_rng(0),
        noise=np.random.default_rng(3),
        pre_noise=np.random.default_rng(1),
        model=np.random.default_rng(2),
    )
    batch_gradient = BatchGradient(module, records, privacy, units, streams)
    return batch_gradient().total.double()


def amplify(module: nn.Module, generator: np.random.Generator) -> None:
    """Overwrite a module's parameters so that its logits are rounding errors of float32, scaled up.

    Several layers: one of them has units (or channels) w, u and w + u of positive integers, the
    next their sum h_0 + h_1 - h_2 and its negative, the layers behind carry both on, and those in
    front are positive integers. One layer: weights of equal columns cancel. Modules of other parts
    get random integers.

    Args:
        module: Changed in place.
        generator: Draws the integers and the layer.
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
            layers[0].weight[0] = _cancelling_weights(layers[0].weight[0].numel(), generator)
        elif wide:
            _cancel_behind(layers, int(generator.choice(wide)), generator)
        else:
            for value in module.parameters():
                value.copy_(_random_integers(value, -LARGEST_INTEGER, generator))


def _layers(module: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def _cancel_behind(
    layers: list[nn.Linear | nn.Conv2d], number: int, generator: np.random.Generator
) -> None:
    """Give a layer three units of which the third is the sum of two, and cancel them behind it."""
    for layer in layers[:number]:
        layer.weight.copy_(_random_integers(layer.weight, 1, generator))
    weight = layers[number].weight
    weight[0] = _random_integers(weight[0], 1, generator)
    weight[1] = _random_integers(weight[1], 1, generator)
    weight[2] = weight[0] + weight[1]
    # Source unit -> its share in the first unit of the next layer; the second gets the negative.
    shares = {0: 1.0, 1: 1.0, 2: -1.0}
    for previous, layer in pairwise(layers[number:]):
        sources = len(previous.weight)
        for unit, sign in ((0, 1.0), (1, -1.0)):
            for source, share in shares.items():
                if unit < len(layer.weight) and source < sources:
                    _connect(
                        layer=layer, sources=sources, unit=unit, source=source, value=sign * share
                    )
        shares = {0: 1.0, 1: -1.0}


def _random_integers(like: Tensor, low: int, generator: np.random.Generator) -> Tensor:
    integers = generator.integers(low, LARGEST_INTEGER + 1, tuple(like.shape))
    return torch.from_numpy(integers).to(like)


def _connect(
    layer: nn.Linear | nn.Conv2d, sources: int, unit: int, source: int, value: float
) -> None:
    if isinstance(layer, nn.Conv2d):
        _, channels, height, width = layer.weight.shape
        layer.weight[unit, source % channels, height // 2, width // 2] = value
    else:
        # Behind a convolution every channel has a block of columns, one for each of its pixels.
        block = max(1, layer.in_features // sources)
        layer.weight[unit, source * block : (source + 1) * block] = value


def _cancelling_weights(size: int, generator: np.random.Generator) -> Tensor:
    weights = np.zeros(size, np.float32)
    half = size // 2
    weights[:half] = generator.integers(1, LARGEST_INTEGER, half)
    weights[half : 2 * half] = -weights[:half]
    return torch.from_numpy(weights).reshape(-1)


def _draw_features(
    module: nn.Module, input_shape: tuple[int, ...], count: int, generator: np.random.Generator
) -> Array:
    """Draw records; for a single layer their halves are equal, so that its weights cancel."""
    rows = generator.random((count, int(np.prod(input_shape))), dtype=np.float32)
    if len(_layers(module)) == 1:
        half = rows.shape[1] // 2
        rows[:, half : 2 * half] = rows[:, :half]
    return rows.reshape(-1, *input_shape)
