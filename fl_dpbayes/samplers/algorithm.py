"""What every sampler is made of.

The module named as the kind (`sgld.py`, `mc_dropout.py`) has `build(sampler, module) -> Algorithm`.
A sampler sees no record: its step gets a private estimate of the gradient of the mean energy
U(w) / n, in which the clipped sum, its noise and the prior are already put together. Whatever it
does with that is post-processing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fl_dpbayes.config import FlatPrior, Prior, Sampler, implementation
from fl_dpbayes.models import prior_gradient
from fl_dpbayes.samplers.gradients.loss import RecordLoss
from fl_dpbayes.samplers.state_vectors import ChainState


def prior_energy_gradient(prior: Prior, position: torch.Tensor, prior_share: float) -> torch.Tensor:
    """Return -s grad log p(w).

    Args:
        prior: p.
        position: w, shape (d,).
        prior_share: s in (0, 1].

    Returns:
        Shape (d,).
    """
    if isinstance(prior, FlatPrior):
        return position.new_zeros(()).expand_as(position)
    return prior_gradient(prior, position).mul_(-prior_share)


def _position_itself(position: torch.Tensor, _generator: np.random.Generator) -> torch.Tensor:
    return position


def _loss_itself(loss: RecordLoss) -> RecordLoss:
    return loss


@dataclass(frozen=True)
class Algorithm:
    """What a sampler is made of.

    Attributes:
        module: Its trainable parameters are the chain's position.
        step: (state, noisy gradient (d,), step size a > 0) -> next state; it leaves its input as
            it is.
        data_free_gradient: (prior, position, s) -> gradient of minus the log prior times the
            site's share s of it (Bayes by backprop: of that expectation minus the entropy, which is
            not shared out). No record enters, so it stays outside the clip.
        draw: (position, generator) -> one parameter vector (d,) of the plain model: the posterior
            sample.
        record_loss: Turns the loss of the plain model's outputs into that of the module's outputs.
    """

    module: nn.Module
    step: Callable[[ChainState, torch.Tensor, float], ChainState]
    data_free_gradient: Callable[[Prior, torch.Tensor, float], torch.Tensor] = prior_energy_gradient
    draw: Callable[[torch.Tensor, np.random.Generator], torch.Tensor] = _position_itself
    record_loss: Callable[[RecordLoss], RecordLoss] = _loss_itself


def build_algorithm(sampler: Sampler, module: nn.Module) -> Algorithm:
    """Put together the sampler that a plan names, around the plain model."""
    code = implementation("fl_dpbayes.samplers", sampler.algorithm, sampler.implemented_by)
    algorithm: Algorithm = code.build(sampler, module)
    return algorithm
