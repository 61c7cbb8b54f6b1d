"""Correct class probabilities for another prevalence of the classes."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def with_prevalence(probabilities: Floats, trained: npt.ArrayLike, target: npt.ArrayLike) -> Floats:
    """Move predictions from the prevalence that they were trained at to another.

    p'(y | x) is proportional to p(y | x) target_y / trained_y, exact where only the prevalence differs, p(x | y) being
    the same (Saerens, Latinne and Decaestecker 2002, eq. 4).

    Args:
        probabilities: shape (N, C), rows that sum to 1.
        trained: prevalences at training, C numbers above 0. Those of private records are public knowledge or paid for.
        target: prevalences where the predictions are used, C numbers of 0 or more.

    Returns:
        Shape (N, C), rows that sum to 1.

    Raises:
        ValueError: if a prevalence is out of range, or their number is not C.
    """
    before, after = np.asarray(trained, np.float64), np.asarray(target, np.float64)
    classes = probabilities.shape[1]
    if before.shape != (classes,) or after.shape != (classes,) or not (before > 0).all() or not (after >= 0).all():
        raise ValueError(f"give {classes} prevalences each, those at training above 0: got {before} and {after}")
    weighted = probabilities * (after / before)
    totals = weighted.sum(axis=1, keepdims=True)
    return np.divide(weighted, totals, out=np.full_like(weighted, 1 / classes), where=totals > 0)
