"""What the single samples of a posterior predict, and how they spread over class probabilities."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from torch import nn
from torch.func import functional_call

Floats = npt.NDArray[np.float64]


def output_draws(
    module: nn.Module, samples: Mapping[str, npt.NDArray[np.float32]], features: npt.NDArray[np.float32]
) -> Floats:
    """Return what the module gives under each posterior sample.

    Args:
        module: features -> outputs (N, K); its parameters are not changed.
        samples: parameter name -> shape (M, *shape), M >= 1.
        features: shape (N, *shape), float32.

    Returns:
        Shape (M, N, K), float64.
    """
    records = torch.tensor(features)
    count = len(next(iter(samples.values())))
    draws = []
    for index in range(count):
        values = {name: torch.tensor(array[index]) for name, array in samples.items()}
        with torch.no_grad():
            draws.append(functional_call(module, values, (records,)).double().numpy())
    return np.stack(draws)


def class_probability_draws(
    module: nn.Module, samples: Mapping[str, npt.NDArray[np.float32]], features: npt.NDArray[np.float32]
) -> Floats:
    """Return the class probabilities that each posterior sample gives.

    Args:
        module: features -> logits (N, classes); its parameters are not changed.
        samples: parameter name -> shape (M, *shape), M >= 1.
        features: shape (N, *shape), float32.

    Returns:
        Shape (M, N, classes).
    """
    return softmax(output_draws(module, samples, features), axis=-1)


def class_histogram(draws: Floats, bins: int = 10) -> npt.NDArray[np.int64]:
    """Count, for each record and class, how many draws fall into each equal-width bin of probability.

    Args:
        draws: class probabilities, shape (M, N, classes).
        bins: number of bins over [0, 1], the last one closed.

    Returns:
        Counts, shape (N, classes, bins); they sum to M over the bins.

    Source:
        Zhang et al., figure 7: for one image and 100 draws, the height of a class's bar over a bin.
    """
    _, records, classes = draws.shape
    place = np.minimum((draws * bins).astype(np.int64), bins - 1)
    cells = np.arange(records * classes).reshape(records, classes) * bins + place
    return np.bincount(cells.ravel(), minlength=records * classes * bins).reshape(records, classes, bins)
