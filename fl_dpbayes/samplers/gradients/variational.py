"""The clipped sum for Bayes by backprop by book-keeping: all weight draws in one pass.

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
    """Say whether it is a variational module of trainable layers that book-keeping can treat."""
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
    """Sum clipped gradients by mean and spread together, as `book_keeping.clipped_sum`.

    A layer's means are one layer and its spreads another.

    Args:
        module: A variational module, resampled.
        features: Of the module's type and device, shape (N, *shape); N may be 0.
        targets: Classes (int64) or values (float32), shape (N,).
        clip_norm: C > 0; may be infinite for `flat` and `per-layer` clipping.
        clipping: The rule.
        loss: Of outputs (N, draws, K), summed over records.
        rows: How many records are in a pass, each once per draw.

    Returns:
        The sum, means first.

    Raises:
        ValueError: A layer was used more than once, or not at all, or the module was not resampled.
    """
    assert isinstance(module, VariationalModule)

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, count: int) -> ClippedSum:
        layers = drawn_layers(module, part, part_targets, loss=loss)
        norms = [variational_layers.norms(layer) for layer in layers]
        mean_norms = [by_mean for by_mean, _ in norms]
        spread_norms = [by_spread for _, by_spread in norms]
        is_record = torch.arange(len(part), device=part.device) < count
        factors = [
            layer_factors * is_record
            for layer_factors in clip_factors([*mean_norms, *spread_norms], clip_norm, clipping)
        ]
        mean_parts: list[torch.Tensor] = []
        spread_parts: list[torch.Tensor] = []
        mean_factors = factors[: len(layers)]
        spread_factors = factors[len(layers) :]
        for layer, by_mean, by_spread in zip(layers, mean_factors, spread_factors, strict=True):
            mean_sums, spread_sums = variational_layers.weighted_sums(
                layer, mean_factors=by_mean, spread_factors=by_spread
            )
            mean_parts += mean_sums
            spread_parts += spread_sums
        return ClippedSum(
            total=torch.cat(mean_parts + spread_parts),
            clipped=(least_factors(factors)[:count] < 1).sum(),
            units=count,
        )

    return add_up(module, features.device, sums=starmap(piece_sum, pieces(rows, features, targets)))


def drawn_layers(
    module: VariationalModule, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> list[variational_layers.DrawnLayer]:
    """Return the gradient of each record's loss by each layer's means and spreads, from one pass.

    Args:
        module: Resampled.
        features: Of the module's type and device, shape (N, *shape), N >= 1.
        targets: Classes (int64) or values (float32), shape (N,).
        loss: Of outputs (N, draws, K), summed over records.

    Returns:
        Gradients of each layer, in order.

    Raises:
        ValueError: A layer was used more than once, or not at all, or the module was not resampled.
    """
    draws = module.draws
    count = len(features)
    prefixes = list(dict.fromkeys(name[: name.rfind(".") + 1] for name in module.shapes))
    layers = [module.mean.get_submodule(prefix.rstrip(".")) for prefix in prefixes]
    with torch.no_grad():
        weights = module.weight_draws()
        noise = module.noise_views()
        slopes = {
            name: noise[name] * torch.sigmoid(module.spread.get_parameter(name))
            for name in module.shapes
        }
    inputs: dict[nn.Module, torch.Tensor] = {}
    edges: dict[nn.Module, GradientEdge] = {}

    def pass_through(layer: nn.Module, prefix: str, rows: torch.Tensor) -> torch.Tensor:
        if layer in inputs:
            raise book_keeping.layer_used_twice_error(layer)
        # Autograd records the pass only from where something needs a gradient; none is taken by the
        # weights.
        drawn_weights = weights[f"{prefix}weight"].requires_grad_()
        outputs = variational_layers.drawn_outputs(
            layer, rows, weights=drawn_weights, biases=weights.get(f"{prefix}bias")
        )
        # A view's place in the graph is lost under a later in-place activation; a copy's is not.
        outputs = outputs.clone()
        inputs[layer] = rows.detach()
        edges[layer] = get_gradient_edge(outputs)
        return outputs

    for prefix, layer in zip(prefixes, layers, strict=True):
        vars(layer)["forward"] = partial(pass_through, layer, prefix)
    try:
        with torch.enable_grad():
            rows = features.expand(draws, *features.shape).flatten(0, 1)
            outputs = module.mean(rows).unflatten(0, (draws, count)).transpose(0, 1)
            value = loss(outputs, targets)
    finally:
        for layer in layers:
            del vars(layer)["forward"]
    if len(inputs) < len(layers):
        raise book_keeping.layer_unused_error()
    gradients = torch.autograd.grad(value, [edges[layer] for layer in layers])
    return [
        variational_layers.drawn_layer(
            layer,
            inputs[layer],
            output_gradients=output_gradients,
            weight_slopes=slopes[f"{prefix}weight"],
            bias_slopes=slopes.get(f"{prefix}bias"),
        )
        for prefix, layer, output_gradients in zip(prefixes, layers, gradients, strict=True)
    ]
