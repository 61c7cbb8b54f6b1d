"""Bayes by backprop (Blundell et al. 2015): gradient descent on the mean and the spread of a Gaussian per weight."""

from torch import nn

from fl_dpbayes.config import BayesByBackprop
from fl_dpbayes.models import variational
from fl_dpbayes.samplers import sgld
from fl_dpbayes.samplers.algorithm import Algorithm
from fl_dpbayes.samplers.gradients.loss import mean_over_draws


def build(sampler: BayesByBackprop, module: nn.Module) -> Algorithm:
    """Return the sampler.

    Its position is (mean, spread), twice as long as the model's parameters.
    """
    drawn = variational.VariationalModule(module, sampler.draws)
    return Algorithm(
        drawn, sgld.step, variational.divergence_gradient, variational.draw, mean_over_draws
    )
