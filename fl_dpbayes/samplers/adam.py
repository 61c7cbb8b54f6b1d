"""Adam on a private gradient: the kernel.

Both moments are functions of noisy sums, so they cost nothing beyond them. The noise enters the second moment: where it
dominates, the step is the noisy gradient over the standard deviation of the noise, sigma C / B. The rescaling keeps no
temperature, so T_t of its steps means nothing.

Source: Kingma and Ba 2015, Algorithm 1.
"""

import math
from functools import partial

import torch

from fl_dpbayes.samplers.kernel import ChainState, Kernel


def kernel(first_decay: float = 0.9, second_decay: float = 0.999, stability: float = 1e-8) -> Kernel:
    """Return the sampler.

    Args:
        first_decay: beta_1 in [0, 1), of the mean of the drift.
        second_decay: beta_2 in [0, 1), of the mean of its square.
        stability: epsilon > 0, added to the root of the second moment.

    Returns:
        The kernel; its state has the vectors `parameters`, `first_moment` and `second_moment`.
    """
    return Kernel(init, partial(step, first_decay=first_decay, second_decay=second_decay, stability=stability))


def init(parameters: torch.Tensor, step: int = 0) -> ChainState:
    """Start a chain at the given parameters with no moments yet, with `step` steps of it behind."""
    zeros = torch.zeros_like(parameters)
    return ChainState({"parameters": parameters, "first_moment": zeros, "second_moment": zeros}, step)


def step(
    state: ChainState,
    drift: torch.Tensor,
    step_size: float,
    *,
    first_decay: float,
    second_decay: float,
    stability: float,
) -> ChainState:
    """Make one step of the chain.

    m <- beta_1 m + (1 - beta_1) drift
    u <- beta_2 u + (1 - beta_2) drift^2
    w <- w - a [m / (1 - beta_1^t)] / [sqrt(u / (1 - beta_2^t)) + epsilon],    t counted from the chain's start

    Args:
        state: the chain before the step.
        drift: noisy gradient of the mean energy, shape (d,).
        step_size: a > 0.
        first_decay: beta_1 in [0, 1).
        second_decay: beta_2 in [0, 1).
        stability: epsilon > 0.

    Returns:
        The chain after the step.
    """
    count = state.step + 1
    first = state.vectors["first_moment"].mul(first_decay).add_(drift, alpha=1 - first_decay)
    second = state.vectors["second_moment"].mul(second_decay).addcmul_(drift, drift, value=1 - second_decay)
    scale = second.sqrt().div_(math.sqrt(1 - second_decay**count)).add_(stability)
    parameters = torch.addcdiv(state.parameters, first, scale, value=-step_size / (1 - first_decay**count))
    return ChainState({"parameters": parameters, "first_moment": first, "second_moment": second}, count)
