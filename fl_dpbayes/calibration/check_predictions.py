"""What may be counted: valid class probabilities and labels, from our own code."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import Floats

SUM_TOLERANCE = 1e-6
ROUNDING = 1e-9


def check_probabilities(probabilities: npt.ArrayLike) -> Floats:
    """Return probabilities of records in float64, rounding above 1 cut.

    Args:
        probabilities: Shape (N, C >= 2), rows that sum to 1 within 1e-6.

    Returns:
        Shape (N, C), at most 1.

    Raises:
        ValueError: If they are of another shape, not in [0, 1], or do not sum to 1.
    """
    probability = np.asarray(probabilities, np.float64)
    if probability.ndim != 2 or probability.shape[1] < 2:
        raise ValueError(
            f"probabilities have shape {probability.shape}: expected (records, 2 or more classes)"
        )
    if np.isnan(probability).any():
        raise ValueError("a probability is NaN: the predictor has diverged")
    if probability.size and (probability.min() < 0 or probability.max() > 1 + ROUNDING):
        raise ValueError(
            f"probabilities span [{probability.min():.6g}, {probability.max():.6g}]: "
            "they must lie in [0, 1]; apply softmax to logits first"
        )
    sums = probability.sum(axis=1)
    off = np.abs(sums - 1)
    if (off > SUM_TOLERANCE).any():
        worst = sums[off.argmax()]
        raise ValueError(
            f"a row of probabilities sums to {worst:.9g}: it must be 1 within {SUM_TOLERANCE}"
        )
    return np.minimum(probability, 1.0)


def check_labels(labels: npt.ArrayLike, count: int, classes: int) -> npt.NDArray[np.int64]:
    """Return labels of records as int64.

    Args:
        labels: Integers or whole floats 0 .. C - 1.
        count: N.
        classes: C.

    Returns:
        Shape (N,).

    Raises:
        ValueError: If they are of another shape, or one is not a class.
    """
    label = np.asarray(labels)
    if label.shape != (count,):
        raise ValueError(
            f"labels have shape {label.shape}: expected ({count},), one per row of probabilities"
        )
    if not np.isin(label, np.arange(classes)).all():
        raise ValueError(f"a label is not a class: labels must be whole numbers 0 .. {classes - 1}")
    return label.astype(np.int64)
