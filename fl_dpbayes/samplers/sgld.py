"""Stochastic gradient Langevin dynamics.

With a_t = eta_t n and gradient noise of standard deviation sigma C / B it targets the posterior at
temperature T_t = a_t n sigma_t^2 C^2 / (2 B^2), clipping and mini-batch noise aside. Where the mean
energy is quadratic with curvature h, its stationary variance is T / (n h) / (1 - a h / 2), exactly.
"""

import torch
from torch import nn

from fl_dpbayes.config import SGLD
from fl_dpbayes.samplers.algorithm import Algorithm
from fl_dpbayes.samplers.state_vectors import ChainState


def build(sampler: SGLD, module: nn.Module) -> Algorithm:
    """Return the sampler; its temperature follows from the noise in the gradient."""
    return Algorithm(module, step)


def step(state: ChainState, gradient: torch.Tensor, step_size: float) -> ChainState:
    """Make one Langevin step.

        w <- w - a d

    Args:
        state: Position w.
        gradient: Noisy gradient d of the mean energy, shape (d,).
        step_size: a > 0.

    Returns:
        The next state.

    Source:
        Welling and Teh 2011, eq. 4; Zhang et al., Algorithm 2 (noise coupling); Abadi et al. 2016,
        Algorithm 1.
    """
    position = torch.add(state.parameters, gradient, alpha=-step_size)
    return ChainState({"parameters": position}, state.step + 1)
