"""What the papers' classification tables measure of a predictor."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from fl_dpbayes.calibration.metrics.errors import reliability_bins
from fl_dpbayes.calibration.metrics.ranking import exact_auroc
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.summarise import summarise
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.run.reproduce.experiment import Metric, Values

METRICS = (
    Metric("accuracy", "accuracy"),
    Metric("auc", "AUC"),
    Metric("ece", "ECE"),
    Metric("ece_if_calibrated", "ECE if calibrated"),
    Metric("mce", "MCE", 3),
    Metric("nll", "NLL", 3),
)


def probabilities_of(
    module: nn.Module, posterior: PosteriorSamples, features: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """Return the posterior's averaged class probabilities, shape (N, classes)."""
    return predictive_probabilities(module, posterior.arrays, posterior.weights, features)


def measure(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], seed: int) -> Values:
    """Measure a predictor's probabilities on labelled records.

    Args:
        probabilities: shape (N, classes).
        labels: shape (N,).
        seed: of the draws that give the ECE of a calibrated predictor.

    Returns:
        The values of `METRICS`, and the 95 % interval of the debiased root-mean-square error; ECE, MCE and RMS over 15
        equal bins of the top label, the AUC exact.
    """
    found = summarise(from_batch(probabilities, labels), np.random.default_rng(seed))
    area = exact_auroc(probabilities, labels)
    rms = found.intervals.get("rms_debiased", (None, None))
    return {
        "accuracy": found.accuracy,
        "auc": area.value if area else None,
        "ece": found.ece,
        "ece_if_calibrated": found.ece_if_calibrated,
        "mce": found.mce,
        "nll": found.nll,
        "rms_low": rms[0],
        "rms_high": rms[1],
    }


def reliability(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the reliability diagram's bins as JSON values."""
    return [dict(bin_.as_row()) for bin_ in reliability_bins(from_batch(probabilities, labels))]


def split_for_choice(
    count: int, held_back: int, generator: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Deal training records into those that are trained on and those by which settings were chosen.

    Args:
        count: number of training records.
        held_back: how many to keep from training.
        generator: deals them.

    Returns:
        Rows to train on, rows held back.
    """
    order = generator.permutation(count)
    return np.sort(order[held_back:]), np.sort(order[:held_back])
