"""Annotation shift: a share of the labels is wrong, whatever the record looks like."""

import numpy as np
import numpy.typing as npt

FLIP_RATES = (0.02, 0.05, 0.10, 0.20, 0.30)


def flip_labels(
    labels: npt.NDArray[np.int64], classes: int, severity: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Replace each label with probability `rate` by one of the other classes, all equally likely.

    Labels flipped at one severity are flipped to the same class at every higher one.

    Args:
        labels: (N,), in 0 .. classes - 1.
        classes: number of classes, at least 2.
        severity: 1 to 5, a rate of .02, .05, .10, .20 or .30.
        generator: draws who is flipped and to which class.

    Returns:
        The new labels, (N,).

    Source: symmetric label noise at the rates of JMIR Med. Inform. 2020;8:e18089.
    """
    scores = generator.random(len(labels))
    steps = generator.integers(1, classes, size=len(labels))
    return np.where(scores < FLIP_RATES[severity - 1], (labels + steps) % classes, labels)


def under_report(labels: npt.NDArray[np.int64], severity: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Record positives (any class above 0) as class 0 with probability `rate`; negatives stay.

    Positives missed at one severity are missed at every higher one.

    Args:
        labels: (N,), 0 is the negative class.
        severity: 1 to 5, a rate of .02, .05, .10, .20 or .30.
        generator: one draw per record.

    Returns:
        The new labels, (N,).

    Source: one-sided label noise; Oakden-Rayner 2019 on what radiology reports leave out.
    """
    return np.where(generator.random(len(labels)) < FLIP_RATES[severity - 1], 0, labels)


def under_reporting_flips(classes: int, severity: int) -> npt.NDArray[np.float64]:
    """Return P(recorded c' | right c) under `under_report`, (classes, classes)."""
    rate = FLIP_RATES[severity - 1]
    matrix = (1 - rate) * np.eye(classes)
    matrix[:, 0] += rate
    return matrix
