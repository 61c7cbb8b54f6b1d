"""The clipped sum for Bayes by backprop by book-keeping: all weight draws in one pass, no per-example gradient.

The draws are rows of one batch, S N rows for N records, and each layer applies to the s-th N rows
its s-th weights. One backward pass to the layers' outputs then gives all that norms and clipped
sums need (variational_layers.py).
"""

from functools import partial
from itertools import starmap

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from fl_dpbayes.config import FLAT, Clipping
from fl_dpbayes.models import ROWS, VariationalModule, pieces
from fl_dpbayes.samplers.gradients import book_keeping, variational_layers
from fl_dpbayes.samplers.gradients.clipping import ClippedSum, add_up, clip_factors, least_factors
from fl_dpbayes.samplers.gradients.layer_gradients import has_shortcut
from fl_dpbayes.samplers.gradients.loss import RecordLoss, mean_over_draws, summed_cross_entropy

_MEAN_CROSS_ENTROPY = mean_over_draws(summed_cross_entropy)


def is_supported(module: nn.Module) -> bool:
    """Say whether this is a variational module in which book-keeping can treat every trainable layer."""
    if not isinstance(module, VariationalModule) or not book_keeping.is_supported(module.mean):
        return False
    layers = book_keeping.trained_layers(module.mean)
    return all(type(layer) in (nn.Linear, nn.Conv2d) and has_shortcut(layer) for layer in layers)


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
    """Sum clipped gradients by mean and spread together, as `book_keeping.clipped_sum`, means first.

    The module is a variational one, resampled; a layer's means are one layer and its spreads
    another. `rows` records are in a pass, each once per draw. Raises ValueError if a layer was used
    more than once, or not at all, or the module was not resampled.
    """
    assert isinstance(module, VariationalModule)

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, number: int) -> ClippedSum:
        layers = drawn_layers(module, part, part_targets, loss)
        by_mean, by_spread = zip(
            *(variational_layers.norms(layer) for layer in layers), strict=True
        )
        real = torch.arange(len(part), device=part.device) < number
        factors = [
            each * real for each in clip_factors([*by_mean, *by_spread], clip_norm, clipping)
        ]
        pairs = zip(layers, factors[: len(layers)], factors[len(layers) :], strict=True)
        mean_parts, spread_parts = zip(
            *(variational_layers.weighted_sums(*each) for each in pairs), strict=True
        )
        parts = [values for layer_parts in mean_parts + spread_parts for values in layer_parts]
        return ClippedSum(torch.cat(parts), (least_factors(factors)[:number] < 1).sum(), number)

    return add_up(module, features.device, starmap(piece_sum, pieces(rows, features, targets)))


def drawn_layers(
    module: VariationalModule, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> list[variational_layers.DrawnLayer]:
    """Return the gradient of each record's loss by each layer's means and spreads, from one pass over N >= 1 records.

    Raises ValueError if a layer was used more than once, or not at all, or the module was not
    resampled.
    """
    draws, count = module.draws, len(features)
    prefixes = list(dict.fromkeys(name[: name.rfind(".") + 1] for name in module.shapes))
    layers = [module.mean.get_submodule(prefix.rstrip(".")) for prefix in prefixes]
    with torch.no_grad():
        weights, noise = module.weight_draws(), module.noise_views()
        slopes = {
            name: noise[name] * torch.sigmoid(module.spread.get_parameter(name))
            for name in module.shapes
        }
    inputs: dict[nn.Module, torch.Tensor] = {}
    edges: dict[nn.Module, GradientEdge] = {}

    def pass_through(layer: nn.Module, prefix: str, rows: torch.Tensor) -> torch.Tensor:
        if layer in inputs:
            raise ValueError(
                f"a {type(layer).__name__} layer is used twice in one forward pass: use "
                "the vmap engine"
            )
        # Autograd records the pass only from where something needs a gradient; none is taken by the
        # weights.
        drawn = weights[f"{prefix}weight"].requires_grad_()
        # A view's place in the graph is lost under a later in-place activation; a copy's is not.
        outputs = variational_layers.drawn_outputs(
            layer, rows, drawn, weights.get(f"{prefix}bias")
        ).clone()
        inputs[layer], edges[layer] = rows.detach(), get_gradient_edge(outputs)
        return outputs

    for prefix, layer in zip(prefixes, layers, strict=True):
        vars(layer)["forward"] = partial(pass_through, layer, prefix)
    try:
        with torch.enable_grad():
            rows = features.expand(draws, *features.shape).flatten(0, 1)
            value = loss(module.mean(rows).unflatten(0, (draws, count)).transpose(0, 1), targets)
    finally:
        for layer in layers:
            del vars(layer)["forward"]
    if len(inputs) < len(layers):
        raise ValueError(
            "a trainable layer was not used in the forward pass: use the vmap engine, or freeze it"
        )
    gradients = torch.autograd.grad(value, [edges[layer] for layer in layers])
    drawn = [(slopes[f"{prefix}weight"], slopes.get(f"{prefix}bias")) for prefix in prefixes]
    parts = zip(layers, gradients, drawn, strict=True)
    return [
        variational_layers.drawn_layer(layer, inputs[layer], each, *own)
        for layer, each, own in parts
    ]
