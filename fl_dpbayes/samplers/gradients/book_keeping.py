"""The clipped sum by book-keeping: one forward pass, one backward pass to layer outputs, no per-example gradient."""

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fl_dpbayes.config import FLAT, Clipping
from fl_dpbayes.models import ROWS, pieces
from fl_dpbayes.samplers.gradients.clipping import ClippedSum, add_up, clip_and_sum
from fl_dpbayes.samplers.gradients.contribution import LayerGradients
from fl_dpbayes.samplers.gradients.dense_chain import dense_chain
from fl_dpbayes.samplers.gradients.layer_gradients import has_shortcut, layer_gradients
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.gradients.vmap import mapped_gradients


def is_supported(module: nn.Module) -> bool:
    """Say whether some layer needs no `torch.func`, and no parameter belongs to two layers."""
    layers = trained_layers(module)
    owned = [id(value) for layer in layers for value in layer.parameters()]
    return len(set(owned)) == len(owned) and any(has_shortcut(layer) for layer in layers)


def trained_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that own trained parameters, in order.

    One without a shortcut owns all that is below it.
    """
    if any(value.requires_grad for value in module.parameters(recurse=False)):
        return [module]
    return [layer for child in module.children() for layer in trained_layers(child)]


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
    """Return sum_i clip_C(gradient of record i's loss), in the order of `named_parameters()`.

    `features`: of the module's type and device, (N, *shape), N may be 0. `targets`: classes (int64)
    or values (float32), (N,). `clip_norm`: C > 0, may be infinite for `flat` and `per-layer`
    clipping. `rows`: how many every pass has. Raises ValueError if a layer was used more than once,
    or not at all.
    """

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, number: int) -> ClippedSum:
        return clip_and_sum(
            per_layer_gradients(module, part, part_targets, loss), clip_norm, clipping, number
        )

    return add_up(module, features.device, starmap(piece_sum, pieces(rows, features, targets)))


def per_layer_gradients(
    module: nn.Module, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> Sequence[LayerGradients]:
    """Return the gradient of each record's loss by each trainable layer, in order, from one pass over N >= 1 records.

    Raises ValueError if a layer was used more than once, or not at all.
    """
    chain = dense_chain(module)
    if chain is not None:
        return chain.gradients(features, targets, loss)
    found: list[LayerGradients] = []
    layers = trained_layers(module)
    inputs, gradients = _backward(module, layers, features, lambda outputs: loss(outputs, targets))
    for layer, *own in zip(layers, inputs, gradients, strict=True):
        found += (
            [layer_gradients(layer, *own)] if has_shortcut(layer) else mapped_gradients(layer, *own)
        )
    return found


def layer_rows(module: nn.Module, features: torch.Tensor) -> list[torch.Tensor]:
    """Return all that book-keeping reads of one pass, each (N, ...), under a made-up gradient at the outputs (N, K).

    That is each trained layer's inputs and the gradients at its outputs.
    """
    if dense_chain(module) is not None:
        return [module(features)]
    inputs, gradients = _backward(module, trained_layers(module), features, lambda outputs: outputs)
    return inputs + gradients


def _backward(
    module: nn.Module,
    layers: Sequence[nn.Module],
    features: torch.Tensor,
    pulled_back: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    inputs: dict[nn.Module, torch.Tensor] = {}
    # An edge, unlike the output tensor, still means this layer's output after a later in-place
    # activation.
    edges: dict[nn.Module, GradientEdge] = {}

    def keep(layer: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        if layer in inputs:
            raise ValueError(
                f"a {type(layer).__name__} layer is used twice in one forward pass: use "
                "the vmap engine"
            )
        (given,) = arguments
        inputs[layer] = given.detach()
        edges[layer] = get_gradient_edge(output)

    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        with torch.enable_grad():
            value = pulled_back(module(features))
    finally:
        for handle in handles:
            handle.remove()
    if len(inputs) < len(layers):
        raise ValueError(
            "a trainable layer was not used in the forward pass: use the vmap engine, or freeze it"
        )
    # A loss is one number; of outputs themselves, the gradient is as if it were they.
    given = None if value.dim() == 0 else value.detach()
    gradients = torch.autograd.grad(value, [edges[layer] for layer in layers], given)
    return [inputs[layer] for layer in layers], list(gradients)
