"""Do two networks number their hidden units alike? Averages of weights mean nothing where they do not."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

# Units that hardly differ swap by chance without harm; halving the distance is far beyond that.
_WORTH_REORDERING = 0.5


def unaligned_units(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Name the weight arrays whose units match better in another order.

    A unit is a row of an array (units, ...) with at least two axes. An array is named if the best assignment pi makes
    sum_i |a_i - b_pi(i)|^2 less than half of sum_i |a_i - b_i|^2.

    Args:
        first: parameters, shape (d,).
        second: parameters of the same model, shape (d,).
        shapes: parameter name -> shape, in the order of the vectors.

    Returns:
        Names of parameters, in their order.

    References:
        Ainsworth et al. 2023, "Git Re-Basin", section 3.2 (matching of weights); Yurochkin et al. 2019.
    """
    named = []
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        if len(shape) >= 2 and shape[0] >= 2:
            rows = (vector[start:end].reshape(shape[0], -1) for vector in (first, second))
            if _is_permuted(*rows):
                named.append(name)
        start = end
    return tuple(named)


def _is_permuted(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> bool:
    squares = np.square(first).sum(axis=1)[:, np.newaxis] + np.square(second).sum(axis=1)
    distances = np.maximum(squares - 2 * first @ second.T, 0.0)
    # In the product form, rows that are equal have a distance of rounding size, never below 0 after the line above.
    limit = _WORTH_REORDERING * np.square(first - second).sum()
    # No assignment beats every row's nearest partner: the usual case needs no assignment at all.
    if distances.min(axis=1).sum() >= limit:
        return False
    rows, columns = linear_sum_assignment(distances)
    return bool(distances[rows, columns].sum() < limit and (rows != columns).any())
