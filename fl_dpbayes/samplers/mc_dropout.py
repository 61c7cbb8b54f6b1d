"""MC dropout (Gal and Ghahramani 2016): gradient descent under masks, which posterior samples draw again."""

from functools import partial

from torch import nn

from fl_dpbayes.config import MCDropout
from fl_dpbayes.models import DropoutModule
from fl_dpbayes.samplers import sgd
from fl_dpbayes.samplers.algorithm import Algorithm


def build(sampler: MCDropout, module: nn.Module) -> Algorithm:
    """Return the sampler."""
    masked = DropoutModule(module, sampler.rate)
    return Algorithm(masked, partial(sgd.step, momentum=sampler.momentum), draw=masked.draw)
