"""The attack that makes rounding large: start states under which logits are nothing but rounding errors.

A server that knows what float32 rounds away can scale it up until one bit of a record's forward pass turns that
record's clipped gradient round. Where that bit depends on who else is in the batch, one unit moves many contributions.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from fl_dpbayes.samplers.planned import ChainStreams

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

    through `BatchGradient`, which a site's chains run, at full batches and C = 1.

    `input_shape`: shape of one record. `sizes`: numbers of units n, each >= 1. `records_per_unit`: records of every
    unit. `pre_noise`: noise on each unit's gradient before the clip. Returns the largest movement; 1 is what is
    accounted.
    """
    largest, privacy = 0.0, PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=1.0, pre_noise=pre_noise)
    # Masks and noise are drawn record by record, so only a newcomer at the end leaves those of the others alone.
    orders = (False,) if isinstance(module, DropoutModule) or pre_noise > 0 else (False, True)
    for seed in range(START_STATES):
        generator = np.random.default_rng(seed)
        records = _records(module, input_shape, max(sizes) + 1, records_per_unit, generator)
        amplify(module, input_shape, generator)
        labels = generator.integers(0, classes, len(records))
        for newcomer_first in orders:
            rows = slice(None, None, -1 if newcomer_first else 1)
            totals: dict[int, Tensor] = {}
            for size in sorted({n + extra for n in sizes for extra in (0, 1)}):
                count = size * records_per_unit
                some = TrainingRecords(
                    np.ascontiguousarray(records[:count][rows]),
                    np.ascontiguousarray(labels[:count][rows]),
                    np.repeat(np.arange(size), records_per_unit),
                    loss,
                )
                streams = ChainStreams(*map(np.random.default_rng, (0, 3, 1, 2)))
                gradient = BatchGradient(module, some, privacy, max(sizes), streams)
                totals[size] = gradient().total.double()
            moves = [float((totals[n + 1] - totals[n]).norm()) for n in sizes]
            largest = max(largest, *moves)
    return largest


def amplify(module: nn.Module, input_shape: tuple[int, ...], generator: np.random.Generator) -> None:
    """Overwrite a module's parameters so that its logits are rounding errors of float32, scaled up.

    Several layers: one of them has units (or channels) w, u and w + u of positive integers, the next their sum
    h_0 + h_1 - h_2 and its negative, the layers behind carry both on, and those in front are positive integers. One
    layer: weights of equal columns cancel. Modules of other parts get random integers.

    `input_shape`: shape of one record.
    """
    if isinstance(module, VariationalModule):
        for value in module.spread.parameters():
            value.data.fill_(NO_SPREAD)
        return amplify(module.mean, input_shape, generator)
    with torch.no_grad():
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
    return None


def _layers(module: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def _cancel_behind(layers: list[nn.Linear | nn.Conv2d], number: int, generator: np.random.Generator) -> None:
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
    return torch.from_numpy(generator.integers(low, LARGEST_INTEGER + 1, tuple(like.shape))).to(like)


def _connect(layer: nn.Linear | nn.Conv2d, sources: int, unit: int, source: int, value: float) -> None:
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
    module: nn.Module, input_shape: tuple[int, ...], units: int, each: int, generator: np.random.Generator
) -> Array:
    rows = generator.random((units * each, int(np.prod(input_shape))), dtype=np.float32)
    if len(_layers(module)) == 1:
        half = rows.shape[1] // 2
        rows[:, half : 2 * half] = rows[:, :half]
    return rows.reshape(-1, *input_shape)
