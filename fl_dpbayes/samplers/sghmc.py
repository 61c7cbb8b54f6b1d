"""Stochastic gradient Hamiltonian Monte Carlo.

All of the injected noise is the noise of the private sum: it adds variance (a sigma C / B)^2 to v
in each step where temperature T needs 2 alpha (a / n) T. Hence T_t = a_t n sigma_t^2 C^2 / (2 alpha
B^2), clipping and mini-batch noise aside; alpha = 1 is Langevin dynamics. The stationary law at a
finite step is in docs/proofs/sghmc.md.
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
    """Make one step of Hamiltonian dynamics with friction.

        v <- (1 - alpha) v - a d,    w <- w + v

    Args:
        state: Position w and momentum v.
        gradient: Noisy gradient d of the mean energy, shape (d,).
        step_size: a > 0; eta = a / n of the source.
        friction: alpha in (0, 1].

    Returns:
        The next state.

    Source:
        Chen, Fox and Guestrin 2014, eq. 15.
    """
    momentum = state.vectors["momentum"].mul(1 - friction).sub_(gradient, alpha=step_size)
    position = state.parameters + momentum
    return ChainState({"parameters": position, "momentum": momentum}, state.step + 1)
