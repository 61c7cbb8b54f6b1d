"""Applies a recalibration map of class probabilities, and says what it does.

Methods fitted by descent map the logarithms z = log p of a (posterior averaged) prediction p to
scores u and give g(p) = softmax(u). All parameters 0 leave a prediction as it is.
"""

from types import ModuleType

import numpy as np
from scipy.special import softmax

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.config import COUNTED, RecalibrationMap, implementation

SMALLEST = np.finfo(np.float64).tiny


def method_code(method: str) -> ModuleType:
    """Return the module of a recalibration method.

    It has `describe`; where the method is fitted by descent, `scores` and `gradients`; where it is
    fitted to counts, `count`, `fit`, `identity` and `apply`.
    """
    return implementation("fl_dpbayes.calibration.recalibration", method)


def recalibrate(probabilities: Floats, mapping: RecalibrationMap) -> Floats:
    """Apply a map to predictions.

    Args:
        probabilities: p, shape (N, C), rows that sum to 1.
        mapping: Of C classes.

    Returns:
        g(p), shape (N, C).
    """
    code = method_code(mapping.method)
    parameters = np.asarray(mapping.parameters)
    if mapping.method in COUNTED:
        return code.apply(probabilities, parameters)
    # A fit's gradients are bounded by its floor; here one would let the order of the surest records
    # change.
    logs = np.log(np.maximum(probabilities, SMALLEST))
    return softmax(code.scores(logs, parameters), axis=1)


def describe(mapping: RecalibrationMap) -> str:
    """Say in words what a map does.

    A temperature, and the inverse of a Platt scale, above 1 mean: less sure.
    """
    return method_code(mapping.method).describe(mapping.parameters)
