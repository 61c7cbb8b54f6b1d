"""Recalibration after training: a map of class probabilities with few parameters, and its fit without privacy.

With z = log p of a (posterior averaged) prediction p, floored at PROBABILITY_FLOOR,

    temperature scaling   g(p) = softmax(z / T),                  parameters (log T)
    vector scaling        g(p) = softmax(exp(s) * z + b),         parameters (s_1 .. s_C, b_1 .. b_C)

For a point model z differs from its logits by a constant per record, which softmax forgets under temperature scaling.
All parameters 0 leave a prediction as it is. Vector scaling with biases is the multi-class Platt scaling of the source.

Sources: Guo et al. 2017, On calibration of modern neural networks, section 4.2; Zhang et al. 2022, A closer look at the
calibration of differentially private learners, section 3.4.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax

from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR
from fl_dpbayes.protocol.recalibration import PARAMETER_BOUND, RecalibrationMap, RecalibrationMethod, parameter_count

Floats = npt.NDArray[np.float64]


def recalibrate(probabilities: Floats, mapping: RecalibrationMap) -> Floats:
    """Apply a map to predictions.

    Args:
        probabilities: p, shape (N, C), rows that sum to 1.
        mapping: which map; its parameters fit C classes.

    Returns:
        g(p), shape (N, C), rows that sum to 1.

    Raises:
        ValueError: if the map is for another number of classes.
    """
    classes = probabilities.shape[1]
    if len(mapping.parameters) != parameter_count(mapping.method, classes):
        raise ValueError(f"the map has {len(mapping.parameters)} parameters, which do not fit {classes} classes")
    return softmax(_scores(mapping.method, log_probabilities(probabilities), np.asarray(mapping.parameters)), axis=1)


def describe(mapping: RecalibrationMap) -> str:
    """Say in words what a map does: temperature scaling with its T (above 1: less sure), or vector scaling."""
    if mapping.method == "temperature":
        return f"temperature scaling with T = {np.exp(mapping.parameters[0]):.3g}"
    return "vector scaling (a scale and a bias per class)"


def log_probabilities(probabilities: Floats) -> Floats:
    """Return log max(p, PROBABILITY_FLOOR), so that every score lies in [-27.7, 0]."""
    return np.log(np.maximum(probabilities, PROBABILITY_FLOOR))


def loss(method: RecalibrationMethod, parameters: Floats, logs: Floats, labels: npt.NDArray[np.int64]) -> float:
    """Return the mean negative log-likelihood -log g(p)_label, nats; 0 without records.

    Args:
        method: which map.
        parameters: its parameters.
        logs: z, shape (N, C), from `log_probabilities`.
        labels: shape (N,), 0 .. C - 1.

    Returns:
        The mean loss.
    """
    scores = log_softmax(_scores(method, logs, parameters), axis=1)
    return float(-scores[np.arange(len(labels)), labels].sum()) / max(1, len(labels))


def record_gradients(
    method: RecalibrationMethod, parameters: Floats, logs: Floats, labels: npt.NDArray[np.int64]
) -> Floats:
    """Return the gradient of every record's -log g(p)_label by the parameters.

    With u the scores, q = softmax(u) and r = q - onehot(label):

        temperature   d/d log T = -sum_c r_c u_c
        vector        d/d s_c = r_c u'_c,  u' = exp(s) * z;   d/d b_c = r_c

    Args:
        method: which map.
        parameters: its P parameters.
        logs: z, shape (N, C).
        labels: shape (N,).

    Returns:
        Shape (N, P), finite.
    """
    residual = softmax(_scores(method, logs, parameters), axis=1)
    residual[np.arange(len(labels)), labels] -= 1.0
    if method == "temperature":
        return -(residual * _scores(method, logs, parameters)).sum(axis=1, keepdims=True)
    scales = np.exp(parameters[: logs.shape[1]])
    return np.concatenate([residual * (scales * logs), residual], axis=1)


def fit_temperature(probabilities: Floats, labels: npt.NDArray[np.int64]) -> RecalibrationMap:
    """Fit the temperature of least loss, without privacy: a reference.

    Args:
        probabilities: shape (N, C).
        labels: shape (N,), 0 .. C - 1.

    Returns:
        The map; T = 1 without records. Where every top label is right T has no minimum and meets its bound.
    """
    logs = log_probabilities(probabilities)
    if not len(labels):
        return RecalibrationMap(method="temperature", parameters=(0.0,))
    # log T is searched in the middle of its range: outside it the loss is flat to rounding.
    found = minimize_scalar(
        lambda value: loss("temperature", np.array([value]), logs, labels),
        bounds=(-PARAMETER_BOUND / 2, PARAMETER_BOUND / 2),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return RecalibrationMap(method="temperature", parameters=(float(found.x),))


def fit_vector(probabilities: Floats, labels: npt.NDArray[np.int64]) -> RecalibrationMap:
    """Fit the vector scaling of least loss, without privacy: a reference.

    Args:
        probabilities: shape (N, C).
        labels: shape (N,), 0 .. C - 1.

    Returns:
        The map; the identity without records. A bias is free up to a constant, and starts at 0.
    """
    logs = log_probabilities(probabilities)
    start = np.zeros(parameter_count("vector", logs.shape[1]))
    if not len(labels):
        return RecalibrationMap(method="vector", parameters=tuple(start))

    def gradient(parameters: Floats) -> Floats:
        return record_gradients("vector", parameters, logs, labels).mean(axis=0)

    found: Any = minimize(
        lambda parameters: loss("vector", parameters, logs, labels),
        start,
        jac=gradient,
        method="L-BFGS-B",
        bounds=[(-PARAMETER_BOUND, PARAMETER_BOUND)] * len(start),
    )
    return RecalibrationMap(method="vector", parameters=tuple(map(float, found.x)))


FITS: dict[RecalibrationMethod, Callable[[Floats, npt.NDArray[np.int64]], RecalibrationMap]] = {
    "temperature": fit_temperature,
    "vector": fit_vector,
}


def _scores(method: RecalibrationMethod, logs: Floats, parameters: Floats) -> Floats:
    if method == "temperature":
        return logs * np.exp(-parameters[0])
    classes = logs.shape[1]
    return np.exp(parameters[:classes]) * logs + parameters[classes:]
