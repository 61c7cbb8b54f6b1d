"""The clipped sum by book-keeping: one forward pass, one backward pass to layer outputs, no per-example gradient."""

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fl_dpbayes.config.plan import FLAT, Clipping
from fl_dpbayes.models.rows import ROWS, pieces
from fl_dpbayes.samplers.gradients.clipping import ClippedSum, add_up, clip_factors, count_reduced
from fl_dpbayes.samplers.gradients.layer_gradients import LayerGradients, layer_gradients, weighted_sum
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy


def is_supported(module: nn.Module) -> bool:
    """Say whether every trainable parameter belongs to one Linear or Conv2d leaf, and to no other.

    Convolutions with string padding or non-zero padding modes, and layers that are trained only in part, are not
    supported.
    """
    owners: set[int] = set()
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        trainable = [parameter for parameter in own if parameter.requires_grad]
        if not trainable:
            continue
        plain = type(layer) is nn.Linear or (
            type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        )
        if not plain or len(trainable) < len(own) or any(id(parameter) in owners for parameter in trainable):
            return False
        owners.update(id(parameter) for parameter in trainable)
    return True


def clipped_sum(
    module: nn.Module, features: torch.Tensor, targets: torch.Tensor, *, clip_norm: float, clipping: Clipping = FLAT,
    loss: RecordLoss = summed_cross_entropy, rows: int = ROWS,
) -> ClippedSum:  # fmt: skip
    """Return sum_i clip_C(gradient of record i's loss), in the order of `named_parameters()`.

    `features`: records, shape (N, *shape), of the module's type and device; N may be 0. `targets`: classes (int64) or
    values (float32), shape (N,). `clip_norm`: C > 0, may be infinite for `flat` and `per-layer` clipping. `loss`: sum
    over records of the loss whose gradient is clipped. `rows`: how many rows every pass has. Raises ValueError if a
    layer, a Linear or Conv2d, was used more than once, or not at all.
    """

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, real: torch.Tensor) -> ClippedSum:
        gradients = per_layer_gradients(module, part, part_targets, loss)
        factors = [each * real for each in clip_factors([each.norms for each in gradients], clip_norm, clipping)]
        parts = [values for each in zip(gradients, factors, strict=True) for values in weighted_sum(*each)]
        return ClippedSum(torch.cat(parts), count_reduced([each[real] for each in factors]), int(real.sum()))

    size = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return add_up(size, features.device, (piece_sum(*piece) for piece in pieces(rows, features, targets)))


def per_layer_gradients(
    module: nn.Module, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> list[LayerGradients]:
    """Return the gradient of each record's loss by each trainable layer, in order, from one pass over N >= 1 records.

    Raises ValueError if a layer was used more than once, or not at all.
    """
    layers, inputs, output_gradients = _backward_to_outputs(module, features, targets, loss)
    return [layer_gradients(layer, *pair) for layer, *pair in zip(layers, inputs, output_gradients, strict=True)]


def _backward_to_outputs(
    module: nn.Module, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> tuple[list[nn.Module], list[torch.Tensor], tuple[torch.Tensor, ...]]:
    layers = [each for each in module.modules() if any(p.requires_grad for p in each.parameters(recurse=False))]
    inputs: dict[nn.Module, torch.Tensor] = {}
    # An edge, unlike the output tensor, still means this layer's output after a later in-place activation.
    edges: dict[nn.Module, GradientEdge] = {}

    def keep(layer: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        if layer in inputs:
            raise ValueError(f"a {type(layer).__name__} layer is used twice in one forward pass: use the vmap engine")
        inputs[layer] = arguments[0].detach()
        edges[layer] = get_gradient_edge(output)

    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        with torch.enable_grad():
            value = loss(module(features), targets)
    finally:
        for handle in handles:
            handle.remove()
    if len(inputs) < len(layers):
        raise ValueError("a trainable layer was not used in the forward pass: use the vmap engine, or freeze it")
    return layers, [inputs[layer] for layer in layers], torch.autograd.grad(value, [edges[layer] for layer in layers])
