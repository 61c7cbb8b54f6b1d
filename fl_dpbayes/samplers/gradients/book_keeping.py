"""The clipped sum by book-keeping: one forward pass and one backward pass to the layers' outputs.

No per-example gradient is formed where a layer has a cheaper way to its norm.
"""

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
    parameter_ids = [id(parameter) for layer in layers for parameter in layer.parameters()]
    if len(set(parameter_ids)) < len(parameter_ids):
        return False
    return any(has_shortcut(layer) for layer in layers)


def trained_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that own trained parameters, in order.

    One without a shortcut owns all that is below it.
    """
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
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
    """Return sum_i clip_C(gradient of record i's loss).

    Args:
        module: What is trained.
        features: Of the module's type and device, shape (N, *shape); N may be 0.
        targets: Classes (int64) or values (float32), shape (N,).
        clip_norm: C > 0; may be infinite for `flat` and `per-layer` clipping.
        clipping: The rule.
        loss: Summed over records.
        rows: How many every pass has.

    Returns:
        The sum, its entries in the order of `named_parameters()`.

    Raises:
        ValueError: A layer was used more than once, or not at all.
    """

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, count: int) -> ClippedSum:
        layers = per_layer_gradients(module, part, part_targets, loss=loss)
        return clip_and_sum(layers, clip_norm=clip_norm, clipping=clipping, count=count)

    return add_up(module, features.device, sums=starmap(piece_sum, pieces(rows, features, targets)))


def per_layer_gradients(
    module: nn.Module, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> Sequence[LayerGradients]:
    """Return the gradient of each record's loss by each trainable layer, from one pass.

    Args:
        module: What is trained.
        features: Of the module's type and device, shape (N, *shape), N >= 1.
        targets: Classes (int64) or values (float32), shape (N,).
        loss: Summed over records.

    Returns:
        Gradients of each layer, in order.

    Raises:
        ValueError: A layer was used more than once, or not at all.
    """
    chain = dense_chain(module)
    if chain is not None:
        return chain.gradients(features, targets, loss=loss)
    layers = trained_layers(module)
    inputs, gradients = _layer_inputs_and_gradients(
        module, layers, features=features, pulled_back=lambda outputs: loss(outputs, targets)
    )
    result: list[LayerGradients] = []
    for layer, layer_inputs, output_gradients in zip(layers, inputs, gradients, strict=True):
        if has_shortcut(layer):
            result.append(layer_gradients(layer, layer_inputs, output_gradients))
        else:
            result += mapped_gradients(layer, layer_inputs, output_gradients)
    return result


def layer_rows(module: nn.Module, features: torch.Tensor) -> list[torch.Tensor]:
    """Return all that book-keeping reads of one pass, under a made-up gradient at the outputs.

    Args:
        module: What is trained; its outputs are of shape (N, K).
        features: Shape (N, *shape).

    Returns:
        Each trained layer's inputs, then the gradients at each one's outputs, shape (N, ...) each.
    """
    if dense_chain(module) is not None:
        return [module(features)]
    inputs, gradients = _layer_inputs_and_gradients(
        module, trained_layers(module), features=features, pulled_back=lambda outputs: outputs
    )
    return inputs + gradients


def _layer_inputs_and_gradients(
    module: nn.Module,
    layers: Sequence[nn.Module],
    features: torch.Tensor,
    pulled_back: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return each layer's inputs, and the gradients at its outputs of what is pulled back."""
    inputs: dict[nn.Module, torch.Tensor] = {}
    # An edge, unlike the output tensor, still means this layer's output after a later in-place
    # activation.
    edges: dict[nn.Module, GradientEdge] = {}

    def remember(layer: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        if layer in inputs:
            raise layer_used_twice_error(layer)
        (layer_input,) = arguments
        inputs[layer] = layer_input.detach()
        edges[layer] = get_gradient_edge(output)

    handles = [layer.register_forward_hook(remember) for layer in layers]
    try:
        with torch.enable_grad():
            value = pulled_back(module(features))
    finally:
        for handle in handles:
            handle.remove()
    if len(inputs) < len(layers):
        raise layer_unused_error()
    # A loss is one number and needs none. Outputs get themselves for a gradient.
    value_gradient = None if value.dim() == 0 else value.detach()
    gradients = torch.autograd.grad(value, [edges[layer] for layer in layers], value_gradient)
    return [inputs[layer] for layer in layers], list(gradients)


def layer_used_twice_error(layer: nn.Module) -> ValueError:
    """Return the error of a layer whose inputs are more than one batch."""
    return ValueError(
        f"a {type(layer).__name__} layer is used twice in one forward pass: use the vmap engine"
    )


def layer_unused_error() -> ValueError:
    """Return the error of a layer that has no inputs."""
    return ValueError(
        "a trainable layer was not used in the forward pass: use the vmap engine, or freeze it"
    )
