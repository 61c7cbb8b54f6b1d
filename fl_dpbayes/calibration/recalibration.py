"""Recalibration after training: a map of class probabilities with few parameters, and its fit without privacy.

With z = log p of a (posterior averaged) prediction p, in a fit floored at PROBABILITY_FLOOR,

    temperature scaling   g(p) = softmax(z / T),                  parameters (log T)
    vector scaling        g(p) = softmax(exp(s) * z + b),         parameters (s_1 .. s_C, b_1 .. b_C)
    Platt scaling         g(p)_1 = sigmoid(exp(s) (z_1 - z_0) + b),    parameters (s, b); two classes

For a point model z differs from its logits by a constant per record, which softmax forgets under temperature scaling.
All parameters 0 leave a prediction as it is. Vector scaling with biases is the multi-class Platt scaling of the source.
Isotonic maps have a file of their own.

Sources: Guo et al. 2017, On calibration of modern neural networks, section 4.2; Zhang et al. 2022, A closer look at the
calibration of differentially private learners, section 3.4; Platt 1999, Probabilistic outputs for support vector
machines, on the log odds as the score.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax

from fl_dpbayes.calibration.isotonic import apply_isotonic, knot_count
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR
from fl_dpbayes.config.recalibration import (
    ISOTONIC_BINS,
    PARAMETER_BOUND,
    DescentMethod,
    RecalibrationMap,
    parameter_count,
)

Floats = npt.NDArray[np.float64]

SMALLEST = np.finfo(np.float64).tiny


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
    if mapping.method == "isotonic":
        return apply_isotonic(probabilities, mapping)
    # A fit's gradients are bounded by its floor; here one would let the order of the surest records change.
    logs = np.log(np.maximum(probabilities, SMALLEST))
    return softmax(_scores(mapping.method, logs, np.asarray(mapping.parameters)), axis=1)


def describe(mapping: RecalibrationMap) -> str:
    """Say in words what a map does; a temperature, and the inverse of a Platt scale, above 1 mean: less sure."""
    match mapping.method:
        case "temperature":
            return f"temperature scaling with T = {np.exp(mapping.parameters[0]):.3g}"
        case "vector":
            return "vector scaling (a scale and a bias per class)"
        case "platt":
            return f"Platt scaling with scale {np.exp(mapping.parameters[0]):.3g} and bias {mapping.parameters[1]:.3g}"
        case "isotonic":
            return f"an isotonic map on {ISOTONIC_BINS} merged bins ({knot_count(mapping)} distinct)"


def log_probabilities(probabilities: Floats) -> Floats:
    """Return log max(p, PROBABILITY_FLOOR), so that every score lies in [-27.7, 0]."""
    return np.log(np.maximum(probabilities, PROBABILITY_FLOOR))


def loss(method: DescentMethod, parameters: Floats, logs: Floats, labels: npt.NDArray[np.int64]) -> float:
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


def record_gradients(method: DescentMethod, parameters: Floats, logs: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """Return the gradient of every record's -log g(p)_label by the parameters.

    With u the scores, q = softmax(u) and r = q - onehot(label):

        temperature   d/d log T = -sum_c r_c u_c
        vector        d/d s_c = r_c u'_c,  u' = exp(s) * z;   d/d b_c = r_c
        platt         d/d s = r_1 u',      u' = exp(s) (z_1 - z_0);   d/d b = r_1

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
    if method == "platt":
        scaled = np.exp(parameters[0]) * (logs[:, 1] - logs[:, 0])
        return residual[:, 1:] * np.column_stack([scaled, np.ones_like(scaled)])
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
    return _fit_from_identity("vector", probabilities, labels)


def fit_platt(probabilities: Floats, labels: npt.NDArray[np.int64]) -> RecalibrationMap:
    """Fit the Platt scaling of least loss, without privacy: a reference.

    Args:
        probabilities: shape (N, 2).
        labels: shape (N,), 0 or 1.

    Returns:
        The map; the identity without records. Its scale is above 0, so it never turns the order round.
    """
    return _fit_from_identity("platt", probabilities, labels)


def _fit_from_identity(method: DescentMethod, probabilities: Floats, labels: npt.NDArray[np.int64]) -> RecalibrationMap:
    logs = log_probabilities(probabilities)
    start = np.zeros(parameter_count(method, logs.shape[1]))
    if not len(labels):
        return RecalibrationMap(method=method, parameters=tuple(start))

    def gradient(parameters: Floats) -> Floats:
        return record_gradients(method, parameters, logs, labels).mean(axis=0)

    found: Any = minimize(
        lambda parameters: loss(method, parameters, logs, labels),
        start,
        jac=gradient,
        method="L-BFGS-B",
        bounds=[(-PARAMETER_BOUND, PARAMETER_BOUND)] * len(start),
    )
    return RecalibrationMap(method=method, parameters=tuple(map(float, found.x)))


FITS: dict[DescentMethod, Callable[[Floats, npt.NDArray[np.int64]], RecalibrationMap]] = {
    "temperature": fit_temperature,
    "vector": fit_vector,
    "platt": fit_platt,
}


def _scores(method: DescentMethod, logs: Floats, parameters: Floats) -> Floats:
    if method == "temperature":
        return logs * np.exp(-parameters[0])
    if method == "platt":
        scores = np.exp(parameters[0]) * (logs[:, 1] - logs[:, 0]) + parameters[1]
        return np.column_stack([np.zeros_like(scores), scores])
    classes = logs.shape[1]
    return np.exp(parameters[:classes]) * logs + parameters[classes:]
