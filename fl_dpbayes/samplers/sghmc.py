"""Stochastic gradient Hamiltonian Monte Carlo.

Chen, Fox and Guestrin 2014, eq. 15, with eta = a / n. All of the injected noise is the noise of the
private sum: it adds variance (a sigma C / B)^2 to v in each step where temperature T needs 2 alpha
(a / n) T, hence T_t = a_t n sigma_t^2 C^2 / (2 alpha B^2), clipping and mini-batch noise aside;
alpha = 1 is Langevin dynamics. The stationary law at a finite step is in docs/proofs/sghmc.md.
"""

from functools import partial

import torch
from torch import nn

from fl_dpbayes.config import SGHMC
from fl_dpbayes.samplers.algorithm import Algorithm
from fl_dpbayes.samplers.state_vectors import ChainState


def build(sampler: SGHMC, module: nn.Module) -> Algorithm:
    """Return the sampler."""
    return Algorithm(module, partial(step, friction=sampler.friction))


def step(
    state: ChainState, gradient: torch.Tensor, step_size: float, *, friction: float
) -> ChainState:
    """Return v <- (1 - alpha) v - a d, w <- w + v for the noisy gradient d, shape (d,), friction alpha in (0, 1]."""
    momentum = state.vectors["momentum"].mul(1 - friction).sub_(gradient, alpha=step_size)
    return ChainState(
        {"parameters": state.parameters + momentum, "momentum": momentum}, state.step + 1
    )
