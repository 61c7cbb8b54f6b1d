"""The predictive distribution: class probabilities averaged over posterior samples, and their uncertainty."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import entr, softmax
from torch import nn
from torch.func import functional_call

_RECORDS_PER_PASS = 4096


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of records and how uncertain they are, entropies in nats.

    Attributes:
        probabilities: p(y | x) averaged over the posterior, shape (N, classes), float64.
        total: entropy of the averaged probabilities, shape (N,).
        aleatoric: averaged entropy of the single samples' probabilities, shape (N,).
        epistemic: total - aleatoric, the mutual information of label and parameters, >= 0, shape (N,).
    """

    probabilities: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    aleatoric: npt.NDArray[np.float64]
    epistemic: npt.NDArray[np.float64]


def predict(
    module: nn.Module,
    samples: Mapping[str, npt.NDArray[np.float32]],
    weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32],
    *,
    device: str | torch.device = "cpu",
) -> Prediction:
    """Average the class probabilities of posterior samples.

    p(y | x) = sum_m v_m softmax(f(x; w_m))_y,  v = weights / sum of weights. Entropies follow Depeweg et al. 2018:
    total H[p], aleatoric sum_m v_m H[p_m], epistemic their difference. One sample is held on the device at a time. A
    sample whose logits for a record are not all finite predicts every class alike for it.

    Args:
        module: the model; it gives the architecture and is moved to `device`, its parameters are not changed.
        samples: parameter name -> shape (M, *shape), M >= 1.
        weights: >= 0, not all zero, shape (M,).
        features: shape (N, *shape), float32.
        device: where the forward passes run.

    Returns:
        Probabilities and entropies of each record.

    Raises:
        ValueError: if the weights do not fit the samples, are negative or sum to zero.
    """
    shares = np.asarray(weights, np.float64)
    counts = {len(array) for array in samples.values()}
    if shares.ndim != 1 or counts != {len(shares)}:
        raise ValueError(f"weights have shape {shares.shape}, samples per parameter are {sorted(counts)}")
    if not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
        raise ValueError("weights must be finite, 0 or more, and not all 0")
    shares = shares / shares.sum()
    module.to(device)
    starts = range(0, max(1, len(features)), _RECORDS_PER_PASS)
    parts = [_predict_rows(module, samples, shares, features[i : i + _RECORDS_PER_PASS], device) for i in starts]
    probabilities, aleatoric = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    total = entr(probabilities).sum(axis=1)
    return Prediction(probabilities, total, aleatoric, np.maximum(total - aleatoric, 0.0))


def predictive_probabilities(
    module: nn.Module,
    samples: Mapping[str, npt.NDArray[np.float32]],
    weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32],
    *,
    device: str | torch.device = "cpu",
) -> npt.NDArray[np.float64]:
    """Return only the averaged class probabilities of `predict`, shape (N, classes), float64."""
    return predict(module, samples, weights, features, device=device).probabilities


def _predict_rows(
    module: nn.Module,
    samples: Mapping[str, npt.NDArray[np.float32]],
    shares: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32],
    device: str | torch.device,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    records = torch.tensor(features, device=device)
    probabilities = entropy = np.zeros(())
    for index, share in enumerate(shares):
        values = {name: torch.tensor(array[index], device=device) for name, array in samples.items()}
        with torch.no_grad():
            logits = functional_call(module, values, (records,))
        # An error would tell the sender of a hostile sample, without noise, that a record makes it overflow.
        logits = torch.where(logits.isfinite().all(dim=1, keepdim=True), logits, 0.0)
        single = softmax(logits.double().cpu().numpy(), axis=1)
        probabilities = probabilities + share * single
        entropy = entropy + share * entr(single).sum(axis=1)
    return probabilities, entropy
