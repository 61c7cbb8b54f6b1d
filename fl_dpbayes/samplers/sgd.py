"""Stochastic gradient descent with momentum.

At a constant step size it is the path of stochastic gradient Hamiltonian Monte Carlo with friction
1 - beta (v = -a m), so the noise of a private gradient keeps it at temperature
T = a n sigma^2 C^2 / (2 (1 - beta) B^2), meant or not.
"""

from functools import partial

import torch
from torch import nn

from fl_dpbayes.config import SGD
from fl_dpbayes.samplers import sgld
from fl_dpbayes.samplers.algorithm import Algorithm
from fl_dpbayes.samplers.state_vectors import ChainState


def build(sampler: SGD, module: nn.Module) -> Algorithm:
    """Return the sampler; without momentum its state has no momentum vector."""
    return Algorithm(module, partial(step, momentum=sampler.momentum))


def step(
    state: ChainState, gradient: torch.Tensor, step_size: float, *, momentum: float
) -> ChainState:
    """Make one step of gradient descent with momentum.

        m <- beta m + d,    w <- w - a m

    Without momentum it is the Langevin step (Zhang et al., Theorem 1).

    Args:
        state: Position w and, if beta > 0, momentum m.
        gradient: Noisy gradient d of the mean energy, shape (d,).
        step_size: a > 0.
        momentum: beta in [0, 1).

    Returns:
        The next state.

    Source:
        Polyak 1964 (heavy ball); Mandt, Hoffman and Blei 2017, section 4 (stationary distribution).
    """
    if momentum == 0:
        return sgld.step(state, gradient, step_size)
    velocity = state.vectors["momentum"].mul(momentum).add_(gradient)
    position = torch.add(state.parameters, velocity, alpha=-step_size)
    return ChainState({"parameters": position, "momentum": velocity}, state.step + 1)
