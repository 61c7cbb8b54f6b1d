"""The clipping rules: how much of a unit's gradient enters the sum."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

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
from fl_dpbayes.models import moved, trainable_parameters
from fl_dpbayes.samplers.gradients.contribution import LayerGradients, formed_gradients, used_rows

# More than the rounding of any norm: it keeps a clipped gradient within C.
_ROUNDING_MARGIN = 1e-6


@dataclass(frozen=True)
class ClippedSum:
    """The sum of a batch's clipped gradients, and what the clip did.

    Only the sum, once noised, may leave the site.

    `total`: (d,), float64. `clipped`: number of units whose gradient the rule reduced. `units`: of
    the batch.
    """

    total: torch.Tensor
    clipped: torch.Tensor
    units: int


def add_up(module: nn.Module, device: torch.device, sums: Iterable[ClippedSum]) -> ClippedSum:
    """Add the clipped sums of disjoint parts of a batch, one after the other.

    Zeros for an empty batch.
    """
    found = None
    for each in sums:
        if found is None:
            found = each
        else:
            found = ClippedSum(
                found.total.add_(each.total), found.clipped + each.clipped, found.units + each.units
            )
    if found is None:
        size = sum(parameter.numel() for parameter in trainable_parameters(module).values())
        return ClippedSum(torch.zeros(size, dtype=torch.float64, device=device), torch.tensor(0), 0)
    return found


def clip_factors(
    layer_norms: Sequence[torch.Tensor], clip_norm: float, clipping: Clipping
) -> list[torch.Tensor]:
    """Return the factors of each unit's gradient, so that the clipped gradient's norm is at most C.

    With |g| the norm over all L layers: flat: min(1, C / |g|); global: (C / Z) min(1, max(0, 2 -
    |g| / Z)); automatic: C / (|g| + stability); per-layer: min(1, C / (sqrt(L) |g_l|)) for layer l.
    C stands for C (1 - 1e-6). A unit with any norm that is not finite gets 0 in every layer. The
    global rule of the source drops to 0 at Z; here it falls to 0 between Z and 2 Z, so that no
    factor jumps. Sources: Abadi et al. 2016, Algorithm 1; Bu et al. 2021 (global); Bu et al. 2022
    (automatic); McMahan et al. 2018.

    `layer_norms`: norm of each unit's gradient in each layer, (N,). `clip_norm`: C > 0, may be
    infinite for `flat` and `per-layer`. Returns factors >= 0 for each layer, (N,), float64. Raises
    ValueError if the rule needs another C.
    """
    bound = clip_norm * (1 - _ROUNDING_MARGIN)
    layer_norms = [norms.double() for norms in layer_norms]
    norms = reduce(torch.hypot, layer_norms)
    match clipping:
        case PerLayerClipping():
            share, finite = bound / math.sqrt(len(layer_norms)), norms < math.inf
            return [
                torch.where(finite, (share / each).clamp_(max=1.0), 0.0) for each in layer_norms
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
    """Clip the gradients of one pass, layer by layer, and sum them.

    What is not finite contributes zero.

    `layers`: in the order of the flat vector. `count`: how many of the first rows are units, not
    padding.
    """
    factors = clip_factors([layer.norms for layer in layers], clip_norm, clipping)
    least = least_factors(factors)[:count]
    used, sizes = used_rows(least), [layer.size for layer in layers]
    total = least.new_empty(sum(sizes))
    for layer, own, out in zip(layers, factors, torch.split_with_sizes(total, sizes), strict=True):
        layer.weighted_sum(own, used, out)
    return ClippedSum(total, (least < 1).count_nonzero(), count)


def least_factors(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the least factor of each unit over layers, (N,): below 1 where it lost some of its gradient."""
    return factors[0] if factors[0] is factors[-1] else reduce(torch.minimum, factors)


def sum_clipped(
    gradients: torch.Tensor,
    clip_norm: float,
    clipping: Clipping = FLAT,
    layer_sizes: Sequence[int] = (),
    count: int | None = None,
) -> ClippedSum:
    """Clip materialised gradients and sum them; a gradient that is not finite contributes zero.

    `gradients`: one row per unit, (N, d). `clip_norm`: as for `clip_factors`. `layer_sizes`: number
    of columns of each layer, needed by `per-layer`. `count`: how many of the first rows are units
    and not padding; all of them if None.
    """
    blocks = (
        gradients.split(list(layer_sizes), dim=1)
        if isinstance(clipping, PerLayerClipping)
        else (gradients,)
    )
    layers = [formed_gradients([block]) for block in blocks]
    return clip_and_sum(layers, clip_norm, clipping, len(gradients) if count is None else count)


def with_pre_noise(
    gradients: torch.Tensor, scale: float, generator: np.random.Generator
) -> torch.Tensor:
    """Return g_i + rho xi_i, xi_i ~ N(0, I), for each unit i, shape (U, d), float32.

    Rho >= 0 is the scale.

    The clip comes after it, so the sensitivity stays C and the account of the noise on the sum
    stands; it buys no privacy of its own, and it biases the clipped mean.
    """
    return gradients + scale * moved(
        generator.standard_normal(gradients.shape, dtype=np.float32), gradients.device
    )
