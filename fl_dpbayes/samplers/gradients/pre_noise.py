"""Noise on each unit's gradient before the clip."""

import numpy as np
import torch


def with_pre_noise(gradients: torch.Tensor, scale: float, generator: np.random.Generator) -> torch.Tensor:
    """Return g_i + rho xi_i, xi_i ~ N(0, I), for each unit i.

    The clip comes after it, so the sensitivity stays C and the account of the noise on the sum stands; it buys no
    privacy of its own, and it biases the clipped mean.

    Args:
        gradients: one row per unit, shape (U, d), float32.
        scale: rho >= 0, in the gradient's unit.
        generator: a stream of its own, apart from the noise on the sum.

    Returns:
        Shape (U, d), float32.
    """
    noise = torch.from_numpy(generator.standard_normal(gradients.shape, dtype=np.float32))
    return gradients + scale * noise.to(gradients.device)
