"""Stochastic gradient descent with momentum: the kernel.

At a constant step size it is the path of stochastic gradient Hamiltonian Monte Carlo with friction 1 - beta (v = -a m),
so the noise of a private gradient keeps it at temperature T = a n sigma^2 C^2 / (2 (1 - beta) B^2), meant or not.
Without momentum it is the Langevin kernel: Theorem 1 of Zhang et al.

Sources: Polyak 1964 (heavy ball); Mandt, Hoffman and Blei 2017, section 4 (stationary distribution).
"""

from functools import partial

import torch

from fl_dpbayes.samplers import sgld
from fl_dpbayes.samplers.kernel import ChainState, Kernel


def kernel(momentum: float = 0.0) -> Kernel:
    """Return the sampler.

    Args:
        momentum: beta in [0, 1); 0 has no momentum vector and is the Langevin kernel.

    Returns:
        The kernel; its state has the vectors `parameters` and, if beta > 0, `momentum`.
    """
    return Kernel(init, partial(step, momentum=momentum)) if momentum > 0 else sgld.kernel()


def init(parameters: torch.Tensor, step: int = 0) -> ChainState:
    """Start a chain at rest at the given parameters, with `step` steps of it behind."""
    return ChainState({"parameters": parameters, "momentum": torch.zeros_like(parameters)}, step)


def step(state: ChainState, drift: torch.Tensor, step_size: float, *, momentum: float) -> ChainState:
    """Make one step of the chain.

    m <- beta m + drift
    w <- w - a m

    Args:
        state: the chain before the step.
        drift: noisy gradient of the mean energy, shape (d,).
        step_size: a > 0.
        momentum: beta in [0, 1).

    Returns:
        The chain after the step.
    """
    velocity = state.vectors["momentum"].mul(momentum).add_(drift)
    return ChainState(
        {"parameters": torch.add(state.parameters, velocity, alpha=-step_size), "momentum": velocity}, state.step + 1
    )
