"""Gradients of privacy units that hold several records, such as patients."""

import torch
from torch import nn

from fl_dpbayes.models.rows import ROWS, pieces
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.gradients.vmap import layer_sizes, per_example_gradients


def per_unit_gradients(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    unit_index: torch.Tensor,
    units: int,
    loss: RecordLoss = summed_cross_entropy,
    rows: int = ROWS,
) -> torch.Tensor:
    """Return the gradient of each unit: the sum over its records of the gradient of the loss.

    A unit with one record that is not finite has a gradient that is not finite, and is discarded whole by the clip.

    Args:
        module: features (N, *shape) -> outputs (N, ...), no cross-example operation.
        features: records, shape (N, *shape), of the module's type and device.
        targets: classes (int64) or values (float32), shape (N,).
        unit_index: unit of each record, 0 .. units - 1, shape (N,), int64, on the features' device.
        units: number of units U in the batch.
        loss: sum over records of the loss whose gradient is taken.
        rows: how many rows every pass has.

    Returns:
        Shape (U, d), float32.
    """
    # What padding has for a gradient goes to a unit of its own, after the others.
    gradients = features.new_zeros((units + 1, sum(layer_sizes(module))), dtype=torch.float32)
    for part, part_targets, part_index, real in pieces(rows, features, targets, unit_index):
        owners = torch.where(real, part_index, units)
        gradients.index_add_(0, owners, per_example_gradients(module, part, part_targets, loss))
    return gradients[:units]
