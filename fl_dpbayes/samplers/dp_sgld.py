"""Differentially private stochastic gradient Langevin dynamics: the kernel.

With a_t = eta_t n it targets the posterior at temperature T_t = a_t n sigma_t^2 C^2 / (2 B^2), clipping and mini-batch
noise aside. Privacy follows from (sigma_t, q) alone; the step size and the prior are post-processing.
Sources: Welling and Teh 2011, eq. 4; Zhang et al., Algorithm 2 (noise coupling); Abadi et al. 2016, Algorithm 1.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ChainState:
    """Where a chain stands.

    Attributes:
        parameters: w, shape (d,), float32.
        step: number of steps of the whole run that lie behind it.
    """

    parameters: torch.Tensor
    step: int


def init(parameters: torch.Tensor, step: int = 0) -> ChainState:
    """Start a chain at the given parameters, before step `step` of its run."""
    return ChainState(parameters, step)


def step(
    state: ChainState,
    clipped_sum: torch.Tensor,
    *,
    step_size: float,
    noise_multiplier: float,
    clip_norm: float,
    expected_batch_size: float,
    units: int,
    log_prior_gradient: torch.Tensor,
    prior_share: float,
    noise: torch.Tensor,
) -> ChainState:
    """Make one step of the chain.

    w <- w - a [(G + sigma C xi) / B - (s / n) grad log p(w)]

    Args:
        state: the chain before the step.
        clipped_sum: G, the sum over a Poisson batch of clipped gradients of the units' losses, shape (d,).
        step_size: a > 0.
        noise_multiplier: sigma >= 0, standard deviation of the noise on G over C.
        clip_norm: C > 0; may be infinite where sigma is 0.
        expected_batch_size: B = q n, a public constant, never the size of the batch that was drawn.
        units: n, the declared number of privacy units.
        log_prior_gradient: grad log p(w) at the state, shape (d,), outside the clip.
        prior_share: s, this site's share of the prior, in (0, 1].
        noise: xi ~ N(0, I), one draw over all parameters, shape (d,).

    Returns:
        The chain after the step.
    """
    noise_scale = noise_multiplier * clip_norm if noise_multiplier > 0 else 0.0
    drift = torch.add(clipped_sum, noise, alpha=noise_scale).div_(expected_batch_size)
    drift.sub_(log_prior_gradient, alpha=prior_share / units)
    return ChainState(torch.add(state.parameters, drift, alpha=-step_size), state.step + 1)
