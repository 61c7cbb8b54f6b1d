"""Gradients of a layer's means and spreads for Bayes by backprop.

A Linear or Conv2d layer has weights w_s = mean + log(1 + exp(spread)) e_s for draws s = 1 .. S. Its
inputs a_is and output gradients g_is are those of record i under draw s, and
E_s = e_s o sigmoid(spread) is the slope of w_s by the spread. With sums over positions where there
are several,

    by mean     M_i = sum_s g_is a_is'
    by spread   R_i = sum_s (g_is a_is') o E_s
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_dpbayes.models import VariationalModule
from fl_dpbayes.samplers.gradients.contribution import LayerGradients, formed_gradients
from fl_dpbayes.samplers.gradients.layer_gradients import position_gradients, positions
from fl_dpbayes.samplers.gradients.layer_passes import LayerPass, drawn_layer_passes
from fl_dpbayes.samplers.gradients.loss import RecordLoss


def drawn_gradients(
    module: VariationalModule, features: Tensor, targets: Tensor, loss: RecordLoss
) -> list[LayerGradients]:
    """Return the gradient of each record's loss by each layer's means, then by their spreads.

    Args:
        module: Resampled; its layers are of Linear and Conv2d.
        features: Of the module's type and device, shape (N, *shape), N >= 1.
        targets: Classes (int64) or values (float32), shape (N,).
        loss: Of outputs (N, draws, K), summed over records.

    Returns:
        Gradients in the order of the parameters.

    Raises:
        ValueError: A layer was used more than once, or not at all, or the module was not resampled.
    """
    with torch.no_grad():
        weights = module.weight_draws()
        noise = module.noise_views()
    passes = drawn_layer_passes(module, weights, features=features, targets=targets, loss=loss)
    names = {layer: name for name, layer in module.mean.named_modules()}
    by_mean: list[LayerGradients] = []
    by_spread: list[LayerGradients] = []
    for layer_pass in passes:
        prefix = f"{names[layer_pass.layer]}.".lstrip(".")
        slopes = {
            name: noise[f"{prefix}{name}"] * torch.sigmoid(spread.detach())
            for name, spread in module.spread.get_submodule(prefix[:-1]).named_parameters()
        }
        means, spreads = layer_gradients_of_draws(layer_pass, slopes)
        by_mean.append(means)
        by_spread.append(spreads)
    return by_mean + by_spread


def layer_gradients_of_draws(
    layer_pass: LayerPass, slopes: Mapping[str, Tensor]
) -> tuple[LayerGradients, LayerGradients]:
    """Return the gradients of one layer's means and of its spreads.

    Args:
        layer_pass: Of a Linear or Conv2d under draws.
        slopes: E of the weight, shape (draws, *weight shape), and of the bias, (draws, o), if it
            has one.

    Returns:
        By mean and by spread.
    """
    layer = layer_pass.layer
    draws = len(slopes["weight"])
    a, g = positions(
        layer, layer_pass.inputs.flatten(0, 1), layer_pass.output_gradients.flatten(0, 1)
    )
    # Shape (N, draws, groups, L, p) and (N, draws, groups, L, o).
    a = a.unflatten(0, (-1, draws))
    g = g.unflatten(0, (-1, draws))
    # The draws are further positions of the means.
    by_mean = position_gradients(
        layer, a.transpose(1, 2).flatten(2, 3), g.transpose(1, 2).flatten(2, 3)
    )
    weight_slopes = slopes["weight"].float().reshape(draws, a.shape[2], g.shape[-1], a.shape[-1])
    weights = torch.zeros((), device=a.device)
    for draw in range(draws):
        weights = weights + (g[:, draw].mT @ a[:, draw]).mul_(weight_slopes[draw])
    spread_parts = [weights.flatten(1)]
    if "bias" in slopes:
        bias_slopes = slopes["bias"].float().reshape(draws, a.shape[2], -1)
        spread_parts.append((g.sum(dim=3) * bias_slopes).sum(dim=1).flatten(1))
    return by_mean, formed_gradients(spread_parts)
