"""What one layer under shared weight draws adds to per-example norms and to the clipped sum.

A Linear or Conv2d layer has weights w_s = mean + log(1 + exp(spread)) e_s for draws s = 1 .. S. Its
inputs a_is and output gradients g_is are those of record i under draw s, and
E_s = e_s o sigmoid(spread) is the slope of w_s by the spread.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from fl_dpbayes.samplers.gradients.contribution import (
    LARGEST_CANCELLATION,
    row_norms,
    weighted_rows,
)
from fl_dpbayes.samplers.gradients.layer_gradients import positions

_ROUNDING = torch.finfo(torch.float32).eps / 2
_TINY = torch.finfo(torch.float32).tiny
# Products over pairs of draws are taken all at once for small layers, and a few at a time for large
# ones: 8 MiB of them are faster than 128 MiB.
_PAIR_ELEMENTS = 2**21


@dataclass(frozen=True)
class DrawnLayer:
    """Per-example gradients of one layer in factored form.

    They are scaled so that no product leaves the range of float32. Record i has the gradients
    (sums over positions where there are several)

        by mean     M_i = sum_s g_is a_is'
        by spread   R_i = sum_s (g_is a_is') o E_s

    Attributes:
        inputs: a over its scale, shape (S, N, G, L, p), entries in [-1, 1].
        output_gradients: g over its scale, shape (S, N, G, L, o), entries in [-1, 1].
        input_scale: Largest |a| of each record, shape (N,), float64.
        output_scale: Largest |g| of each record, shape (N,), float64.
        weight_slopes: E of the weight, shape (S, G, o, p).
        bias_slopes: E of the bias, shape (S, G, o), or None.
        formed: M and R, scaled, shape (N, G, o, p) each. None for one position and group, where
            norms need neither.
    """

    inputs: torch.Tensor
    output_gradients: torch.Tensor
    input_scale: torch.Tensor
    output_scale: torch.Tensor
    weight_slopes: torch.Tensor
    bias_slopes: torch.Tensor | None
    formed: tuple[torch.Tensor, torch.Tensor] | None

    @property
    def rows(self) -> list[torch.Tensor]:
        """All that records have of their own, tensors whose first axis is that of the records."""
        by_draw = [self.inputs.transpose(0, 1), self.output_gradients.transpose(0, 1)]
        return [*by_draw, self.input_scale, self.output_scale, *(self.formed or ()), *norms(self)]

    @property
    def terms(self) -> float:
        """How many terms of a sum a record adds to each entry, times how far they may cancel."""
        return len(self.inputs) * LARGEST_CANCELLATION


def drawn_outputs(
    layer: nn.Module, rows: torch.Tensor, weights: torch.Tensor, biases: torch.Tensor | None
) -> torch.Tensor:
    """Apply a layer under S weight draws to S batches at once.

    Args:
        layer: A Linear or Conv2d.
        rows: Draw by draw, shape (S N, ...).
        weights: Shape (S, *weight shape).
        biases: Shape (S, o), or None.

    Returns:
        Outputs, draw by draw, shape (S N, ...).
    """
    draws = len(weights)
    if isinstance(layer, nn.Linear):
        inputs = rows.reshape(draws, -1, layer.in_features)
        output_shape = (*rows.shape[:-1], layer.out_features)
        if biases is None:
            return (inputs @ weights.mT).reshape(output_shape)
        return torch.baddbmm(biases[:, None], inputs, weights.mT).reshape(output_shape)
    assert isinstance(layer, nn.Conv2d)
    # Draws as groups of one wide convolution.
    wide = rows.unflatten(0, (draws, -1)).transpose(0, 1).flatten(1, 2)
    outputs = functional.conv2d(
        wide,
        weights.flatten(0, 1),
        bias=None if biases is None else biases.flatten(),
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=draws * layer.groups,
    )
    return outputs.unflatten(1, (draws, -1)).transpose(0, 1).flatten(0, 1)


def drawn_layer(
    layer: nn.Module,
    rows: torch.Tensor,
    output_gradients: torch.Tensor,
    weight_slopes: torch.Tensor,
    bias_slopes: torch.Tensor | None,
) -> DrawnLayer:
    """Bring a layer's inputs and output gradients into factored form, float32.

    Args:
        layer: A Linear, or a Conv2d with integer zero padding.
        rows: What it was given, draw by draw, shape (S N, ...).
        output_gradients: Of the summed loss at its output, draw by draw, shape (S N, ...).
        weight_slopes: E of the weight, shape (S, *weight shape).
        bias_slopes: E of the bias, shape (S, o), or None.

    Returns:
        The layer's gradients.
    """
    draws = len(weight_slopes)
    a, g = positions(layer, rows, output_gradients)
    groups = a.shape[1]
    a, input_scale = _scaled(a.unflatten(0, (draws, -1)))
    g, output_scale = _scaled(g.unflatten(0, (draws, -1)))
    weight_slopes = weight_slopes.float().reshape(draws, groups, g.shape[-1], a.shape[-1])
    formed = None
    if a.shape[2:4] != (1, 1):
        by_draw = g.mT @ a
        by_mean = by_draw.sum(0)
        by_spread = torch.einsum("sngop,sgop->ngop", by_draw, weight_slopes)
        formed = (by_mean, by_spread)
    if bias_slopes is not None:
        bias_slopes = bias_slopes.float().reshape(draws, groups, -1)
    return DrawnLayer(
        inputs=a,
        output_gradients=g,
        input_scale=input_scale,
        output_scale=output_scale,
        weight_slopes=weight_slopes,
        bias_slopes=bias_slopes,
        formed=formed,
    )


def norms(layer: DrawnLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return upper bounds, tight to rounding, on the norms of each record's gradients.

    For one position they follow without forming the gradients:

        |M_i|^2 = sum_{s,t} (g_is . g_it) (a_is . a_it)
        |R_i|^2 = sum_{s,t} (g_is o g_it)' (E_s o E_t) (a_is o a_it)

    Args:
        layer: Gradients of N records.

    Returns:
        By mean and by spread, weight and bias together, shape (N,) each, float64; not finite where
        the gradient is not.
    """
    if layer.formed is None:
        by_mean = _mean_norms(layer)
        by_spread = _spread_norms(layer)
    else:
        by_mean, by_spread = (row_norms(weights) for weights in layer.formed)
    scale = layer.input_scale * layer.output_scale
    by_mean = by_mean * scale
    by_spread = by_spread * scale
    if layer.bias_slopes is not None:
        gradients = layer.output_gradients.sum(dim=3)
        sloped = gradients * layer.bias_slopes[:, None]
        by_mean = torch.hypot(by_mean, layer.output_scale * _norms_of_sums(gradients))
        by_spread = torch.hypot(by_spread, layer.output_scale * _norms_of_sums(sloped))
    return by_mean, by_spread


def weighted_sums(
    layer: DrawnLayer, mean_factors: torch.Tensor, spread_factors: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the sums over records of c_i M_i and of k_i R_i.

    A record with factor 0 is left out whatever its gradient holds (0 times infinity is NaN).

    Args:
        layer: Gradients of N records.
        mean_factors: c_i, shape (N,), float64.
        spread_factors: k_i, shape (N,), float64.

    Returns:
        By mean and by spread: that of the weight and, if there is one, that of the bias, flat,
        float64.
    """
    scale = layer.input_scale * layer.output_scale
    mean_parts, spread_parts = _weight_sums(
        layer,
        for_mean=_coefficients(mean_factors, scale),
        for_spread=_coefficients(spread_factors, scale),
    )
    if layer.bias_slopes is not None:
        gradients = layer.output_gradients.sum(dim=3).transpose(0, 1).flatten(1)
        for_mean = _coefficients(mean_factors, layer.output_scale)
        for_spread = _coefficients(spread_factors, layer.output_scale)
        by_mean = weighted_rows(for_mean, gradients).view_as(layer.bias_slopes)
        by_spread = weighted_rows(for_spread, gradients).view_as(layer.bias_slopes)
        mean_parts.append(by_mean.sum(0))
        spread_parts.append((by_spread * layer.bias_slopes).sum(0))
    return [part.flatten() for part in mean_parts], [part.flatten() for part in spread_parts]


def _weight_sums(
    layer: DrawnLayer, for_mean: torch.Tensor, for_spread: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    if layer.formed is not None:
        by_mean, by_spread = (gradients.flatten(1) for gradients in layer.formed)
        return [weighted_rows(for_mean, by_mean)], [weighted_rows(for_spread, by_spread)]
    mean_draws = _draw_sums(layer, for_mean)
    # Most rules give both parts of a gradient one factor.
    is_one_factor = torch.equal(for_mean, for_spread)
    spread_draws = mean_draws if is_one_factor else _draw_sums(layer, for_spread)
    return [mean_draws.sum(0)], [(spread_draws * layer.weight_slopes).sum(0)]


def _draw_sums(layer: DrawnLayer, coefficients: torch.Tensor) -> torch.Tensor:
    """Return the sum over records of c_i g_is a_is' for each draw, shape (S, 1, o, p), float64."""
    a = layer.inputs[:, :, 0, 0]
    g = layer.output_gradients[:, :, 0, 0]
    is_used = (coefficients > 0)[:, None]
    weighted = torch.where(is_used, g, 0.0) * coefficients[:, None]
    return (weighted.mT @ torch.where(is_used, a, 0.0).double())[:, None]


def _coefficients(factors: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    products = factors * scale
    return torch.where((factors > 0) & products.isfinite(), products, 0.0)


def _scaled(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = values.abs().amax(dim=(0, 2, 3, 4)).clamp(min=_TINY)
    return values / largest[:, None, None, None], largest.double()


def _mean_norms(layer: DrawnLayer) -> torch.Tensor:
    a = layer.inputs[:, :, 0, 0].transpose(0, 1).double()
    g = layer.output_gradients[:, :, 0, 0].transpose(0, 1).double()
    products = (a @ a.mT) * (g @ g.mT)
    lengths = products.diagonal(dim1=1, dim2=2).sqrt().sum(dim=1)
    return _upper_root(products.sum(dim=(1, 2)), lengths, draws=len(layer.inputs), terms=0)


def _spread_norms(layer: DrawnLayer) -> torch.Tensor:
    left = layer.output_gradients[:, :, 0, 0]
    right = layer.inputs[:, :, 0, 0]
    largest = layer.weight_slopes.abs().amax().clamp(min=_TINY)
    slopes = layer.weight_slopes[:, 0] / largest
    if left.shape[2] > right.shape[2]:
        # The product that is rounded in float32 runs over the shorter side.
        left, right = right, left
        slopes = slopes.mT
    draws, records, terms = left.shape
    first, second = torch.triu_indices(draws, draws, device=left.device)
    entries_of_pair = slopes[0].numel() + left[0].numel() + right[0].numel()
    pairs = max(1, _PAIR_ELEMENTS // entries_of_pair)
    squares = left.new_zeros(records, dtype=torch.float64)
    lengths = torch.zeros_like(squares)
    for s, t in zip(first.split(pairs), second.split(pairs), strict=True):
        products = (left[s] * left[t]) @ (slopes[s] * slopes[t]) * (right[s] * right[t])
        form = products.sum(dim=2, dtype=torch.float64)
        on_diagonal = (s == t)[:, None]
        squares += torch.where(on_diagonal, form, 2 * form).sum(0)
        lengths += torch.where(on_diagonal, form, 0.0).sqrt().sum(0)
    # Products below the smallest normal number may have become zero.
    squares += 4 * draws**2 * slopes[0].numel() * _TINY
    return _upper_root(squares, lengths, draws=draws, terms=terms) * largest.double()


def _upper_root(
    squares: torch.Tensor, lengths: torch.Tensor, draws: int, terms: int
) -> torch.Tensor:
    # Draws may cancel, so rounding is bounded relative to the sum of their lengths: a sum of m
    # float32 products is off by at most some m roundings of the sum of their magnitudes, and the
    # sum over S draws that is clipped by some S.
    roundings = 1.01 * terms + 4 * draws + 32
    return (squares.clamp(min=0.0) + roundings * _ROUNDING * lengths.square()).sqrt()


def _norms_of_sums(gradients: torch.Tensor) -> torch.Tensor:
    squares = row_norms(gradients.sum(0)).square()
    lengths = row_norms(gradients.abs().sum(0))
    return _upper_root(squares, lengths, draws=len(gradients), terms=0)
