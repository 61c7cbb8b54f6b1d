"""What goes into each trained layer in one pass, and what comes back to its outputs.

A chain of known layers is computed at once. Every other module runs under `torch.func.vmap`,
forwards and backwards, which keeps records apart (docs/models.md says how far).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import grad, vmap

from fl_dpbayes.models import VariationalModule, called, is_chain_of_known_layers
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.samplers.gradients.loss import RecordLoss


@dataclass(frozen=True)
class LayerPass:
    """What one layer has of a pass.

    Attributes:
        layer: Used once in the pass.
        inputs: What it was given, shape (N, ...); under weight draws (N, draws, ...).
        output_gradients: Of the summed loss at its output, shape (N, ...) or (N, draws, ...).
    """

    layer: nn.Module
    inputs: Tensor
    output_gradients: Tensor


def trained_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that own trained parameters, in order.

    One that owns parameters itself owns all that is below it.
    """
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        return [module]
    return [layer for child in module.children() for layer in trained_layers(child)]


def layer_passes(
    module: nn.Module, features: Tensor, targets: Tensor, loss: RecordLoss
) -> list[LayerPass]:
    """Run a module forwards and backwards.

    Args:
        module: What is trained, without weight draws.
        features: Of the module's type and device, shape (N, *shape), N >= 1.
        targets: Classes (int64) or values (float32), shape (N,).
        loss: Summed over records.

    Returns:
        Of each trained layer, in order.

    Raises:
        ValueError: A layer was used more than once, not at all, or on other rows than the records.
    """
    layers = trained_layers(module)
    if is_chain_of_known_layers(module, features.shape[1:]):
        return _at_once(module, layers, features=features, targets=targets, loss=loss)

    def run(shifts: Sequence[Tensor], row: Tensor) -> tuple[Tensor, list[Tensor]]:
        outputs, inputs = _shifted(layers, shifts, compute=lambda: module(row[None]))
        return outputs, [layer_inputs[0] for layer_inputs in inputs]

    shifts = _no_shifts(module, layers, features)
    return _mapped(run, layers, shifts=shifts, features=features, targets=targets, loss=loss)


def drawn_layer_passes(
    module: VariationalModule,
    weights: Mapping[str, Tensor],
    features: Tensor,
    targets: Tensor,
    loss: RecordLoss,
) -> list[LayerPass]:
    """Run a module forwards and backwards under several draws of its weights, as `layer_passes`.

    Args:
        module: Its `mean` is run.
        weights: The draws by name, shape (draws, *shape) each.
        features: Of the module's type and device, shape (N, *shape), N >= 1.
        targets: Classes (int64) or values (float32), shape (N,).
        loss: Of outputs (N, draws, K), summed over records.

    Returns:
        Of each trained layer, in order.

    Raises:
        ValueError: As `layer_passes`.
    """
    plain = module.mean
    layers = trained_layers(plain)

    def run_draw(
        values: Mapping[str, Tensor], shifts: Sequence[Tensor], row: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        outputs, inputs = _shifted(layers, shifts, compute=lambda: called(plain, values, row[None]))
        return outputs[0], [layer_inputs[0] for layer_inputs in inputs]

    def run(shifts: Sequence[Tensor], row: Tensor) -> tuple[Tensor, list[Tensor]]:
        outputs, inputs = vmap(run_draw, in_dims=(0, 0, None))(weights, shifts, row)
        return outputs[None], inputs

    shifts = [
        shift.expand(module.draws, *shift.shape) for shift in _no_shifts(plain, layers, features)
    ]
    return _mapped(run, layers, shifts=shifts, features=features, targets=targets, loss=loss)


def _mapped(
    run: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, list[Tensor]]],
    layers: Sequence[nn.Module],
    *,
    shifts: Sequence[Tensor],
    features: Tensor,
    targets: Tensor,
    loss: RecordLoss,
) -> list[LayerPass]:
    """Map over records; `run`: shifts, record -> its outputs and the layers' inputs."""

    def record_loss(
        shifts: Sequence[Tensor], row: Tensor, target: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        outputs, inputs = run(shifts, row)
        return loss(outputs, target[None]), inputs

    with torch.no_grad():
        gradients, inputs = mapped(
            grad(record_loss, has_aux=True), shifts, features, targets, in_dims=(None, 0, 0)
        )
    return [
        LayerPass(layer, inputs=layer_inputs, output_gradients=layer_gradients)
        for layer, layer_inputs, layer_gradients in zip(layers, inputs, gradients, strict=True)
    ]


def _at_once(
    module: nn.Module,
    layers: Sequence[nn.Module],
    *,
    features: Tensor,
    targets: Tensor,
    loss: RecordLoss,
) -> list[LayerPass]:
    # An edge, unlike the output tensor, still means this layer's output after a later in-place
    # activation.
    edges: dict[nn.Module, GradientEdge] = {}

    def note_edge(layer: nn.Module, output: Tensor) -> None:
        edges[layer] = get_gradient_edge(output)

    with torch.enable_grad(), _watched(layers, note_edge) as inputs:
        value = loss(module(features), targets)
    gradients = torch.autograd.grad(value, [edges[layer] for layer in layers])
    return [
        LayerPass(layer, inputs=inputs[layer].detach(), output_gradients=layer_gradients)
        for layer, layer_gradients in zip(layers, gradients, strict=True)
    ]


def _no_shifts(module: nn.Module, layers: Sequence[nn.Module], features: Tensor) -> list[Tensor]:
    """Return zeros of the shape of each layer's output for one record, which is not read."""
    zeros: dict[nn.Module, Tensor] = {}

    def note_zeros(layer: nn.Module, output: Tensor) -> None:
        if len(output) != 1:
            raise ValueError(f"the rows of a {type(layer).__name__} layer are not the records")
        zeros[layer] = torch.zeros_like(output[0])

    with torch.no_grad(), _watched(layers, note_zeros):
        module(torch.zeros_like(features[:1]))
    return [zeros[layer] for layer in layers]


def _shifted(
    layers: Sequence[nn.Module], shifts: Sequence[Tensor], compute: Callable[[], Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return what is computed with each layer's output shifted, and the layers' inputs.

    The gradient by a shift of zero is the gradient at the output.
    """
    shift_of = dict(zip(layers, shifts, strict=True))
    with _watched(layers, lambda layer, output: output + shift_of[layer]) as inputs:
        outputs = compute()
    return outputs, [inputs[layer] for layer in layers]


@contextmanager
def _watched(
    layers: Sequence[nn.Module], passed_on: Callable[[nn.Module, Tensor], Tensor | None]
) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect the layers' inputs of one pass.

    Args:
        layers: All of them must be used, each once.
        passed_on: Of a layer's output, what takes its place; None for the output itself.

    Yields:
        Inputs by layer.
    """
    inputs: dict[nn.Module, Tensor] = {}

    def remember(layer: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if layer in inputs:
            raise ValueError(
                f"a {type(layer).__name__} layer is used twice in one forward pass: "
                "use the vmap engine"
            )
        (inputs[layer],) = arguments
        return passed_on(layer, output)

    handles = [layer.register_forward_hook(remember) for layer in layers]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()
    if len(inputs) < len(layers):
        raise ValueError(
            "a trainable layer was not used in the forward pass: use the vmap engine, or freeze it"
        )
