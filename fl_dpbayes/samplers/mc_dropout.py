"""MC dropout: gradient descent under masks, which posterior samples draw again.

Source: Gal and Ghahramani 2016.
"""

from functools import partial

from torch import nn

from fl_dpbayes.config import MCDropout
from fl_dpbayes.models import DropoutModule
from fl_dpbayes.samplers import sgd
from fl_dpbayes.samplers.algorithm import Algorithm


def build(sampler: MCDropout, module: nn.Module) -> Algorithm:
    """Return the sampler."""
    masked = DropoutModule(module, sampler.rate)
    step = partial(sgd.step, momentum=sampler.momentum)
    return Algorithm(masked, step, draw=masked.draw)
