"""Stochastic gradient Langevin dynamics.

With a_t = eta_t n and gradient noise of standard deviation sigma C / B it targets the posterior at
temperature T_t = a_t n sigma_t^2 C^2 / (2 B^2), clipping and mini-batch noise aside. Where the mean
energy is quadratic with curvature h, its stationary variance is exactly Var(w) = T / (n h) / (1 - a
h / 2). Sources: Welling and Teh 2011, eq. 4; Zhang et al., Algorithm 2 (noise coupling); Abadi et
al. 2016, Algorithm 1.
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
    """Return w <- w - a d for the noisy gradient d, shape (d,)."""
    return ChainState(
        {"parameters": torch.add(state.parameters, gradient, alpha=-step_size)}, state.step + 1
    )
