"""Gradients of privacy units that hold several records, such as patients."""

import torch
from torch import nn

from fl_dpbayes.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.gradients.vmap import layer_sizes, per_example_gradients, records_per_chunk


def per_unit_gradients(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    unit_index: torch.Tensor,
    units: int,
    loss: RecordLoss = summed_cross_entropy,
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

    Returns:
        Shape (U, d), float32.
    """
    chunk = records_per_chunk(module)
    gradients = features.new_zeros((units, sum(layer_sizes(module))), dtype=torch.float32)
    parts = zip(features.split(chunk), targets.split(chunk), unit_index.split(chunk), strict=True)
    for part, part_targets, part_index in parts:
        gradients.index_add_(0, part_index, per_example_gradients(module, part, part_targets, loss))
    return gradients
