"""The private estimate of the gradient of the mean energy: where clipped sum, noise and prior come together."""

import torch


def private_drift(
    clipped_sum: torch.Tensor,
    *,
    noise: torch.Tensor,
    noise_multiplier: float,
    noise_unit: float,
    expected_batch_size: float,
    data_free_gradient: torch.Tensor,
    units: int,
) -> torch.Tensor:
    """Put a step's drift together.

    d = (G + sigma C xi) / B - (s / n) grad log p(w), an estimate of grad U(w) / n for the energy U of the posterior.
    Privacy follows from (sigma, q) alone: the prior and whatever is done with d are post-processing.

    Args:
        clipped_sum: G, the sum over a Poisson batch of clipped gradients of the units' losses, shape (d,), float64:
            what rounds it to float32 comes after the noise.
        noise: xi ~ N(0, I), one draw over all parameters, shape (d,).
        noise_multiplier: sigma >= 0.
        noise_unit: C, the clip norm (1 where nothing is private and sigma is the noise's standard deviation).
        expected_batch_size: B = q n, a public constant, never the size of the batch that was drawn.
        data_free_gradient: -s grad log p(w), shape (d,), outside the clip.
        units: n, the declared number of privacy units.

    Returns:
        Shape (d,), float32.

    Source:
        Abadi et al. 2016, Algorithm 1; Welling and Teh 2011, eq. 4.
    """
    noised = torch.add(clipped_sum, noise, alpha=noise_multiplier * noise_unit)
    drift = noised.float().div_(expected_batch_size)
    return drift.add_(data_free_gradient, alpha=1 / units)
