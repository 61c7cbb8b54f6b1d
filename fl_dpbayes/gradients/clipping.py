"""The clipping rule: how much of a unit's gradient enters the sum."""

import torch

# Norms and products are computed in float32; this margin over their rounding keeps a clipped gradient within C.
_ROUNDING_MARGIN = 1e-6
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
# A float32 sum of squares over a million entries can fall short by more than the margin; over so few it cannot.
_ENTRIES_PER_BLOCK = 256


def clip_factors(norms: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Return the factor of each unit's gradient, so that factor * norm <= clip_norm.

    c_i = min(1, C (1 - 1e-6) / |g_i|), and 0 where |g_i| is not finite or c_i is below the smallest normal float32
    number, where rounding could nearly double it (Abadi et al. 2016, Algorithm 1, with these cases settled).

    Args:
        norms: gradient norms, shape (N,), float32.
        clip_norm: C > 0, may be infinite.

    Returns:
        Factors in [0, 1], shape (N,), float32.
    """
    factors = (clip_norm * (1 - _ROUNDING_MARGIN) / norms).clamp(max=1.0)
    return torch.where(norms.isfinite() & (factors >= _SMALLEST_NORMAL), factors, 0.0)


def sum_clipped(gradients: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Clip materialised gradients and sum them; a gradient that is not finite contributes zero.

    Args:
        gradients: one row per unit, shape (N, d), float32.
        clip_norm: C > 0, may be infinite.

    Returns:
        Sum over units of clip_C(gradient), shape (d,).
    """
    factors = clip_factors(_row_norms(gradients), clip_norm)
    # Zero times infinity is NaN: a discarded row is replaced, not only multiplied.
    finite = torch.where((factors > 0)[:, None], gradients, 0.0)
    return factors @ finite


def _row_norms(rows: torch.Tensor) -> torch.Tensor:
    whole = rows.shape[1] - rows.shape[1] % _ENTRIES_PER_BLOCK
    blocks = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, _ENTRIES_PER_BLOCK)), dim=2)
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1)
    return torch.hypot(blocks.double().square().sum(dim=1).sqrt(), rest.double()).float()
