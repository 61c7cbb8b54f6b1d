"""What one layer adds to per-example norms and to the clipped sum.

Record i's gradient is W_i = sum_l g_il a_il', b_i = sum_l g_il over positions l (one for a Linear,
L pixels for a convolution), with a the layer's input (patches for a convolution, unit vectors for
an Embedding) and g the gradient at its output. Its norm follows without W_i where that is cheaper.
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
# Measured: with fewer channels or positions, patches cost less than what a convolution does
# besides its products.
_FEWEST_CHANNELS = 8
_FEWEST_POSITIONS = 48


def layer_gradients(layer: nn.Module, inputs: Tensor, output_gradients: Tensor) -> LayerGradients:
    """Compute per-example gradient norms of one layer, by the cheapest exact way.

    Linear with one position: |W_i| = |g| |a|. Otherwise, with o x p weights per group, the Gram
    form sum_{l,m} (a_l . a_m)(g_l . g_m), or the norm of W_i itself where forming it is cheaper.
    Normalisations form sum_l g_l x_l, x the normalised input.

    Args:
        layer: One with a shortcut.
        inputs: What it was given, shape (N, ...).
        output_gradients: Of the summed loss at its output, shape (N, ...).

    Returns:
        The layer's gradients.
    """
    if isinstance(layer, nn.LayerNorm | nn.GroupNorm):
        return _normalisation(layer, inputs.float(), output_gradients.float())
    if isinstance(layer, nn.Embedding):
        return _embedding(layer, inputs, output_gradients)
    if isinstance(layer, nn.Conv2d):
        g = output_gradients.float()
        weight = layer.weight
        is_formed = _forming_is_cheaper(
            length=g[0, 0].numel(), p=weight[0].numel(), o=len(weight) // layer.groups
        )
        if is_formed:
            weights = _convolution_weights(layer, inputs.float(), g).flatten(1)
            return formed_gradients([weights] if layer.bias is None else [weights, g.sum((2, 3))])
    return position_gradients(layer, *positions(layer, inputs, output_gradients))


def has_shortcut(layer: nn.Module) -> bool:
    """Say whether its gradients follow from inputs and output gradients without `torch.func`."""
    for name in ("weight", "bias"):
        value = getattr(layer, name, None)
        if value is None:
            continue
        if not (isinstance(value, nn.Parameter) and value.requires_grad):
            return False
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return type(layer) in (nn.Linear, nn.LayerNorm, nn.GroupNorm)


def positions(layer: nn.Module, inputs: Tensor, output_gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Return what goes into a layer and comes back to it at each position.

    Args:
        layer: A Linear or Conv2d.
        inputs: What it was given, shape (N, ...).
        output_gradients: Of the summed loss at its output, shape (N, ...).

    Returns:
        a, shape (N, groups, L, p), patches of a convolution; and g, shape (N, groups, L, o). Both
        float32.
    """
    inputs = inputs.float()
    output_gradients = output_gradients.float()
    if isinstance(layer, nn.Linear):
        a = inputs.reshape(len(inputs), 1, -1, layer.in_features)
        return a, output_gradients.reshape(len(inputs), 1, -1, layer.out_features)
    assert isinstance(layer, nn.Conv2d)
    a = _patches(layer, inputs).mT
    return a, output_gradients.flatten(2).unflatten(1, (layer.groups, -1)).mT


def _forming_is_cheaper(length: int, p: int, o: int) -> bool:
    """Say whether o x p weights cost less than Gram matrices of `length` positions."""
    return (_FORMED_ENTRY - length) * o * p < 2 * length**2 * (o + p)


def _convolution_weights(layer: nn.Conv2d, images: Tensor, g: Tensor) -> Tensor:
    """Return each record's gradient of the weight, shape (N, ...)."""
    count = len(g)
    is_narrow = layer.in_channels < _FEWEST_CHANNELS * layer.groups
    if is_narrow or g[0, 0].numel() < _FEWEST_POSITIONS:
        patched = _PATCHED if g.device.type == "cpu" else _PATCHED_ON_GPU
        products = []
        for some_images, some_g in zip(images.split(patched), g.split(patched), strict=True):
            inputs, gradients = positions(layer, some_images, some_g)
            products.append(gradients.mT @ inputs)
        return torch.cat(products)
    # Records are groups of one convolution.
    weights = conv2d_weight(
        images.flatten(0, 1)[None],
        (count * layer.out_channels, *layer.weight.shape[1:]),
        g.flatten(0, 1)[None],
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups * count,
    )
    return weights.view(count, -1)


def _patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """Return what each output pixel sees, shape (N, groups, p, L).

    This is `functional.unfold`, several times as fast.
    """
    assert not isinstance(layer.padding, str)
    kernel_height, kernel_width = layer.kernel_size
    row_step, column_step = layer.stride
    row_dilation, column_dilation = layer.dilation
    pad_height, pad_width = layer.padding
    if pad_height or pad_width:
        images = functional.pad(images, (pad_width, pad_width, pad_height, pad_height))
    count, channels, height, width = images.shape
    output_height = (height - row_dilation * (kernel_height - 1) - 1) // row_step + 1
    output_width = (width - column_dilation * (kernel_width - 1) - 1) // column_step + 1
    of_record, of_channel, of_row, of_column = images.stride()
    windows = images.as_strided(
        (count, channels, kernel_height, kernel_width, output_height, output_width),
        (
            of_record,
            of_channel,
            of_row * row_dilation,
            of_column * column_dilation,
            of_row * row_step,
            of_column * column_step,
        ),
    )
    return windows.reshape(count, layer.groups, -1, output_height * output_width)


def position_gradients(layer: nn.Module, a: Tensor, g: Tensor) -> LayerGradients:
    """Compute per-example gradient norms of a layer from what it has at each position.

    Args:
        layer: A Linear or Conv2d.
        a: Its inputs, shape (N, groups, L, p), float32.
        g: Gradients at its outputs, shape (N, groups, L, o), float32.

    Returns:
        The layer's gradients.
    """
    _, groups, length, p = a.shape
    o = g.shape[3]
    if groups == length == 1:
        return outer_gradients(a.flatten(1), g.flatten(1), biased=layer.bias is not None)
    bias = () if layer.bias is None else (g.sum(dim=2).flatten(1),)
    if _forming_is_cheaper(length=length, p=p, o=o):
        return formed_gradients([(g.mT @ a).flatten(1), *bias])
    a = a.double()
    g = g.double()
    norms = _gram_norm(a @ a.mT, g)
    if bias:
        norms = torch.hypot(norms, row_norms(bias[0]))
    return LayerGradients(norms=norms, formed=bias, product=(a, g), entries=groups * o * p)


def _normalisation(layer: nn.LayerNorm | nn.GroupNorm, inputs: Tensor, g: Tensor) -> LayerGradients:
    shape: tuple[int, ...]
    if isinstance(layer, nn.LayerNorm):
        normalised = functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
        shape = (len(g), -1, layer.weight.numel())
        positions_axis = 1
    else:
        normalised = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
        shape = (len(g), layer.num_channels, -1)
        positions_axis = 2
    parts = [g * normalised] if layer.bias is None else [g * normalised, g]
    rows = [part.reshape(shape) for part in parts]
    if positions_axis == 2:
        rows = [aligned(row) for row in rows]
    return formed_gradients([row.sum(positions_axis) for row in rows])


def _embedding(layer: nn.Embedding, indices: Tensor, output_gradients: Tensor) -> LayerGradients:
    indices = indices.reshape(len(indices), -1)
    g = output_gradients.double().reshape(len(indices), 1, -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        is_padding = indices == layer.padding_idx
        g = torch.where(is_padding[:, None, :, None], 0.0, g)
    # Unit vectors of equal indices have the product 1, others 0.
    gram = (indices[:, None, :, None] == indices[:, None, None, :]).double()
    return LayerGradients(
        norms=_gram_norm(gram, g),
        formed=(),
        product=(indices, g),
        entries=layer.weight.numel(),
    )


def _gram_norm(gram_a: Tensor, g: Tensor) -> Tensor:
    """Return sqrt(sum_{l,m} (a_l . a_m)(g_l . g_m)) with its allowance, and overwrite `gram_a`."""
    gram_g = g @ g.mT
    lengths = (gram_a.diagonal(dim1=2, dim2=3) * gram_g.diagonal(dim1=2, dim2=3)).sqrt().sum(dim=2)
    squares = gram_a.mul_(gram_g).sum(dim=(2, 3)).clamp(min=0.0)
    return (squares + _GRAM_ALLOWANCE * lengths.square()).sum(dim=1).sqrt()
