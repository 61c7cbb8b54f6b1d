"""What wrong labels do to the known truth of made-up records."""

import numpy as np
import numpy.typing as npt


def flipped_truth(truth: npt.NDArray[np.float64], flip_matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the probabilities of the recorded labels, given those of the right ones.

        t'(c') = sum_c t(c) M(c, c'),  M(c, c') = P(recorded c' | right c)

    It holds where the flip of a record depends on its features and its right label alone.

    Args:
        truth: (N, C), p(y | x) before the flips.
        flip_matrix: rows sum to 1; (C, C), or (N, C, C) where the rates differ from record to record.

    Returns:
        p(recorded y | x), (N, C).

    Source: class-conditional noise of Natarajan et al., NeurIPS 2013; transition matrix of Patrini et al., CVPR 2017.
    """
    return np.matmul(truth[:, None, :], flip_matrix)[:, 0, :]


def symmetric_flips(classes: int, rate: float) -> npt.NDArray[np.float64]:
    """Return the matrix of flips to any other class alike: 1 - rate on the diagonal, rate / (C - 1) beside it.

    Args:
        classes: C, at least 2.
        rate: probability that a label is wrong, in [0, 1].

    Returns:
        P(recorded c' | right c), (C, C).
    """
    matrix = np.full((classes, classes), rate / (classes - 1))
    np.fill_diagonal(matrix, 1 - rate)
    return matrix
