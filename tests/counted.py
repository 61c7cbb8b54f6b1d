"""Predictions and their statistics for tests of calibration."""

import json
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from fl_dpbayes.calibration.recalibration.descent import log_probabilities, record_gradients
from fl_dpbayes.calibration.recalibration.maps import method_code
from fl_dpbayes.calibration.statistics import CalibrationStatistics, from_batch
from fl_dpbayes.config.outcome import Classification
from fl_dpbayes.config.recalibration import PARAMETER_BOUND, RecalibrationMap, parameter_count
from fl_dpbayes.config.record_schema import RecordSchema
from fl_dpbayes.config.task import Task
from fl_dpbayes.outcomes.classification import class_sums
from fl_dpbayes.protocol.card import SiteCard

CARD = SiteCard(
    name="north",
    role="held_out",
    task=Task(input_shape=(2,), classes=2),
    units=8,
    unit="patient",
    data_schema=RecordSchema(features="0" * 64, constants="0" * 64, labels="0" * 64),
    evaluation_release="public",
    seeded=False,
)
GOLDEN = json.loads((Path(__file__).parent / "golden" / "calibration.json").read_text())


merge = CalibrationStatistics.plus


def empty(classes: int) -> CalibrationStatistics:
    """Count nothing."""
    shapes = class_sums(classes).shapes
    return CalibrationStatistics.of_arrays(
        {name: np.zeros(shape) for name, shape in shapes.items()}
    )


def binary(p, y) -> CalibrationStatistics:
    """Count predictions p of class 1 against labels y."""
    p = np.asarray(p, np.float64)
    return from_batch(np.stack([1 - p, p], axis=1), y)


def top_label(confidence, right) -> CalibrationStatistics:
    """Count predictions of class 0 with a confidence, right or wrong."""
    confidence = np.asarray(confidence, np.float64)
    return from_batch(np.stack([confidence, 1 - confidence], axis=1), np.where(right, 0, 1))


def miscalibrated(records: int, classes: int, factor: float = 2.0, seed: int = 0):
    """Return predictions whose logits are `factor` times the true ones, labels, and the true probabilities."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.standard_normal((records, classes))
    true = softmax(logits, axis=1)
    labels = (generator.random((records, 1)) > true.cumsum(axis=1)).sum(axis=1)
    return softmax(factor * logits, axis=1), labels, true


def overconfident(records: int, classes: int, factor: float = 2.0, seed: int = 0):
    """Return the predictions and labels of `miscalibrated`."""
    return miscalibrated(records, classes, factor, seed)[:2]


def map_loss(method, parameters, logs, labels) -> float:
    """Mean negative log-likelihood of the labels under a map of log probabilities, nats."""
    scores = log_softmax(method_code(method).scores(logs, parameters), axis=1)
    return float(-scores[np.arange(len(labels)), labels].mean())


def best_fit(method, probabilities, labels) -> RecalibrationMap:
    """Fit the map of least loss without privacy: what private fits are held against."""
    logs = log_probabilities(probabilities)
    start = np.zeros(parameter_count(method, Classification(classes=logs.shape[1])))
    found = minimize(
        lambda parameters: map_loss(method, parameters, logs, labels),
        start,
        jac=lambda parameters: record_gradients(method, parameters, logs, labels).mean(axis=0),
        bounds=[(-PARAMETER_BOUND, PARAMETER_BOUND)] * len(start),
        options={"ftol": 1e-14, "gtol": 1e-9},
    )
    return RecalibrationMap(method=method, parameters=tuple(map(float, found.x)))


def normal_classes(generator, count, shares, *, sharpness=0.5):
    """Draw labels of the given shares, and predict by Bayes at equal shares where x of class c is N(1.5 c, 1)."""
    labels = generator.choice(len(shares), count, p=shares)
    distance = generator.normal(1.5 * labels, 1.0)[:, None] - 1.5 * np.arange(len(shares))
    return softmax(-sharpness * distance**2, axis=1), labels
