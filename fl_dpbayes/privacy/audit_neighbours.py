"""Coupled neighbours: two runs with the same noise whose records differ by one unit."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.privacy.audit_check import Check

Array = npt.NDArray[np.float64]

# The released numbers are float32: rounding moves the length by about 1e-7 of C.
NORM_TOLERANCE = 1e-5
# Two ways of computing a gradient in float32 differ by about 1e-5; a fault changes it by a tenth or more.
GRADIENT_TOLERANCE = 1e-3


def norm_check(contribution: Array, *, clip_norm: float) -> Check:
    """Check that one unit moves the released sum by at most the clip norm: |D| <= C (1 + 1e-5).

    Args:
        contribution: D, difference of the two released sums, shape (d,).
        clip_norm: C, above zero.

    Returns:
        The check, in units of C.
    """
    length = float(np.linalg.norm(contribution)) / clip_norm
    what = "one unit moves the sum by at most C"
    return Check("coupled neighbours", what, length, 1 + NORM_TOLERANCE, "at most")


def gradient_check(contribution: Array, gradient: Array, *, clip_norm: float) -> Check:
    """Check that what one unit adds is its clipped gradient and nothing else: |D - clip_C(g)| <= 0.001 C.

    A prior inside the clip, a realised batch size as denominator or a unit counted twice all break it.

    Args:
        contribution: D, difference of the two released sums, shape (d,).
        gradient: g, the unit's own gradient, computed apart, shape (d,).
        clip_norm: C, above zero.

    Returns:
        The check, in units of C.
    """
    clipped = gradient * min(1.0, clip_norm / float(np.linalg.norm(gradient)))
    distance = float(np.linalg.norm(contribution - clipped)) / clip_norm
    what = "one unit adds its clipped gradient to the sum, nothing else"
    return Check("coupled neighbours", what, distance, GRADIENT_TOLERANCE, "at most")
