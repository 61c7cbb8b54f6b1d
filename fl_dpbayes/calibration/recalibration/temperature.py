"""Temperature scaling: u = z / T, parameter log T.

Source: Guo et al. 2017, On calibration of modern neural networks.
"""

from collections.abc import Sequence

import numpy as np

from fl_dpbayes.calibration.bins import Floats


def scores(logs: Floats, parameters: Floats) -> Floats:
    """Return u, shape (N, C)."""
    return logs * np.exp(-parameters[0])


def gradients(residual: Floats, logs: Floats, parameters: Floats) -> Floats:
    """Return d/d log T = -sum_c r_c u_c, shape (N, 1)."""
    return -(residual * scores(logs, parameters)).sum(axis=1, keepdims=True)


def describe(parameters: Sequence[float]) -> str:
    """Say what the map does."""
    return f"temperature scaling with T = {np.exp(parameters[0]):.3g}"
