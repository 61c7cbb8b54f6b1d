"""The predictive distribution: class probabilities averaged over posterior samples, and their uncertainty."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import entr, softmax
from torch import nn

from fl_dpbayes.models import rows as passes
from fl_dpbayes.models.module_checks import check_unmoved
from fl_dpbayes.models.parameters import called

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of records and how uncertain they are, entropies in nats, (N,).

    `probabilities`: p(y | x) averaged over the posterior, (N, classes). `total`: entropy of these. `aleatoric`:
    averaged entropy of the single samples' probabilities. `epistemic`: total - aleatoric, the mutual information of
    label and parameters, >= 0.
    """

    probabilities: Floats
    total: Floats
    aleatoric: Floats
    epistemic: Floats


def predict(
    module: nn.Module, samples: Mapping[str, npt.NDArray[np.float32]], weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32], *, device: str | torch.device = "cpu",
) -> Prediction:  # fmt: skip
    """Average the class probabilities of posterior samples.

    p(y | x) = sum_m v_m softmax(f(x; w_m))_y,  v = weights / sum of weights. Entropies follow Depeweg et al. 2018:
    total H[p], aleatoric sum_m v_m H[p_m], epistemic their difference. One sample is held on the device at a time. A
    sample whose logits for a record are not all finite, or cannot be computed, predicts every class alike for it. Every
    pass has one number of rows, at which a record's prediction does not depend on other records, to the last bit
    (docs/sensitivity.md).

    `module` gives the architecture and is moved to `device`; its parameters are not changed. `samples`: parameter name
    -> (M, *shape), M >= 1. `weights`: (M,), >= 0, not all zero. `features`: (N, *shape). Raises ValueError if the
    weights do not fit the samples. Raises RowsDependError if a single row does not give the same bits twice, UserError
    if a call leaves something of the records in the module.
    """
    shares = np.asarray(weights, np.float64)
    counts = {len(array) for array in samples.values()}
    if shares.ndim != 1 or counts != {len(shares)}:
        raise ValueError(f"weights have shape {shares.shape}, samples per parameter are {sorted(counts)}")
    if not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
        raise ValueError("weights must be finite, 0 or more, and not all 0")
    shares = shares / shares.sum()
    module.to(device)
    check_unmoved(module, features.shape[1:])
    rows = _checked_rows(module, features.shape[1:], device)
    probabilities = aleatoric = np.zeros(())
    for index, share in enumerate(shares):
        values = {name: torch.tensor(array[index], device=device) for name, array in samples.items()}
        single, entropy = _predict_sample(module, values, features, rows)
        probabilities, aleatoric = probabilities + share * single, aleatoric + share * entropy
    total = entr(probabilities).sum(axis=1)
    return Prediction(probabilities, total, aleatoric, np.maximum(total - aleatoric, 0.0))


def predictive_probabilities(
    module: nn.Module, samples: Mapping[str, npt.NDArray[np.float32]], weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32], *, device: str | torch.device = "cpu",
) -> npt.NDArray[np.float64]:  # fmt: skip
    """Return only the averaged class probabilities of `predict`, shape (N, classes), float64."""
    return predict(module, samples, weights, features, device=device).probabilities


def _predict_sample(
    module: nn.Module, values: Mapping[str, torch.Tensor], features: npt.NDArray[np.float32], rows: int
) -> tuple[Floats, Floats]:
    device = next(iter(values.values())).device
    found: list[tuple[Floats, Floats]] = []

    def outputs(rows: torch.Tensor) -> torch.Tensor:
        return called(module, values, rows.clone())

    # Where there is no record, a pass of padding alone says how many classes there are.
    for start in range(0, max(1, len(features)), rows):
        part, real = passes.padded(rows, torch.tensor(features[start : start + rows]))
        with torch.no_grad():
            part = part.to(device)
            try:
                logits = outputs(part)
            except Exception:
                failing = passes.failing_rows(outputs, part)
                part[failing] = 0
                logits = outputs(part)
                logits[failing] = torch.nan
        # An error would tell the sender of a hostile sample, without noise, that a record makes it overflow.
        logits = torch.where(logits.isfinite().all(dim=1, keepdim=True), logits, 0.0)
        single = softmax(logits.double().cpu().numpy(), axis=1)
        own = real.numpy()
        found.append((single[own], entr(single).sum(axis=1)[own]))
    probabilities, entropies = zip(*found, strict=True)
    return np.concatenate(probabilities), np.concatenate(entropies)


def _checked_rows(module: nn.Module, input_shape: tuple[int, ...], device: str | torch.device) -> int:
    def stand_alone(count: int) -> bool:
        generator = np.random.default_rng(0)
        features = torch.randn((count, *input_shape), generator=torch.Generator().manual_seed(count)).to(device)
        labels = torch.zeros(count, device=device)
        with torch.no_grad():
            results = (lambda part, _, drawn=drawn: [drawn(part)] for drawn in passes.drawn_modules(module))
            return all(passes.rows_stand_alone(result, features, labels, generator) for result in results)

    return passes.checked_rows(
        ("prediction", passes.structure(module), tuple(input_shape)), passes.prediction_rows(module), stand_alone
    )
