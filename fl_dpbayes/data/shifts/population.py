"""Population shift: other class frequencies, the records within a class unchanged."""

import numpy as np
import numpy.typing as npt

LOGIT_OFFSETS = (0.5, 1.0, 1.5, 2.0, 2.5)


def prevalence_shares(classes: int, severity: int) -> npt.NDArray[np.float64]:
    """Return the share of each class that a prevalence shift keeps, (classes,), before rounding to whole records."""
    return np.exp(-LOGIT_OFFSETS[severity - 1] * np.arange(classes) / (classes - 1))


def subsampled_truth(truth: npt.NDArray[np.float64], shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the probabilities of labels among the records kept, where the chance to be kept depends on the class.

        t'(c) = t(c) k(c) / sum_j t(j) k(j)

    Args:
        truth: (N, C), p(y | x) before records were dropped.
        shares: k, (C,), the share of each class that was kept.

    Returns:
        p(y | x, kept), (N, C); for records kept.

    Source: Saerens, Latinne and Decaestecker, Neural Computation 14, 2002, equation 2.4.
    """
    weighted = truth * shares
    return weighted / weighted.sum(axis=1, keepdims=True)


def prevalence_indices(
    labels: npt.NDArray[np.int64], classes: int, severity: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Choose records without replacement so that high classes become rarer, as in screening after a referral clinic.

        p'(c) proportional to p(c) exp(-offset c / (classes - 1))

    With two classes this is logit p'(1) = logit p(1) - offset, up to rounding to whole records. Records kept at one
    severity include those kept at every higher one.

    Args:
        labels: (N,), in 0 .. classes - 1.
        classes: number of classes, at least 2.
        severity: 1 to 5, an offset of 0.5 to 2.5.
        generator: draws the order in which records are dropped.

    Returns:
        The indices kept, in increasing order.

    Source: prevalence shift of Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020.
    """
    order = np.argsort(generator.random(len(labels)))
    shares = prevalence_shares(classes, severity)
    kept = []
    for label in range(classes):
        members = order[labels[order] == label]
        kept.append(members[: round(len(members) * shares[label])])
    return np.sort(np.concatenate(kept)).astype(np.int64)
