"""Another prevalence of the classes.

Corrected probabilities, its estimate from records or sums, and weights of labels.
"""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, PRODUCT, Floats
from fl_dpbayes.calibration.statistics import CalibrationStatistics

ROUNDING = 1e-9
EM_STEPS = 10_000
EM_TOLERANCE = 1e-10


def with_prevalence(probabilities: Floats, trained: npt.ArrayLike, target: npt.ArrayLike) -> Floats:
    """Move predictions from the prevalence that they were trained at to another.

    p'(y | x) is proportional to p(y | x) target_y / trained_y, exact where only the prevalence
    differs, p(x | y) being the same.

    Args:
        probabilities: Shape (N, C), rows that sum to 1.
        trained: C numbers above 0; those of private records are public knowledge or paid for.
        target: C numbers of 0 or more.

    Returns:
        Shape (N, C), rows that sum to 1.

    Source: Saerens, Latinne and Decaestecker 2002, eq. 4.
    """
    ratios = np.asarray(target, np.float64) / np.asarray(trained, np.float64)
    weighted = probabilities * ratios
    totals = weighted.sum(axis=1, keepdims=True)
    uniform = np.full_like(weighted, 1 / probabilities.shape[1])
    return np.divide(weighted, totals, out=uniform, where=totals > 0)


def estimated_prevalence(probabilities: Floats, trained: npt.ArrayLike) -> Floats:
    """Estimate the prevalence where predictions are used, from these predictions alone.

        pi_c <- (1/N) sum_i p'(c | x_i),    p' = with_prevalence(p, trained, pi)

    from pi = trained. It is the maximum of the likelihood, by expectation maximisation; as the
    likelihood is concave, no other maximum can hold it. It needs no label, but predictions that are
    calibrated at training, and equal p(x | y) there and here. It is as confidential as the records.

    Args:
        probabilities: Shape (N, C), rows that sum to 1.
        trained: C numbers above 0.

    Returns:
        C numbers that sum to 1; `trained` without a record.

    Source: Saerens, Latinne and Decaestecker 2002, eq. 9-10.
    """
    estimate = np.asarray(trained, np.float64) / np.sum(trained)
    if not len(probabilities):
        return estimate
    for _ in range(EM_STEPS):
        before = estimate
        estimate = with_prevalence(probabilities, trained, estimate).mean(axis=0)
        if np.abs(estimate - before).max() < EM_TOLERANCE:
            break
    return estimate


def prevalence(statistics: CalibrationStatistics) -> Floats:
    """Return the share of each class among the labels of one record or more, shape (C,)."""
    return statistics.class_wise[..., OUTCOME].sum(axis=1) / statistics.count


def prevalence_from_means(
    source: CalibrationStatistics, target: CalibrationStatistics
) -> Floats | None:
    """Estimate the target's class shares from its mean prediction, its labels unused.

    Soft black-box shift estimation: pi_1 = (m - m_0) / (m_1 - m_0), cut to [0, 1]. m is the
    target's mean p(y = 1), m_c the source's mean over records of class c. It is right where only
    the prevalence differs.

    Args:
        source: Sums over the records whose labels are used.
        target: Sums over the records whose labels are not.

    Returns:
        (1 - pi_1, pi_1), or None for more than two classes (of which the sums hold too little), one
        class in the source, or m_1 <= m_0.

    Source: Lipton, Wang, Smola, "Detecting and correcting for label shift with black box
    predictors", ICML 2018.
    """
    if source.risk is None:
        return None
    sums = source.risk.sum(axis=0)
    positives = sums[OUTCOME]
    negatives = sums[COUNT] - sums[OUTCOME]
    if positives == 0 or negatives == 0:
        return None
    mean_of_positives = sums[PRODUCT] / positives
    mean_of_negatives = (sums[CONFIDENCE] - sums[PRODUCT]) / negatives
    distance = mean_of_positives - mean_of_negatives
    if distance <= ROUNDING:
        return None
    mean = target.class_wise[1, :, CONFIDENCE].sum() / target.count
    share = min(1.0, max(0.0, float((mean - mean_of_negatives) / distance)))
    return np.array([1 - share, share])


def label_shift_weights(source: Floats, target: Floats) -> Floats | None:
    """Return the weights of labels, target over source prevalence.

    Args:
        source: Prevalence of each class, shape (C,).
        target: Prevalence of each class, shape (C,).

    Returns:
        Shape (C,); None where the target has a class that the source lacks.
    """
    if ((source == 0) & (target > 0)).any():
        return None
    return np.divide(target, source, out=np.zeros_like(source), where=source > 0)
