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

from fl_dpbayes.samplers.gradients.clipping import weighted_rows

# Added to a squared norm that cancellation can shrink, relative to the square of sum_l |g_l| |a_l|: it bounds how far
# the rounding of the weighted sum can exceed what the norm foretells.
_GRAM_ALLOWANCE = 1e-6
# |sum_l g_l a_l'| >= sum_l |g_l| |a_l| / this, by the allowance.
LARGEST_CANCELLATION = 1000.0


@dataclass(frozen=True)
class LayerGradients:
    """Per-example gradients of one layer in factored form.

    `norms`: norm of weight and bias gradient together, shape (N,), float64. `inputs`: a, shape (N, groups, L, p).
    `output_gradients`: g, shape (N, groups, L, o). `weights`: W_i where it had to be formed, shape (N, groups, o,
    p), else None. `bias`: b_i, shape (N, groups, o), float64, or None for a layer without bias.
    """

    norms: torch.Tensor
    inputs: torch.Tensor
    output_gradients: torch.Tensor
    weights: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def rows(self) -> list[torch.Tensor]:
        """All of it, tensors whose first axis is that of the records."""
        parts = (self.norms, self.inputs, self.output_gradients, self.weights, self.bias)
        return [part for part in parts if part is not None]

    @property
    def terms(self) -> float:
        """How many terms of a weighted sum a record adds to each entry, times how far they may cancel."""
        positions = self.inputs.shape[2]
        return 1.0 if self.weights is not None or positions == 1 else positions * LARGEST_CANCELLATION


def layer_gradients(layer: nn.Module, inputs: torch.Tensor, output_gradients: torch.Tensor) -> LayerGradients:
    """Compute per-example gradient norms of one layer, by the cheapest exact way.

    Linear with one position: |W_i| = |g| |a|. Otherwise, with o x p weights per group: the Gram form sum_{l,m} (a_l .
    a_m)(g_l . g_m) if 2 L^2 < o p, else the norm of W_i itself. `layer`: a Linear or a Conv2d with integer zero
    padding. `inputs`: what the layer was given, shape (N, ...). `output_gradients`: gradient of the summed loss at its
    output, shape (N, ...).
    """
    a, g = positions(layer, inputs, output_gradients)
    length, p, o = a.shape[2], a.shape[3], g.shape[3]
    weights = None
    if (length > 1 or a.shape[1] > 1) and 2 * length**2 >= o * p:
        weights = g.mT @ a
        norms = row_norms(weights)
    elif length == 1 and a.shape[1] == 1:
        norms = row_norms(a) * row_norms(g)
    else:
        norms = _gram_norm(a.double(), g.double())
    bias = None if layer.bias is None else g.sum(dim=2, dtype=torch.float64)
    if bias is not None:
        norms = torch.hypot(norms, row_norms(bias))
    return LayerGradients(norms, a, g, weights, bias)


def weighted_sum(gradients: LayerGradients, factors: torch.Tensor) -> list[torch.Tensor]:
    """Return sum_i c_i W_i and, if the layer has a bias, sum_i c_i b_i, flat, in float64, from factors c_i, shape (N,).

    A record with c_i = 0 is left out whatever its gradient holds (0 times infinity is NaN).
    """
    if gradients.weights is not None:
        weight = weighted_rows(factors, gradients.weights.flatten(1))
    else:
        kept = (factors > 0)[:, None, None, None]
        g = torch.where(kept, gradients.output_gradients, 0.0) * factors[:, None, None, None]
        a = torch.where(kept, gradients.inputs, 0.0).double()
        groups, p, o = a.shape[1], a.shape[3], g.shape[3]
        left = g.transpose(0, 1).reshape(groups, -1, o)
        right = a.transpose(0, 1).reshape(groups, -1, p)
        weight = (left.mT @ right).reshape(-1)
    # Not from g: where positions cancel, the rounding of their weighted sum can exceed what their norm foretold.
    return [weight] if gradients.bias is None else [weight, weighted_rows(factors, gradients.bias.flatten(1))]


def positions(layer: nn.Module, inputs: torch.Tensor, output_gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a, shape (N, groups, L, p), and g, shape (N, groups, L, o), float32; a convolution's are patches."""
    inputs, output_gradients = inputs.float(), output_gradients.float()
    if isinstance(layer, nn.Linear):
        a = inputs.reshape(len(inputs), 1, -1, layer.in_features)
        return a, output_gradients.reshape(len(inputs), 1, -1, layer.out_features)
    assert isinstance(layer, nn.Conv2d)
    patches = functional.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    a = patches.unflatten(1, (layer.groups, -1)).mT
    return a, output_gradients.flatten(2).unflatten(1, (layer.groups, -1)).mT


def row_norms(values: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm of each row, shape (N,), float64."""
    return torch.linalg.vector_norm(values.flatten(1), dim=1, dtype=torch.float64)


def _gram_norm(a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    gram_a, gram_g = a @ a.mT, g @ g.mT
    lengths = (gram_a.diagonal(dim1=2, dim2=3) * gram_g.diagonal(dim1=2, dim2=3)).sqrt().sum(dim=2)
    squares = (gram_a * gram_g).sum(dim=(2, 3)).clamp(min=0.0)
    return (squares + _GRAM_ALLOWANCE * lengths.square()).sum(dim=1).sqrt()
