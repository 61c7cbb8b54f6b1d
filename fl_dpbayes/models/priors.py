"""Prior densities over the flat parameter vector; they read no record, so they cost no privacy."""

import math
from dataclasses import dataclass

import torch

from fl_dpbayes.config.sampler import FlatPrior, GaussianPrior, LaplacePrior, Prior


@dataclass(frozen=True)
class Cavity:
    """A prior N(mean, diag(1 / precision)) that a request carries in place of the plan's; both (d,), float32."""

    mean: torch.Tensor
    precision: torch.Tensor


def log_prior(prior: Prior | Cavity, vector: torch.Tensor) -> torch.Tensor:
    """Return the log density of the prior, log p(w).

    Gaussian: -|w|^2 / (2 scale^2) - d log(scale sqrt(2 pi)). Laplace: -|w|_1 / scale - d log(2 scale). Flat: 0
    (improper). Cavity: sum_i log(l_i / (2 pi)) / 2 - l_i (w_i - m_i)^2 / 2, l the precision.
    """
    match prior:
        case GaussianPrior():
            normaliser = vector.numel() * math.log(prior.scale * math.sqrt(2 * math.pi))
            return -vector.square().sum() / (2 * prior.scale**2) - normaliser
        case LaplacePrior():
            return -vector.abs().sum() / prior.scale - vector.numel() * math.log(2 * prior.scale)
        case FlatPrior():
            return vector.new_zeros(())
        case Cavity():
            logarithms = (prior.precision / (2 * math.pi)).log()
            return (logarithms - prior.precision * (vector - prior.mean).square()).sum() / 2


def prior_gradient(prior: Prior | Cavity, vector: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the log prior, grad log p(w), shape (d,).

    Gaussian: -w / scale^2. Laplace: -sign(w) / scale, 0 at 0 (a subgradient). Flat: 0. Cavity: -l (w - m).
    """
    match prior:
        case GaussianPrior():
            return -vector / prior.scale**2
        case LaplacePrior():
            return -vector.sign() / prior.scale
        case FlatPrior():
            return torch.zeros_like(vector)
        case Cavity():
            return prior.precision * (prior.mean - vector)
