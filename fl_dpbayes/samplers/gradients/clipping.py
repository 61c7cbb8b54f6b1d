"""The clipping rules: how much of a unit's gradient enters the sum."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import starmap

import numpy as np
import torch
from torch import nn

from fl_dpbayes.config import (
    FLAT,
    AutomaticClipping,
    Clipping,
    FlatClipping,
    GlobalClipping,
    PerLayerClipping,
)
from fl_dpbayes.models import ROWS, moved, pieces, trainable_parameters
from fl_dpbayes.samplers.gradients.contribution import LayerGradients, formed_gradients, used_rows
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy

# (module, features (P, ...), targets (P,), loss) -> gradients of each layer, in order.
GradientsOfPass = Callable[
    [nn.Module, torch.Tensor, torch.Tensor, RecordLoss], Sequence[LayerGradients]
]

# More than the rounding of any norm: it keeps a clipped gradient within C.
_ROUNDING_MARGIN = 1e-6


@dataclass(frozen=True)
class ClippedSum:
    """The sum of a batch's clipped gradients, and what the clip did.

    Only the sum, once noised, may leave the site.

    Attributes:
        total: The sum, shape (d,), float64.
        clipped: Number of units whose gradient the rule reduced, a tensor of one entry.
        units: Number of units in the batch.
    """

    total: torch.Tensor
    clipped: torch.Tensor
    units: int


def add_up(module: nn.Module, device: torch.device, sums: Iterable[ClippedSum]) -> ClippedSum:
    """Add the clipped sums of disjoint parts of a batch, one after the other.

    Args:
        module: Its trainable parameters are those of the sums.
        device: Where the sums are.
        sums: The first one's memory takes the total; none for an empty batch.

    Returns:
        The sum over the batch, zeros for an empty one.
    """
    batch = None
    for part in sums:
        if batch is None:
            batch = part
        else:
            batch = ClippedSum(
                total=batch.total.add_(part.total),
                clipped=batch.clipped + part.clipped,
                units=batch.units + part.units,
            )
    if batch is None:
        size = sum(parameter.numel() for parameter in trainable_parameters(module).values())
        zeros = torch.zeros(size, dtype=torch.float64, device=device)
        return ClippedSum(total=zeros, clipped=torch.tensor(0), units=0)
    return batch


def sum_in_passes(
    gradients_of: GradientsOfPass,
    module: nn.Module,
    features: torch.Tensor,
    targets: torch.Tensor,
    *,
    clip_norm: float,
    clipping: Clipping = FLAT,
    loss: RecordLoss = summed_cross_entropy,
    rows: int = ROWS,
) -> ClippedSum:
    """Return sum_i clip_C(gradient of record i's loss).

    Args:
        gradients_of: Computes the gradients of a pass.
        module: What is trained.
        features: Of the module's type and device, shape (N, *shape); N may be 0.
        targets: Classes (int64) or values (float32), shape (N,).
        clip_norm: C > 0; may be infinite for `flat` and `per-layer` clipping.
        clipping: The rule.
        loss: Summed over records.
        rows: How many every pass has.

    Returns:
        The sum, its entries in the order of `named_parameters()`.

    Raises:
        ValueError: By book-keeping, a layer was used more than once, or not at all.
    """

    def piece_sum(part: torch.Tensor, part_targets: torch.Tensor, count: int) -> ClippedSum:
        layers = gradients_of(module, part, part_targets, loss)
        return clip_and_sum(layers, clip_norm=clip_norm, clipping=clipping, count=count)

    return add_up(module, features.device, sums=starmap(piece_sum, pieces(rows, features, targets)))


def clip_factors(
    layer_norms: Sequence[torch.Tensor], clip_norm: float, clipping: Clipping
) -> list[torch.Tensor]:
    """Return the factors of each unit's gradient, so that the clipped gradient's norm is at most C.

    With |g| the norm over all L layers:

        flat         min(1, C / |g|)
        global       (C / Z) min(1, max(0, 2 - |g| / Z))
        automatic    C / (|g| + stability)
        per-layer    min(1, C / (sqrt(L) |g_l|)) for layer l

    where C stands for C (1 - 1e-6). A unit with any norm that is not finite gets 0 in every layer.
    The global rule of the source drops to 0 at Z; here it falls to 0 between Z and 2 Z, so that no
    factor jumps.

    Args:
        layer_norms: Norm of each unit's gradient in each layer, shape (N,) each.
        clip_norm: C > 0; may be infinite for `flat` and `per-layer`.
        clipping: The rule.

    Returns:
        Factors >= 0 for each layer, shape (N,) each, float64.

    Raises:
        ValueError: The rule needs another C.

    Source:
        Abadi et al. 2016, Algorithm 1; Bu et al. 2021 (global); Bu et al. 2022 (automatic);
        McMahan et al. 2018 (per-layer).
    """
    bound = clip_norm * (1 - _ROUNDING_MARGIN)
    layer_norms = [norms.double() for norms in layer_norms]
    norms = reduce(torch.hypot, layer_norms)
    match clipping:
        case PerLayerClipping():
            layer_bound = bound / math.sqrt(len(layer_norms))
            is_finite = norms < math.inf
            return [
                torch.where(is_finite, (layer_bound / norms_of_layer).clamp_(max=1.0), 0.0)
                for norms_of_layer in layer_norms
            ]
        case FlatClipping():
            factors = norms.reciprocal().mul_(bound).clamp_(max=1.0)
        case GlobalClipping(bound=largest):
            if largest < clip_norm:
                raise ValueError(
                    f"global clipping has bound {largest} below clip_norm {clip_norm}: "
                    "raise the bound"
                )
            factors = bound / largest * (2 - norms / largest).clamp(0.0, 1.0)
        case AutomaticClipping(stability=stability):
            if math.isinf(clip_norm):
                raise ValueError(
                    "automatic clipping scales every gradient to clip_norm: give a finite clip_norm"
                )
            factors = bound / (norms + stability)
    # An infinite norm has given 0, or NaN where C is infinite too.
    return [factors.nan_to_num_(0.0)] * len(layer_norms)


def clip_and_sum(
    layers: Sequence[LayerGradients], clip_norm: float, clipping: Clipping, count: int
) -> ClippedSum:
    """Clip the gradients of one pass and sum them; what is not finite contributes zero.

    Args:
        layers: Gradients of N rows by each layer, in the order of the flat vector.
        clip_norm: As for `clip_factors`.
        clipping: As for `clip_factors`.
        count: How many of the first rows are units, not padding.

    Returns:
        The sum over the units.
    """
    factors = clip_factors([layer.norms for layer in layers], clip_norm, clipping)
    least = least_factors(factors)[:count]
    used = used_rows(least)
    sizes = [layer.size for layer in layers]
    total = least.new_empty(sum(sizes))
    parts = torch.split_with_sizes(total, sizes)
    for layer, layer_factors, part in zip(layers, factors, parts, strict=True):
        layer.weighted_sum(layer_factors, used=used, out=part)
    return ClippedSum(total=total, clipped=(least < 1).count_nonzero(), units=count)


def least_factors(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the least factor of each unit over layers, below 1 where its gradient was reduced.

    Args:
        factors: Of each layer, shape (N,) each.

    Returns:
        Shape (N,).
    """
    # Rules that do not tell layers apart give one tensor for all.
    if factors[0] is factors[-1]:
        return factors[0]
    return reduce(torch.minimum, factors)


def sum_clipped(
    gradients: torch.Tensor,
    clip_norm: float,
    clipping: Clipping = FLAT,
    layer_sizes: Sequence[int] = (),
    count: int | None = None,
) -> ClippedSum:
    """Clip materialised gradients and sum them; a gradient that is not finite contributes zero.

    Args:
        gradients: One row per unit, shape (N, d).
        clip_norm: As for `clip_factors`.
        clipping: As for `clip_factors`.
        layer_sizes: Number of columns of each layer, needed by `per-layer`.
        count: How many of the first rows are units, not padding; all of them if None.

    Returns:
        The sum over the units.
    """
    blocks: Sequence[torch.Tensor] = (gradients,)
    if isinstance(clipping, PerLayerClipping):
        blocks = gradients.split(list(layer_sizes), dim=1)
    return clip_and_sum(
        [formed_gradients([block]) for block in blocks],
        clip_norm=clip_norm,
        clipping=clipping,
        count=len(gradients) if count is None else count,
    )


def with_pre_noise(
    gradients: torch.Tensor, scale: float, generator: np.random.Generator
) -> torch.Tensor:
    """Return g_i + rho xi_i, xi_i ~ N(0, I), for each unit i.

    The clip comes after it, so the sensitivity stays C and the account of the noise on the sum
    stands. It buys no privacy of its own, and it biases the clipped mean.

    Args:
        gradients: g, shape (U, d), float32.
        scale: rho >= 0.
        generator: Draws xi.

    Returns:
        Shape (U, d), float32.
    """
    noise = generator.standard_normal(gradients.shape, dtype=np.float32)
    return gradients + scale * moved(noise, gradients.device)
