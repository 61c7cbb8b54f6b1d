"""Gradients of privacy units that hold several records, such as patients."""

import torch
from torch import nn

from fl_dpbayes.gradients.vmap import per_example_gradients, records_per_chunk


def per_unit_gradients(
    module: nn.Module, features: torch.Tensor, labels: torch.Tensor, unit_index: torch.Tensor, units: int
) -> torch.Tensor:
    """Return the gradient of each unit: the sum over its records of the gradient of the cross-entropy.

    A unit with one record that is not finite has a gradient that is not finite, and is discarded whole by the clip.

    Args:
        module: features (N, *shape) -> logits (N, classes), no cross-example operation.
        features: records, shape (N, *shape), of the module's type and device.
        labels: shape (N,), int64.
        unit_index: unit of each record, 0 .. units - 1, shape (N,), int64, on the features' device.
        units: number of units U in the batch.

    Returns:
        Shape (U, d), float32.
    """
    size = records_per_chunk(module)
    chunks = zip(features.split(size), labels.split(size), unit_index.split(size), strict=True)
    first, *others = chunks
    gradients = _sum_by_unit(module, first, units)
    for chunk in others:
        gradients += _sum_by_unit(module, chunk, units)
    return gradients


def _sum_by_unit(module: nn.Module, chunk: tuple[torch.Tensor, torch.Tensor, torch.Tensor], units: int) -> torch.Tensor:
    features, labels, unit_index = chunk
    gradients = per_example_gradients(module, features, labels)
    return gradients.new_zeros((units, gradients.shape[1])).index_add(0, unit_index, gradients)
