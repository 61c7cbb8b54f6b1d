"""A marker that goes with the label: what a model learns instead of the disease."""

import numpy as np
import numpy.typing as npt

MARKER_RATES = (0.6, 0.7, 0.8, 0.9, 0.95)


def films_marked(labels: npt.NDArray[np.int64], severity: int, generator: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Decide which films carry a marker, mostly those of the sick.

        P(marker | y > 0) = rate,  P(marker | y = 0) = 1 - rate

    Positives marked at one severity are marked at every higher one, negatives left unmarked stay so.

    Args:
        labels: (N,), 0 is the negative class.
        severity: 1 to 5, a rate of .6, .7, .8, .9 or .95.
        generator: one draw per record.

    Returns:
        (N,), whether a film is marked.

    Source: shortcuts by markers, DeGrave, Janizek and Lee, Nat. Mach. Intell. 2021, s42256-021-00338-7.
    """
    rate = MARKER_RATES[severity - 1]
    return generator.random(len(labels)) < np.where(labels > 0, rate, 1 - rate)


def truth_given_marker(
    truth: npt.NDArray[np.float64], marked: npt.NDArray[np.bool_], severity: int
) -> npt.NDArray[np.float64]:
    """Return the label's probabilities once the marker is seen, which depends on the label.

        p(y | x, m) = p(y | x) p(m | y) / sum_c p(c | x) p(m | c)

    Args:
        truth: (N, C), p(y | x) of the films without markers.
        marked: (N,), from `films_marked`.
        severity: the one that they were marked by.

    Returns:
        p(y | x, marker), (N, C).
    """
    rate = MARKER_RATES[severity - 1]
    of_positive, of_negative = np.where(marked, rate, 1 - rate), np.where(marked, 1 - rate, rate)
    joint = truth * np.where(np.arange(truth.shape[1]) > 0, of_positive[:, None], of_negative[:, None])
    return joint / joint.sum(axis=1, keepdims=True)
