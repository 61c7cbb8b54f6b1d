"""What one Linear or Conv2d layer adds to per-example norms and to the clipped sum.

A layer's gradient of record i is a product over positions l (one for a plain Linear, L output pixels for a
convolution): W_i = sum_l g_il a_il', b_i = sum_l g_il, with a the layer's input (patches for a convolution) and g the
gradient of the loss at its output. Its norm follows from a and g without forming W_i where that is cheaper.
Sources: Goodfellow 2015 (arXiv:1510.01799), Lee and Kifer 2021, Bu et al. 2022 (mixed ghost clipping, section 4),
Bu et al. 2023 (book-keeping).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

_TINY = torch.finfo(torch.float32).tiny
# Bound on the relative rounding of one product of Gram entries, added to a squared norm that cancellation can shrink
# (about 16 float32 roundings; the worst case grows with the number of terms, the usual case with its root).
_GRAM_ROUNDING = 1e-6


@dataclass(frozen=True)
class LayerGradients:
    """Per-example gradients of one layer in factored form.

    Attributes:
        norms: norm of weight and bias gradient together, shape (N,).
        inputs: a, shape (N, groups, L, p).
        output_gradients: g, shape (N, groups, L, o).
        weights: W_i where it had to be formed, shape (N, groups, o, p), else None.
        bias: b_i, shape (N, groups, o), or None for a layer without bias.
    """

    norms: torch.Tensor
    inputs: torch.Tensor
    output_gradients: torch.Tensor
    weights: torch.Tensor | None
    bias: torch.Tensor | None


def layer_gradients(layer: nn.Module, inputs: torch.Tensor, output_gradients: torch.Tensor) -> LayerGradients:
    """Compute per-example gradient norms of one layer, by the cheapest exact way.

    Linear with one position: |W_i| = |g| |a|. Otherwise, with o x p weights per group: the Gram form
    sum_{l,m} (a_l . a_m)(g_l . g_m) if 2 L^2 < o p, else the norm of W_i itself.

    Args:
        layer: a Linear or a Conv2d with integer zero padding.
        inputs: what the layer was given, shape (N, ...).
        output_gradients: gradient of the summed loss at its output, shape (N, ...).

    Returns:
        The factored gradients, float32.
    """
    a, g = _positions(layer, inputs.float(), output_gradients.float())
    positions, p, o = a.shape[2], a.shape[3], g.shape[3]
    weights = None
    if positions == 1 and a.shape[1] == 1:
        # Roots first: the product of the squares overflows where the norm does not.
        norms = _norm(a) * _norm(g)
    elif 2 * positions**2 < o * p:
        norms = _gram_norm(a, g)
    else:
        weights = g.mT @ a
        norms = weights.square().sum(dim=(1, 2, 3)).sqrt()
    bias = None if layer.bias is None else g.sum(dim=2)
    if bias is not None:
        norms = torch.hypot(norms, bias.square().sum(dim=(1, 2)).sqrt())
    return LayerGradients(norms, a, g, weights, bias)


def weighted_sum(layer: nn.Module, gradients: LayerGradients, factors: torch.Tensor) -> list[torch.Tensor]:
    """Return sum_i c_i W_i and, if the layer has a bias, sum_i c_i b_i.

    A record with c_i = 0 is left out whatever its gradient holds (0 times infinity is NaN).

    Args:
        layer: the layer of `gradients`.
        gradients: its per-example gradients.
        factors: c_i, shape (N,).

    Returns:
        Flat weight gradient and bias gradient, in the layer's own order.
    """
    kept = (factors > 0)[:, None, None, None]
    g = torch.where(kept, gradients.output_gradients, 0.0) * factors[:, None, None, None]
    if gradients.weights is not None:
        weight = torch.einsum("n,n...->...", factors, torch.where(kept, gradients.weights, 0.0))
    else:
        a = torch.where(kept, gradients.inputs, 0.0)
        groups, p, o = a.shape[1], a.shape[3], g.shape[3]
        left = g.transpose(0, 1).reshape(groups, -1, o)
        right = a.transpose(0, 1).reshape(groups, -1, p)
        weight = left.mT @ right
    parts = [weight.reshape(-1)]
    if gradients.bias is not None:
        # Not from g: where positions cancel, the rounding of their weighted sum can exceed what their norm foretold.
        kept_bias = torch.where(kept[:, :, 0], gradients.bias, 0.0) * factors[:, None, None]
        parts.append(kept_bias.sum(dim=0).reshape(-1))
    return parts


def _positions(
    layer: nn.Module, inputs: torch.Tensor, output_gradients: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(layer, nn.Linear):
        count = len(inputs)
        return (
            inputs.reshape(count, 1, -1, layer.in_features),
            output_gradients.reshape(count, 1, -1, layer.out_features),
        )
    assert isinstance(layer, nn.Conv2d)
    patches = functional.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    a = patches.unflatten(1, (layer.groups, -1)).mT
    g = output_gradients.flatten(2).unflatten(1, (layer.groups, -1)).mT
    return a, g


def _norm(values: torch.Tensor) -> torch.Tensor:
    # Squares below the smallest normal number may have become zero; counting them as that number keeps an upper bound.
    return (values.square().sum(dim=(1, 2, 3)) + values[0].numel() * _TINY).sqrt()


def _gram_norm(a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    gram_a, gram_g = a @ a.mT, g @ g.mT
    squares_a, squares_g = gram_a.diagonal(dim1=2, dim2=3), gram_g.diagonal(dim1=2, dim2=3)
    lengths = (squares_a * squares_g).sqrt().sum(dim=2)
    # As in `_norm`: each product of entries may have lost up to the smallest normal number.
    lost_g = (g.shape[3] * _TINY) ** 0.5 * squares_a.sqrt().sum(dim=2)
    lost_a = (a.shape[3] * _TINY) ** 0.5 * squares_g.sqrt().sum(dim=2)
    rounding = _GRAM_ROUNDING * lengths.square() + lost_g.square() + lost_a.square()
    return ((gram_a * gram_g).sum(dim=(2, 3)).clamp(min=0.0) + rounding).sum(dim=1).sqrt()
