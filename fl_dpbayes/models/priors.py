"""Prior densities over the flat parameter vector; they read no record, so they cost no privacy."""

import math

import torch

from fl_dpbayes.config import FlatPrior, GaussianPrior, LaplacePrior, Prior


def log_prior(prior: Prior, vector: torch.Tensor) -> torch.Tensor:
    """Return the log density of the prior, log p(w).

        Gaussian    -|w|^2 / (2 scale^2) - d log(scale sqrt(2 pi))
        Laplace     -|w|_1 / scale - d log(2 scale)
        flat        0

    Args:
        prior: p.
        vector: w, shape (d,).

    Returns:
        A tensor of one entry.
    """
    match prior:
        case GaussianPrior():
            normaliser = vector.numel() * math.log(prior.scale * math.sqrt(2 * math.pi))
            return -vector.square().sum() / (2 * prior.scale**2) - normaliser
        case LaplacePrior():
            return -vector.abs().sum() / prior.scale - vector.numel() * math.log(2 * prior.scale)
        case FlatPrior():
            return vector.new_zeros(())


def prior_gradient(prior: Prior, vector: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the log prior, grad log p(w).

        Gaussian    -w / scale^2
        Laplace     -sign(w) / scale, 0 at 0 (a subgradient)
        flat        0

    Args:
        prior: p.
        vector: w, shape (d,).

    Returns:
        Shape (d,).
    """
    match prior:
        case GaussianPrior():
            return -vector / prior.scale**2
        case LaplacePrior():
            return -vector.sign() / prior.scale
        case FlatPrior():
            return torch.zeros_like(vector)
