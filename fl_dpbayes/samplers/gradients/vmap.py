"""Gradients of any module without cross-example operations, by `torch.func`: of records, units, and clipped sums."""

from itertools import starmap

import torch
from torch import nn
from torch.func import grad, vjp

from fl_dpbayes.config import FLAT, Clipping
from fl_dpbayes.models import ROWS, called, pieces, trainable_parameters
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.samplers.gradients.clipping import ClippedSum, add_up, clip_and_sum
from fl_dpbayes.samplers.gradients.contribution import LayerGradients, formed_gradients
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy

# Materialised gradients take at most 128 MiB at a time, and 32 MiB where they are of more than 160
# rows.
_MAX_ELEMENTS, _CHEAP_ELEMENTS, _MANY_ROWS = 2**25, 2**23, 160


def per_example_blocks(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    loss: RecordLoss = summed_cross_entropy,
) -> dict[str, torch.Tensor]:
    """Return the gradient of each record's loss by each parameter, (N, size), float32, by `named_parameters()`'s names.

    `module`: without cross-example operations. The others are those of `book_keeping.clipped_sum`.
    """
    parameters = {
        name: parameter.detach() for name, parameter in trainable_parameters(module).items()
    }
    if len(targets) == 0:
        return {
            name: features.new_zeros((0, value.numel()), dtype=torch.float32)
            for name, value in parameters.items()
        }

    def record_loss(
        values: dict[str, torch.Tensor], record: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        return loss(called(module, values, record[None]), target[None])

    gradients = mapped(grad(record_loss), parameters, features, targets, in_dims=(None, 0, 0))
    return {name: gradients[name].flatten(1).float() for name in parameters}


def per_example_gradients(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    loss: RecordLoss = summed_cross_entropy,
) -> torch.Tensor:
    """Return `per_example_blocks` side by side, shape (N, d)."""
    return torch.cat(list(per_example_blocks(module, features, targets, loss).values()), dim=1)


def mapped_gradients(
    layer: nn.Module, inputs: torch.Tensor, output_gradients: torch.Tensor
) -> list[LayerGradients]:
    """Return what one layer of any kind, with all below it, has for gradients: of each layer that owns parameters."""
    parameters = {name: value.detach() for name, value in trainable_parameters(layer).items()}

    def pulled_back(row: torch.Tensor, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
        pull = vjp(lambda values: called(layer, values, row[None])[0], parameters)[1]
        return pull(gradient)[0]

    gradients = mapped(pulled_back, inputs, output_gradients)
    return list(
        map(
            formed_gradients,
            by_layer({name: gradients[name].flatten(1).float() for name in parameters}),
        )
    )


def per_unit_gradients(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    unit_index: torch.Tensor,
    units: int,
    loss: RecordLoss = summed_cross_entropy,
    rows: int = ROWS,
) -> torch.Tensor:
    """Return the gradient of each unit, shape (U, d), float32: the sum over its records, as `per_example_gradients`.

    `unit_index` has the unit of each record, 0 .. U - 1, shape (N,), int64. A unit with one record
    that is not finite has a gradient that is not finite, and is discarded whole by the clip.
    """
    # What padding has for a gradient goes to a unit of its own, after the others.
    gradients = features.new_zeros((units + 1, sum(layer_sizes(module))), dtype=torch.float32)
    for part, part_targets, owners, number in pieces(rows, features, targets, unit_index):
        owners = torch.where(torch.arange(rows, device=owners.device) < number, owners, units)
        gradients.index_add_(0, owners, per_example_gradients(module, part, part_targets, loss))
    return gradients[:units]


def fitting_rows(module: nn.Module) -> int:
    """Return how many rows a pass may have whose gradients are materialised and take at most 128 MiB; may be 0."""
    size = max(1, sum(layer_sizes(module)))
    return max(_CHEAP_ELEMENTS // size, min(_MAX_ELEMENTS // size, _MANY_ROWS))


def layer_sizes(module: nn.Module) -> list[int]:
    """Count the trainable entries of each layer (a module that owns parameters), in the order of the flat vector."""
    blocks = by_layer(
        {name: parameter[None] for name, parameter in trainable_parameters(module).items()}
    )
    return [sum(block.numel() for block in layer) for layer in blocks]


def by_layer(blocks: dict[str, torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group what belongs to parameters by the layers that own them."""
    layers: dict[str, list[torch.Tensor]] = {}
    for name, block in blocks.items():
        layers.setdefault(name.rpartition(".")[0], []).append(block)
    return list(layers.values())


def clipped_sum(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    *,
    clip_norm: float,
    clipping: Clipping = FLAT,
    loss: RecordLoss = summed_cross_entropy,
    rows: int = ROWS,
) -> ClippedSum:
    """Sum clipped gradients as `book_keeping.clipped_sum`, materialising gradients."""

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, number: int) -> ClippedSum:
        layers = map(
            formed_gradients, by_layer(per_example_blocks(module, part, part_targets, loss))
        )
        return clip_and_sum(list(layers), clip_norm, clipping, number)

    return add_up(module, features.device, starmap(piece_sum, pieces(rows, features, targets)))
