"""Bayes by backprop: gradient descent on the mean and the spread of a Gaussian per weight.

Source: Blundell et al. 2015.
"""

from torch import nn

from fl_dpbayes.config import BayesByBackprop
from fl_dpbayes.models import variational
from fl_dpbayes.samplers import sgld
from fl_dpbayes.samplers.algorithm import Algorithm
from fl_dpbayes.samplers.gradients.loss import mean_over_draws


def build(sampler: BayesByBackprop, module: nn.Module) -> Algorithm:
    """Return the sampler, whose position (mean, spread) is twice as long as the parameters."""
    return Algorithm(
        module=variational.VariationalModule(module, sampler.draws),
        step=sgld.step,
        data_free_gradient=variational.divergence_gradient,
        draw=variational.draw,
        record_loss=mean_over_draws,
    )
