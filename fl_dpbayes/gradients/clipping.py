"""The clipping rules: how much of a unit's gradient enters the sum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from fl_dpbayes.protocol.clipping import (
    FLAT,
    AutomaticClipping,
    Clipping,
    FlatClipping,
    GlobalClipping,
    PerLayerClipping,
)

# Norms and products are computed in float32; this margin over their rounding keeps a clipped gradient within C.
_ROUNDING_MARGIN = 1e-6
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
# A float32 sum of squares over a million entries can fall short by more than the margin; over so few it cannot.
_ENTRIES_PER_BLOCK = 256


@dataclass(frozen=True)
class ClippedSum:
    """The sum of a batch's clipped gradients, and what the clip did; only the sum, once noised, may leave the site.

    Attributes:
        total: sum over units of the clipped gradient, shape (d,), float32.
        clipped: number of units whose gradient the rule reduced.
        units: number of units in the batch.
    """

    total: torch.Tensor
    clipped: int
    units: int


def add_up(sums: Sequence[ClippedSum]) -> ClippedSum:
    """Add the clipped sums of disjoint parts of a batch; at least one part."""
    total = sums[0].total if len(sums) == 1 else torch.stack([each.total for each in sums]).sum(0)
    return ClippedSum(total, sum(each.clipped for each in sums), sum(each.units for each in sums))


def clip_factors(layer_norms: Sequence[torch.Tensor], clip_norm: float, clipping: Clipping) -> list[torch.Tensor]:
    """Return the factors of each unit's gradient, so that the clipped gradient's norm is at most C.

    With |g| the norm over all L layers:
    flat: min(1, C / |g|); global: C / Z where |g| <= Z, else 0; automatic: C / (|g| + stability);
    per-layer: min(1, C / (sqrt(L) |g_l|)) for layer l.
    C stands for C (1 - 1e-6), and a factor is 0 where it is not finite or below the smallest normal float32 number,
    where rounding could nearly double it. A unit with any norm that is not finite gets 0 in every layer.
    Sources: Abadi et al. 2016, Algorithm 1; Bu et al. 2021 (global); Bu et al. 2022 (automatic); McMahan et al. 2018.

    Args:
        layer_norms: norm of each unit's gradient in each layer, L tensors of shape (N,), float32.
        clip_norm: C > 0, may be infinite for `flat` and `per-layer`.
        clipping: the rule.

    Returns:
        Factors >= 0 for each layer, L tensors of shape (N,), float32.

    Raises:
        ValueError: if the rule needs another C.
    """
    bound = clip_norm * (1 - _ROUNDING_MARGIN)
    norms = reduce(torch.hypot, layer_norms)
    finite = norms.isfinite()
    match clipping:
        case PerLayerClipping():
            share = bound / math.sqrt(len(layer_norms))
            return [_usable((share / each).clamp(max=1.0), finite) for each in layer_norms]
        case FlatClipping():
            factors = (bound / norms).clamp(max=1.0)
        case GlobalClipping(bound=largest):
            if largest < clip_norm:
                raise ValueError(f"global clipping has bound {largest} below clip_norm {clip_norm}: raise the bound")
            factors = torch.where(norms <= largest, bound / largest, 0.0)
        case AutomaticClipping(stability=stability):
            if math.isinf(clip_norm):
                raise ValueError("automatic clipping scales every gradient to clip_norm: give a finite clip_norm")
            factors = bound / (norms + stability)
    return [_usable(factors, finite)] * len(layer_norms)


def count_reduced(factors: Sequence[torch.Tensor]) -> int:
    """Count the units that lost some of their gradient in some layer: those with a factor below 1.

    Under global clipping these are all units.

    Args:
        factors: as `clip_factors` gives them.
    """
    return int((reduce(torch.minimum, factors) < 1).sum())


def sum_clipped(
    gradients: torch.Tensor, clip_norm: float, clipping: Clipping = FLAT, layer_sizes: Sequence[int] = ()
) -> ClippedSum:
    """Clip materialised gradients and sum them; a gradient that is not finite contributes zero.

    Args:
        gradients: one row per unit, shape (N, d), float32.
        clip_norm: C > 0, may be infinite for `flat` and `per-layer`.
        clipping: the rule.
        layer_sizes: number of columns of each layer, from left to right, adding up to d; needed by `per-layer`.

    Returns:
        The clipped sum.
    """
    blocks = gradients.split(list(layer_sizes), dim=1) if isinstance(clipping, PerLayerClipping) else (gradients,)
    factors = clip_factors([_row_norms(block) for block in blocks], clip_norm, clipping)
    # Zero times infinity is NaN: a discarded row is replaced, not only multiplied.
    sums = [each @ torch.where((each > 0)[:, None], block, 0.0) for each, block in zip(factors, blocks, strict=True)]
    return ClippedSum(sums[0] if len(sums) == 1 else torch.cat(sums), count_reduced(factors), len(gradients))


def _row_norms(rows: torch.Tensor) -> torch.Tensor:
    whole = rows.shape[1] - rows.shape[1] % _ENTRIES_PER_BLOCK
    blocks = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, _ENTRIES_PER_BLOCK)), dim=2)
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1)
    return torch.hypot(blocks.double().square().sum(dim=1).sqrt(), rest.double()).float()


def _usable(factors: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    return torch.where(finite & factors.isfinite() & (factors >= _SMALLEST_NORMAL), factors, 0.0)
