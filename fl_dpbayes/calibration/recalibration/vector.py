"""Vector scaling: u = exp(s) * z + b, parameters (s_1 .. s_C, b_1 .. b_C).

The multi-class Platt scaling.

Sources: Guo et al. 2017, On calibration of modern neural networks, section 4.2; Zhang et al. 2022,
A closer look at the calibration of differentially private learners, section 3.4.
"""

from collections.abc import Sequence

import numpy as np

from fl_dpbayes.calibration.bins import Floats


def scores(logs: Floats, parameters: Floats) -> Floats:
    """Return u, shape (N, C)."""
    classes = logs.shape[1]
    return np.exp(parameters[:classes]) * logs + parameters[classes:]


def gradients(residual: Floats, logs: Floats, parameters: Floats) -> Floats:
    """Return d/d s_c = r_c exp(s_c) z_c and d/d b_c = r_c, shape (N, 2 C)."""
    scales = np.exp(parameters[: logs.shape[1]])
    return np.concatenate([residual * (scales * logs), residual], axis=1)


def describe(parameters: Sequence[float]) -> str:
    """Say what the map does."""
    return "vector scaling (a scale and a bias per class)"
