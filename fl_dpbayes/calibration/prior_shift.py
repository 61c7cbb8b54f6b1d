"""Correct class probabilities for another prevalence of the classes."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
EM_STEPS, EM_TOLERANCE = 10_000, 1e-10


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


def estimated_prevalence(probabilities: Floats, trained: npt.ArrayLike) -> Floats:
    """Estimate the prevalence where predictions are used, from these predictions alone, by maximum likelihood.

        pi_c <- (1/N) sum_i p'(c | x_i),    p' = with_prevalence(p, trained, pi),    from pi = trained

    (Saerens, Latinne and Decaestecker 2002, eq. 9-10). Expectation maximisation of a concave likelihood, so no other
    maximum can hold it. It needs no label, but predictions that are calibrated at training, and equal p(x | y) there
    and here. The estimate depends on every record: it is as confidential as they are.

    Args:
        probabilities: shape (N, C), rows that sum to 1.
        trained: prevalences at training, C numbers above 0.

    Returns:
        C numbers of 0 or more that sum to 1; `trained` where there is no record.
    """
    estimate = np.asarray(trained, np.float64) / np.sum(trained)
    for _ in range(EM_STEPS if len(probabilities) else 0):
        before, estimate = estimate, with_prevalence(probabilities, trained, estimate).mean(axis=0)
        if np.abs(estimate - before).max() < EM_TOLERANCE:
            break
    return estimate
