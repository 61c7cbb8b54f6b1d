"""Annotation shift: a share of the labels is wrong."""

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
