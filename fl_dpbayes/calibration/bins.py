"""Equal-width confidence bins: one float64 rule, and coarse bins that are unions of fine ones."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FINE_BINS = 960  # divisible by 10, 12, 15, 16, 20, 24, 30 and 32
REPORT_BINS = 15
COUNT, CONFIDENCE, OUTCOME, CONFIDENCE_SQUARED, CONFIDENCE_OUTCOME = range(5)
COLUMNS = 5
# A sum of up to 2^23 multiples of 2^-30 in [0, 1] is exact in float64.
GRID = 2.0**30


def bin_index(confidence: npt.ArrayLike, bins: int) -> npt.NDArray[np.int64]:
    """Place confidences in equal-width bins [k/M, (k+1)/M), the last one closed.

    k = min(floor(p * M), M - 1), evaluated in float64.

    Args:
        confidence: p, any shape, each in [0, 1]; upcast to float64.
        bins: M >= 1.

    Returns:
        Indices k in [0, M - 1], of the shape of `confidence`.
    """
    return np.minimum(np.floor(np.asarray(confidence, np.float64) * bins).astype(np.int64), bins - 1)


def on_grid(probabilities: Floats) -> Floats:
    """Round probabilities to multiples of 2^-30, so that their sums over records are exact.

    A released sum then moves by what a record adds, and by no rounding of the sum.

    Args:
        probabilities: any shape, each in [0, 1].

    Returns:
        The same shape, each in [0, 1], at most 5e-10 away.
    """
    return np.round(probabilities * GRID) / GRID


def coarsen(table: Floats, bins: int) -> Floats:
    """Sum neighbouring bins of a table into fewer, wider ones.

    Records are never binned again: 11/15 lies in another of 15 bins when it is placed directly than by way of 300.

    Args:
        table: sums per bin, shape (..., M, columns).
        bins: number of wide bins B, a divisor of M.

    Returns:
        Sums per wide bin, shape (..., B, columns).

    Raises:
        ValueError: if B does not divide M.
    """
    fine = table.shape[-2]
    if bins < 1 or fine % bins:
        raise ValueError(f"bins is {bins}: it must divide the {fine} bins that were counted, for example 10, 15 or 20")
    return table.reshape(*table.shape[:-2], bins, fine // bins, table.shape[-1]).sum(axis=-2)


def equal_mass(table: Floats, ranges: int) -> Floats:
    """Join neighbouring bins of a table into ranges that hold about equally many records.

    Bin k goes to range min(floor(R * (n_0 + ... + n_{k-1} + n_k / 2) / N), R - 1); a bin is never split, so masses
    are equal up to the content of one bin.

    Args:
        table: sums per bin, shape (M, columns), counts in the first column.
        ranges: R >= 1.

    Returns:
        Sums per range, shape (R, columns); a range may be empty.
    """
    count = table[:, COUNT]
    total = count.sum()
    joined = np.zeros((ranges, table.shape[1]))
    if total > 0:
        middle = np.cumsum(count) - count / 2
        np.add.at(joined, np.minimum((ranges * middle / total).astype(np.int64), ranges - 1), table)
    return joined
