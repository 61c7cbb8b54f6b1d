"""Per-example gradients of any module without cross-example operations, by `torch.func`."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fl_dpbayes.gradients.clipping import sum_clipped
from fl_dpbayes.gradients.loss import summed_cross_entropy
from fl_dpbayes.models.parameters import trainable_parameters

# Materialised gradients take at most 128 MiB at a time.
_MAX_ELEMENTS = 2**25


def per_example_gradients(module: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the gradient of each record's cross-entropy.

    Args:
        module: features (N, *shape) -> logits (N, classes), no cross-example operation.
        features: records, shape (N, *shape), of the module's type and device.
        labels: shape (N,), int64.

    Returns:
        Shape (N, d), float32, columns in the order of `named_parameters()`; (0, d) for no record.
    """
    parameters = {name: parameter.detach() for name, parameter in trainable_parameters(module).items()}
    if len(labels) == 0:
        return features.new_zeros((0, sum(value.numel() for value in parameters.values())), dtype=torch.float32)

    def loss(values: dict[str, torch.Tensor], record: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return summed_cross_entropy(functional_call(module, values, (record[None],)), label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, features, labels)
    return torch.cat([gradients[name].reshape(len(labels), -1).float() for name in parameters], dim=1)


def records_per_chunk(module: nn.Module) -> int:
    """Return how many records' gradients may be held at a time, at least 1."""
    size = sum(parameter.numel() for parameter in trainable_parameters(module).values())
    return max(1, _MAX_ELEMENTS // max(1, size))


def clipped_sum(module: nn.Module, features: torch.Tensor, labels: torch.Tensor, *, clip_norm: float) -> torch.Tensor:
    """Return the sum over records of clip_C(gradient of the record's cross-entropy), materialising gradients.

    Args:
        module: features (N, *shape) -> logits (N, classes), no cross-example operation.
        features: records, shape (N, *shape), of the module's type and device.
        labels: shape (N,), int64.
        clip_norm: C > 0, may be infinite.

    Returns:
        Shape (d,), float32; zeros for an empty batch.
    """
    size = records_per_chunk(module)
    chunks = zip(features.split(size), labels.split(size), strict=True)
    sums = [sum_clipped(per_example_gradients(module, *chunk), clip_norm) for chunk in chunks]
    return torch.stack(sums).sum(0)
