"""From a plan's sampler to what a chain needs: a module, a kernel, the data-free gradient, and posterior draws."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fl_dpbayes.config.sampler import SGD, SGHMC, SGLD, Adam, BayesByBackprop, MCDropout, Sampler
from fl_dpbayes.models import dropout, variational
from fl_dpbayes.models.priors import Cavity, prior_gradient
from fl_dpbayes.samplers import adam, sgd, sghmc, sgld
from fl_dpbayes.samplers.gradients.loss import RecordLoss, mean_over_draws
from fl_dpbayes.samplers.kernel import Kernel

Draw = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]


def _same(loss: RecordLoss) -> RecordLoss:
    return loss


@dataclass(frozen=True)
class Algorithm:
    """What a sampler is made of.

    Attributes:
        module: its trainable parameters are the chain's position, features -> outputs.
        kernel: the update rule.
        data_free_gradient: position -> gradient of minus the log prior times the site's share of it (Bayes by backprop:
            of that expectation minus the entropy, which is not shared out). No record enters, so it stays outside the
            clip.
        draw: (position, generator) -> one parameter vector (d,) of the plain model: the posterior sample.
        record_loss: turns the loss of the plain model's outputs into that of the module's.
    """

    module: nn.Module
    kernel: Kernel
    data_free_gradient: Callable[[torch.Tensor], torch.Tensor]
    draw: Draw
    record_loss: Callable[[RecordLoss], RecordLoss] = _same


def build_algorithm(sampler: Sampler, module: nn.Module, prior_share: float, cavity: Cavity | None = None) -> Algorithm:
    """Put together the sampler that a plan names.

    Args:
        sampler: the plan's algorithm.
        module: the plain model.
        prior_share: s in (0, 1], this site's share of the prior.
        cavity: takes the place of the sampler's prior, for samplers of plain weights.

    Returns:
        Its parts.
    """
    prior = sampler.prior if cavity is None else cavity

    def minus_log_prior_gradient(position: torch.Tensor) -> torch.Tensor:
        return prior_gradient(prior, position).mul_(-prior_share)

    def position_itself(position: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return position

    match sampler:
        case SGLD():
            return Algorithm(module, sgld.kernel(), minus_log_prior_gradient, position_itself)
        case SGD():
            return Algorithm(module, sgd.kernel(sampler.momentum), minus_log_prior_gradient, position_itself)
        case Adam():
            kernel = adam.kernel(sampler.first_decay, sampler.second_decay, sampler.stability)
            return Algorithm(module, kernel, minus_log_prior_gradient, position_itself)
        case SGHMC():
            return Algorithm(module, sghmc.kernel(sampler.friction), minus_log_prior_gradient, position_itself)
        case BayesByBackprop():
            network = variational.VariationalModule(module, sampler.draws)
            return Algorithm(
                network,
                sgd.kernel(0.0),
                lambda position: variational.divergence_gradient(sampler.prior, position, prior_share),
                variational.draw,
                mean_over_draws,
            )
        case MCDropout():
            masked = dropout.DropoutModule(module, sampler.rate)
            return Algorithm(masked, sgd.kernel(sampler.momentum), minus_log_prior_gradient, masked.draw)
