"""Adam on a private gradient (Kingma and Ba 2015, Algorithm 1).

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
    """Make one step for the noisy gradient d, shape (d,).

    m <- beta_1 m + (1 - beta_1) d u <- beta_2 u + (1 - beta_2) d^2
    w <- w - a [m / (1 - beta_1^t)] / [sqrt(u / (1 - beta_2^t)) + stability],    t counted from the chain's start
    """
    count, first_decay, second_decay = state.step + 1, sampler.first_decay, sampler.second_decay
    first = state.vectors["first_moment"].mul(first_decay).add_(gradient, alpha=1 - first_decay)
    second = (
        state.vectors["second_moment"]
        .mul(second_decay)
        .addcmul_(gradient, gradient, value=1 - second_decay)
    )
    scale = second.sqrt().div_(math.sqrt(1 - second_decay**count)).add_(sampler.stability)
    parameters = torch.addcdiv(
        state.parameters, first, scale, value=-step_size / (1 - first_decay**count)
    )
    return ChainState(
        {"parameters": parameters, "first_moment": first, "second_moment": second}, count
    )
