"""What one layer adds to per-example norms and to the clipped sum.

A Linear or Conv2d layer's gradient of record i is a product over positions l (one for a plain
Linear, L output pixels for a convolution): W_i = sum_l g_il a_il', b_i = sum_l g_il, with a the
layer's input (patches for a convolution; unit vectors for an Embedding) and g the gradient of the
loss at its output. Its norm follows from a and g without forming W_i where that is cheaper.
Sources: Goodfellow 2015 (arXiv:1510.01799), Lee and Kifer 2021, Bu et al. 2022 and 2023.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from fl_dpbayes.samplers.gradients.contribution import (
    LayerGradients,
    aligned,
    formed_gradients,
    outer_gradients,
    row_norms,
)

# Added to a squared norm that cancellation can shrink, relative to the square of sum_l |g_l| |a_l|:
# it bounds how far the rounding of the weighted sum can exceed what the norm foretells
# (LARGEST_CANCELLATION follows from it).
_GRAM_ALLOWANCE = 1e-6
# What one entry of a formed gradient costs (written once, read twice), in multiplications of
# float32.
_FORMED_ENTRY = 100
# Records whose patches are held at a time: they stay in a processor's cache.
_PATCHED = 16
# On a GPU each part costs launches.
_PATCHED_ON_GPU = 160


def layer_gradients(layer: nn.Module, inputs: Tensor, output_gradients: Tensor) -> LayerGradients:
    """Compute per-example gradient norms of one layer, by the cheapest exact way.

    Linear with one position: |W_i| = |g| |a|. Otherwise, with o x p weights per group, the Gram
    form sum_{l,m} (a_l . a_m)(g_l . g_m), or the norm of W_i itself where forming it is cheaper.
    Normalisations form sum_l g_l x_l, x the normalised input. `layer`: one with a shortcut.
    `output_gradients`: of the summed loss at its output, (N, ...).
    """
    if isinstance(layer, nn.LayerNorm | nn.GroupNorm):
        return _normalisation(layer, inputs.float(), output_gradients.float())
    if isinstance(layer, nn.Embedding):
        return _embedding(layer, inputs, output_gradients)
    if isinstance(layer, nn.Conv2d):
        g, weight = output_gradients.float(), layer.weight
        if _forms(g[0, 0].numel(), weight[0].numel(), len(weight) // layer.groups):
            weights = _convolution_weights(layer, inputs.float(), g).flatten(1)
            return formed_gradients([weights] if layer.bias is None else [weights, g.sum((2, 3))])
    return _products(layer, *positions(layer, inputs, output_gradients))


def has_shortcut(layer: nn.Module) -> bool:
    """Say whether a layer's gradients follow from its inputs and output gradients without `torch.func`."""
    values = (getattr(layer, name, None) for name in ("weight", "bias"))
    if not all(
        isinstance(value, nn.Parameter) and value.requires_grad
        for value in values
        if value is not None
    ):
        return False
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return type(layer) in (nn.Linear, nn.LayerNorm, nn.GroupNorm)


def positions(layer: nn.Module, inputs: Tensor, output_gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Return a, shape (N, groups, L, p), and g, shape (N, groups, L, o), float32.

    A convolution's are patches.
    """
    inputs, output_gradients = inputs.float(), output_gradients.float()
    if isinstance(layer, nn.Linear):
        a = inputs.reshape(len(inputs), 1, -1, layer.in_features)
        return a, output_gradients.reshape(len(inputs), 1, -1, layer.out_features)
    assert isinstance(layer, nn.Conv2d)
    a = _patches(layer, inputs).mT
    return a, output_gradients.flatten(2).unflatten(1, (layer.groups, -1)).mT


def _forms(length: int, p: int, o: int) -> bool:
    return (_FORMED_ENTRY - length) * o * p < 2 * length**2 * (o + p)


def _convolution_weights(layer: nn.Conv2d, images: Tensor, g: Tensor) -> Tensor:
    """Return each record's gradient of the weight, shape (N, ...)."""
    # Measured: with fewer channels or positions, patches cost less than what a convolution does
    # besides.
    if layer.in_channels < 8 * layer.groups or g[0, 0].numel() < 48:
        patched = _PATCHED if g.device.type == "cpu" else _PATCHED_ON_GPU
        parts = zip(images.split(patched), g.split(patched), strict=True)
        return torch.cat(
            [right.mT @ left for left, right in (positions(layer, *part) for part in parts)]
        )
    # Records are groups of one convolution.
    wide, gradients = (values.flatten(0, 1)[None] for values in (images, g))
    size = (len(g) * layer.out_channels, *layer.weight.shape[1:])
    given = layer.stride, layer.padding, layer.dilation, layer.groups * len(g)
    return conv2d_weight(wide, size, gradients, *given).view(len(g), -1)


def _patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Return what each output pixel sees, shape (N, groups, p, L): `functional.unfold`, several times as fast."""
    assert not isinstance(layer.padding, str)
    size, step, dilation, (height, width) = (
        layer.kernel_size,
        layer.stride,
        layer.dilation,
        layer.padding,
    )
    if height or width:
        images = functional.pad(images, (width, width, height, height))
    high, wide = (
        (images.shape[2 + i] - dilation[i] * (size[i] - 1) - 1) // step[i] + 1 for i in (0, 1)
    )
    record, channel, *axes = images.stride()
    strides = [
        record,
        channel,
        *(axes[i] * dilation[i] for i in (0, 1)),
        *(axes[i] * step[i] for i in (0, 1)),
    ]
    seen = images.as_strided((*images.shape[:2], *size, high, wide), strides)
    return seen.reshape(len(images), layer.groups, -1, high * wide)


def _products(layer: nn.Module, a: Tensor, g: Tensor) -> LayerGradients:
    groups, length, p, o = *a.shape[1:], g.shape[3]
    if groups == length == 1:
        return outer_gradients(a.flatten(1), g.flatten(1), layer.bias is not None)
    bias = () if layer.bias is None else (g.sum(dim=2).flatten(1),)
    if _forms(length, p, o):
        return formed_gradients([(g.mT @ a).flatten(1), *bias])
    a, g = a.double(), g.double()
    norms = _gram_norm(a @ a.mT, g)
    return LayerGradients(
        torch.hypot(norms, row_norms(bias[0])) if bias else norms, bias, (a, g), groups * o * p
    )


def _normalisation(layer: nn.LayerNorm | nn.GroupNorm, inputs: Tensor, g: Tensor) -> LayerGradients:
    if isinstance(layer, nn.LayerNorm):
        normalised = functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
        axis, shape = 1, (len(g), -1, layer.weight.numel())
    else:
        normalised = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
        axis, shape = 2, (len(g), layer.num_channels, -1)
    parts = [g * normalised] if layer.bias is None else [g * normalised, g]
    rows = [part.reshape(shape) for part in parts]
    return formed_gradients([(aligned(each) if axis == 2 else each).sum(axis) for each in rows])


def _embedding(layer: nn.Embedding, indices: Tensor, output_gradients: Tensor) -> LayerGradients:
    indices = indices.reshape(len(indices), -1)
    g = output_gradients.double().reshape(len(indices), 1, -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        g = torch.where((indices == layer.padding_idx)[:, None, :, None], 0.0, g)
    same = (indices[:, None, :, None] == indices[:, None, None, :]).double()
    return LayerGradients(_gram_norm(same, g), (), (indices, g), layer.weight.numel())


def _gram_norm(gram_a: Tensor, g: Tensor) -> Tensor:
    gram_g = g @ g.mT
    lengths = (gram_a.diagonal(dim1=2, dim2=3) * gram_g.diagonal(dim1=2, dim2=3)).sqrt().sum(dim=2)
    squares = gram_a.mul_(gram_g).sum(dim=(2, 3)).clamp(min=0.0)
    return (squares + _GRAM_ALLOWANCE * lengths.square()).sum(dim=1).sqrt()
