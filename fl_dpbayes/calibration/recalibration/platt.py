"""Platt scaling of two classes: u = (0, exp(s) (z_1 - z_0) + b), parameters (s, b).

It never turns the order round.

Source: Platt 1999, Probabilistic outputs for support vector machines, on the log odds as the score.
"""

from collections.abc import Sequence

import numpy as np

from fl_dpbayes.calibration.bins import Floats


def scores(logs: Floats, parameters: Floats) -> Floats:
    """Return u, shape (N, 2)."""
    score = np.exp(parameters[0]) * (logs[:, 1] - logs[:, 0]) + parameters[1]
    return np.column_stack([np.zeros_like(score), score])


def gradients(residual: Floats, logs: Floats, parameters: Floats) -> Floats:
    """Return d/d s = r_1 exp(s) (z_1 - z_0) and d/d b = r_1, shape (N, 2)."""
    scaled = np.exp(parameters[0]) * (logs[:, 1] - logs[:, 0])
    return residual[:, 1:] * np.column_stack([scaled, np.ones_like(scaled)])


def describe(parameters: Sequence[float]) -> str:
    """Say what the map does."""
    return f"Platt scaling with scale {np.exp(parameters[0]):.3g} and bias {parameters[1]:.3g}"
