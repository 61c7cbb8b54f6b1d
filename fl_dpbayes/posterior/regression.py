"""The predictive distribution of a regression, its variance split by the law of total variance."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RegressionPrediction:
    """Mean and variance of the targets of records, in the target's unit and its square.

    Attributes:
        mean: E[y | x], shape (N,).
        aleatoric: E[Var(y | x, w)], the averaged noise variance, shape (N,).
        epistemic: Var(E[y | x, w]), the variance of the samples' means, shape (N,).
    """

    mean: Floats
    aleatoric: Floats
    epistemic: Floats

    @property
    def total(self) -> Floats:
        """Var(y | x) = aleatoric + epistemic, shape (N,)."""
        return self.aleatoric + self.epistemic


def output_draws(
    module: nn.Module, samples: Mapping[str, npt.NDArray[np.float32]], features: npt.NDArray[np.float32]
) -> Floats:
    """Return the outputs (N, K) of a module under each of M >= 1 posterior samples, shape (M, N, K), float64."""
    records = torch.tensor(features)
    count = len(next(iter(samples.values())))
    draws = []
    for index in range(count):
        values = {name: torch.tensor(array[index]) for name, array in samples.items()}
        with torch.no_grad():
            draws.append(functional_call(module, values, (records,)).double().numpy())
    return np.stack(draws)


def predict_regression(
    module: nn.Module,
    samples: Mapping[str, npt.NDArray[np.float32]],
    weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32],
) -> RegressionPrediction:
    """Average the Gaussian predictions of posterior samples.

    With m_k, v_k the mean and variance that sample k gives and p_k its share of the weights:

        mean = sum_k p_k m_k,  aleatoric = sum_k p_k v_k,  epistemic = sum_k p_k (m_k - mean)^2

    Args:
        module: features -> (mean, log variance), shape (N, 2); its parameters are not changed.
        samples: parameter name -> shape (M, *shape), M >= 1.
        weights: >= 0, not all zero, shape (M,).
        features: shape (N, *shape), float32.

    Raises:
        ValueError: if the weights are negative, not finite or all zero, or do not fit the samples.

    Source:
        Depeweg et al. 2018, "Decomposition of uncertainty in Bayesian deep learning", section 3, in variances; Zhang et
        al., figure 4.
    """
    shares = np.asarray(weights, np.float64)
    counts = {len(array) for array in samples.values()}
    if shares.ndim != 1 or counts != {len(shares)}:
        raise ValueError(f"weights have shape {shares.shape}, samples per parameter are {sorted(counts)}")
    if not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
        raise ValueError("weights must be finite, 0 or more, and not all 0")
    shares = shares / shares.sum()
    outputs = output_draws(module, samples, features)
    means, variances = outputs[..., 0], np.exp(outputs[..., 1])
    mean = shares @ means
    return RegressionPrediction(mean, shares @ variances, shares @ (means - mean) ** 2)
