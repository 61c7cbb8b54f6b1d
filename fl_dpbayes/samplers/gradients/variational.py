"""The clipped sum for Bayes by backprop by book-keeping: all weight draws in one pass, no per-example gradient.

The draws are rows of one batch, S N rows for N records, and each layer applies to the s-th N rows its s-th weights. One
backward pass to the layers' outputs then gives all that norms and clipped sums need (variational_layers.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fl_dpbayes.config.plan import FLAT, Clipping
from fl_dpbayes.models.rows import ROWS, pieces
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers.gradients import book_keeping
from fl_dpbayes.samplers.gradients.clipping import ClippedSum, add_up, clip_factors, count_reduced
from fl_dpbayes.samplers.gradients.loss import RecordLoss, mean_over_draws, summed_cross_entropy
from fl_dpbayes.samplers.gradients.variational_layers import (
    DrawnLayer,
    drawn_layer,
    drawn_outputs,
    norms,
    weighted_sums,
)

_MEAN_CROSS_ENTROPY = mean_over_draws(summed_cross_entropy)


@dataclass
class _Passed:
    """What went through a layer: its inputs, and the place of its outputs in autograd's graph."""

    inputs: dict[nn.Module, torch.Tensor] = field(default_factory=dict)
    edges: dict[nn.Module, GradientEdge] = field(default_factory=dict)


def is_supported(module: nn.Module) -> bool:
    """Say whether this is a variational module in which book-keeping can treat every trainable layer."""
    return isinstance(module, VariationalModule) and book_keeping.is_supported(module.mean)


def clipped_sum(
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    *,
    clip_norm: float,
    clipping: Clipping = FLAT,
    loss: RecordLoss = _MEAN_CROSS_ENTROPY,
    rows: int = ROWS,
) -> ClippedSum:
    """Sum clipped gradients by mean and spread together, as `ClippedSumFunction` says, means first.

    The module is a variational one, resampled; a layer's means are one layer and its spreads another. `rows` records
    are in a pass, each once per draw.

    Raises ValueError if a layer was used more than once, or not at all, or the module was not resampled.
    """
    assert isinstance(module, VariationalModule)

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, real: torch.Tensor) -> ClippedSum:
        layers = drawn_layers(module, part, part_targets, loss)
        by_mean, by_spread = zip(*(norms(layer) for layer in layers), strict=True)
        factors = [each * real for each in clip_factors([*by_mean, *by_spread], clip_norm, clipping)]
        pairs = zip(layers, factors[: len(layers)], factors[len(layers) :], strict=True)
        mean_parts, spread_parts = zip(*(weighted_sums(*each) for each in pairs), strict=True)
        parts = [values for layer_parts in mean_parts + spread_parts for values in layer_parts]
        return ClippedSum(torch.cat(parts), count_reduced([each[real] for each in factors]), int(real.sum()))

    size = 2 * sum(module.mean.get_parameter(name).numel() for name in module.shapes)
    return add_up(size, features.device, (piece_sum(*piece) for piece in pieces(rows, features, targets)))


def drawn_layers(
    module: VariationalModule, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> list[DrawnLayer]:
    """Return the gradient of each record's loss by each layer's means and spreads, from one pass over N >= 1 records.

    Raises ValueError if a layer was used more than once, or not at all, or the module was not resampled.
    """
    draws, count = module.draws, len(features)
    names = list(dict.fromkeys(name.rpartition(".")[0] for name in module.shapes))
    layers = {name: module.mean.get_submodule(name) for name in names}
    passed = _Passed()
    with torch.enable_grad(), _drawn_forward(module, layers, passed):
        rows = features.expand(draws, *features.shape).flatten(0, 1)
        value = loss(module.mean(rows).unflatten(0, (draws, count)).transpose(0, 1), targets)
    if len(passed.inputs) < len(layers):
        raise ValueError("a trainable layer was not used in the forward pass: use the vmap engine, or freeze it")
    gradients = torch.autograd.grad(value, [passed.edges[layer] for layer in layers.values()])
    slopes = _slopes(module)
    return [
        drawn_layer(
            layer, passed.inputs[layer], gradient, slopes[_join(name, "weight")], slopes.get(_join(name, "bias"))
        )
        for (name, layer), gradient in zip(layers.items(), gradients, strict=True)
    ]


@contextmanager
def _drawn_forward(module: VariationalModule, layers: dict[str, nn.Module], passed: _Passed) -> Iterator[None]:
    with torch.no_grad():
        weights = module.weight_draws()
    for name, layer in layers.items():
        # Autograd records the pass only from where something needs a gradient; none is taken by the weights.
        drawn = weights[_join(name, "weight")].requires_grad_()
        vars(layer)["forward"] = _forward(layer, drawn, weights.get(_join(name, "bias")), passed)
    try:
        yield
    finally:
        for layer in layers.values():
            del vars(layer)["forward"]


def _forward(
    layer: nn.Module, weights: torch.Tensor, biases: torch.Tensor | None, passed: _Passed
) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(rows: torch.Tensor) -> torch.Tensor:
        if layer in passed.inputs:
            raise ValueError(f"a {type(layer).__name__} layer is used twice in one forward pass: use the vmap engine")
        # A view's place in the graph is lost under a later in-place activation; a copy's is not.
        outputs = drawn_outputs(layer, rows, weights, biases).clone()
        passed.inputs[layer] = rows.detach()
        passed.edges[layer] = get_gradient_edge(outputs)
        return outputs

    return forward


def _slopes(module: VariationalModule) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        noise = module.noise_views()
        return {name: noise[name] * torch.sigmoid(module.spread.get_parameter(name)) for name in module.shapes}


def _join(layer_name: str, parameter: str) -> str:
    return f"{layer_name}.{parameter}" if layer_name else parameter
