"""Adam on a private gradient.

Both moments are functions of noisy sums, so they cost nothing beyond them. The noise enters the
second moment: where it dominates, the step is the noisy gradient over the standard deviation of the
noise, sigma C / B. The rescaling keeps no temperature, so T_t of its steps means nothing.
"""

import math
from functools import partial

import torch
from torch import nn

from fl_dpbayes.config import Adam
from fl_dpbayes.samplers.algorithm import Algorithm
from fl_dpbayes.samplers.state_vectors import ChainState


def build(sampler: Adam, module: nn.Module) -> Algorithm:
    """Return the sampler."""
    return Algorithm(module, partial(step, sampler=sampler))


def step(
    state: ChainState, gradient: torch.Tensor, step_size: float, *, sampler: Adam
) -> ChainState:
    """Make one step of Adam.

        m <- beta_1 m + (1 - beta_1) d
        u <- beta_2 u + (1 - beta_2) d^2
        w <- w - a [m / (1 - beta_1^t)] / [sqrt(u / (1 - beta_2^t)) + stability]

    with t counted from the chain's start.

    Args:
        state: Position w, first moment m and second moment u.
        gradient: Noisy gradient d of the mean energy, shape (d,).
        step_size: a > 0.
        sampler: beta_1, beta_2 and the stability constant.

    Returns:
        The next state.

    Source:
        Kingma and Ba 2015, Algorithm 1.
    """
    count = state.step + 1
    beta_1 = sampler.first_decay
    beta_2 = sampler.second_decay
    first = state.vectors["first_moment"].mul(beta_1).add_(gradient, alpha=1 - beta_1)
    second = state.vectors["second_moment"].mul(beta_2)
    second.addcmul_(gradient, gradient, value=1 - beta_2)
    scale = second.sqrt().div_(math.sqrt(1 - beta_2**count)).add_(sampler.stability)
    position = torch.addcdiv(state.parameters, first, scale, value=-step_size / (1 - beta_1**count))
    return ChainState(
        {"parameters": position, "first_moment": first, "second_moment": second}, count
    )
