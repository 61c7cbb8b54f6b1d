"""Gradients of records and units, and their clipped sums, by `torch.func`.

They are exact for any module without cross-example operations.
"""

from functools import partial

import torch
from torch import nn
from torch.func import grad, vjp

from fl_dpbayes.models import ROWS, called, pieces, trainable_parameters
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.samplers.gradients.clipping import sum_in_passes
from fl_dpbayes.samplers.gradients.contribution import LayerGradients, formed_gradients
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy

# Most entries of gradients that are materialised at a time: 128 MiB, and 32 MiB where they are of
# more than 160 rows.
_MOST_ENTRIES = 2**25
_CHEAP_ENTRIES = 2**23
_MANY_ROWS = 160


def per_example_blocks(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    loss: RecordLoss = summed_cross_entropy,
) -> dict[str, torch.Tensor]:
    """Return the gradient of each record's loss by each parameter.

    Args:
        module: Without cross-example operations.
        features: Of the module's type and device, shape (N, *shape).
        targets: Classes (int64) or values (float32), shape (N,).
        loss: Summed over records.

    Returns:
        Gradients by the names of `named_parameters()`, shape (N, size) each, float32.
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
    """Return the gradient of each record's loss, shape (N, d), float32, as `per_example_blocks`."""
    blocks = per_example_blocks(module, features, targets, loss=loss)
    return torch.cat(list(blocks.values()), dim=1)


def mapped_gradients(
    layer: nn.Module, inputs: torch.Tensor, output_gradients: torch.Tensor
) -> list[LayerGradients]:
    """Return the gradients of one layer of any kind, with all below it.

    Args:
        layer: A module that owns trainable parameters.
        inputs: What it was given, shape (N, ...).
        output_gradients: Of the summed loss at its output, shape (N, ...).

    Returns:
        Of each module within it that owns parameters, in order.
    """
    parameters = {name: value.detach() for name, value in trainable_parameters(layer).items()}

    def pulled_back(row: torch.Tensor, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
        pull = vjp(lambda values: called(layer, values, row[None])[0], parameters)[1]
        return pull(gradient)[0]

    gradients = mapped(pulled_back, inputs, output_gradients)
    blocks = {name: gradients[name].flatten(1).float() for name in parameters}
    return [formed_gradients(layer_blocks) for layer_blocks in by_layer(blocks)]


def per_unit_gradients(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    unit_index: torch.Tensor,
    units: int,
    loss: RecordLoss = summed_cross_entropy,
    rows: int = ROWS,
) -> torch.Tensor:
    """Return the gradient of each unit: the sum over its records.

    A unit with one record that is not finite has a gradient that is not finite, and is discarded
    whole by the clip.

    Args:
        module: Without cross-example operations.
        features: Of the module's type and device, shape (N, *shape).
        targets: Classes (int64) or values (float32), shape (N,).
        unit_index: Unit of each record, 0 .. U - 1, shape (N,), int64.
        units: U.
        loss: Summed over records.
        rows: How many every pass has.

    Returns:
        Shape (U, d), float32.
    """
    # What padding has for a gradient goes to a unit of its own, after the others.
    gradients = features.new_zeros((units + 1, sum(layer_sizes(module))), dtype=torch.float32)
    for part, part_targets, owners, count in pieces(rows, features, targets, unit_index):
        is_record = torch.arange(rows, device=owners.device) < count
        owners = torch.where(is_record, owners, units)
        gradients.index_add_(
            0, owners, per_example_gradients(module, part, part_targets, loss=loss)
        )
    return gradients[:units]


def fitting_rows(module: nn.Module) -> int:
    """Return how many rows a pass may have whose gradients take at most 128 MiB; may be 0."""
    size = max(1, sum(layer_sizes(module)))
    return max(_CHEAP_ENTRIES // size, min(_MOST_ENTRIES // size, _MANY_ROWS))


def layer_sizes(module: nn.Module) -> list[int]:
    """Count the trainable entries of each layer, in the order of the flat vector.

    A layer is a module that owns parameters.
    """
    blocks = by_layer(
        {name: parameter[None] for name, parameter in trainable_parameters(module).items()}
    )
    return [sum(block.numel() for block in layer) for layer in blocks]


def by_layer(blocks: dict[str, torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group what belongs to parameters by the layers that own them.

    Args:
        blocks: By the names of `named_parameters()`.

    Returns:
        The blocks of each layer, in order.
    """
    layers: dict[str, list[torch.Tensor]] = {}
    for name, block in blocks.items():
        layer_name = name.rpartition(".")[0]
        layers.setdefault(layer_name, []).append(block)
    return list(layers.values())


def per_layer_gradients(
    module: nn.Module, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> list[LayerGradients]:
    """Return the gradient of each record's loss, by layer.

    Args:
        module: What is trained.
        features: Of the module's type and device, shape (P, *shape).
        targets: Classes (int64) or values (float32), shape (P,).
        loss: Summed over records.

    Returns:
        Gradients of each layer, in order.
    """
    blocks = by_layer(per_example_blocks(module, features, targets, loss=loss))
    return [formed_gradients(layer_blocks) for layer_blocks in blocks]


clipped_sum = partial(sum_in_passes, per_layer_gradients)
