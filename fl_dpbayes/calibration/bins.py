"""The grid that predictions are counted in: equal-width bins by one float64 rule.

A confident model puts most records into the first and the last of 960 bins, whose order is then
lost. So the first and the last ENDS bins are divided into cells by log odds, which all that ranks
records reads.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.calibration.row_check import RowFunction, checked_piece

Floats = npt.NDArray[np.float64]

FINE_BINS = 960  # divisible by 10, 12, 15, 16, 20, 24, 30 and 32
REPORT_BINS = 15
ENDS = 16  # at 16/960 a bin is as wide in log odds as a cell
# Cells are as wide as 1 % of their log odds, so a temperature on top changes little.
CELL_GROWTH = 1.01
LARGEST_LOG_ODDS = 700.0  # float64 holds no probability below exp(-708) at full precision
# The columns of a table.
COUNT, CONFIDENCE, OUTCOME, SQUARE, PRODUCT = range(5)
COLUMNS = 5
# A sum of up to 2^23 multiples of 2^-30 in [0, 1] is exact in float64.
GRID = 2.0**30
ROWS_PER_PIECE = 1024


def bin_index(confidence: npt.ArrayLike, bins: int) -> npt.NDArray[np.int64]:
    """Place confidences p in [0, 1] in M equal-width bins [k/M, (k+1)/M), the last closed.

    The index is min(floor(p M), M - 1).
    """
    floor = np.floor(np.asarray(confidence, np.float64) * bins).astype(np.int64)
    return np.minimum(floor, bins - 1)


# Upper edges of the cells of the first ENDS bins, as probabilities, rising; the last is that of the
# bins.
_START = math.log((FINE_BINS - ENDS) / ENDS)
_STEPS = math.ceil(math.log(LARGEST_LOG_ODDS / _START) / math.log(CELL_GROWTH))
_DIVIDED = expit(-_START * CELL_GROWTH ** np.arange(1, _STEPS))
END_EDGES = np.union1d(_DIVIDED, np.arange(1, ENDS + 1) / FINE_BINS)
CELLS = FINE_BINS - 2 * ENDS + 2 * len(END_EDGES)
_LOWER = np.searchsorted(END_EDGES, np.arange(ENDS) / FINE_BINS, side="right")
_MIDDLE = np.arange(len(END_EDGES), CELLS - len(END_EDGES))
# The first cell of each fine bin, and CELLS at the end.
FIRST_CELL = np.concatenate([_LOWER, _MIDDLE, CELLS - np.append(len(END_EDGES), _LOWER[::-1])])
FINE_BIN_OF_CELL = np.repeat(np.arange(FINE_BINS), np.diff(FIRST_CELL))
# Ends of the fine bin of each cell: its own are finer than rows that sum to 1 within 1e-6 can keep
# to.
LOW = FINE_BIN_OF_CELL / FINE_BINS
HIGH = (FINE_BIN_OF_CELL + 1) / FINE_BINS
# Ends of each cell in p itself: of those near 0 their own, else the fine bin's.
CELL_LOW = np.concatenate([[0.0], END_EDGES[:-1], LOW[len(END_EDGES) :]])
CELL_HIGH = np.concatenate([END_EDGES, HIGH[len(END_EDGES) :]])


def cell_index(confidence: npt.ArrayLike, rest: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Place confidences in cells.

    Cells are fine bins of p, those near 0 divided by p and those near 1 by the rest. Their order is
    that of the log odds log(p / rest): 1 - p alone could not tell 1 - 1e-20 from 1 - 1e-30.

    Args:
        confidence: p in [0, 1].
        rest: The probability of everything else, of the same shape.

    Returns:
        Indices in [0, CELLS - 1], of the same shape; all of fine bin k lie in [FIRST_CELL[k],
        FIRST_CELL[k + 1] - 1].
    """
    fine = bin_index(confidence, FINE_BINS)
    from_below = np.searchsorted(END_EDGES, confidence, side="right")
    from_above = CELLS - 1 - np.searchsorted(END_EDGES, rest, side="right")
    cell = np.where(fine < FINE_BINS // 2, from_below, from_above)
    return np.clip(cell, FIRST_CELL[fine], FIRST_CELL[fine + 1] - 1)


def on_grid(probabilities: Floats) -> Floats:
    """Round probabilities to multiples of 2^-30, at most 5e-10 away.

    Their sums over records are then exact, so that a released sum moves by what a record adds, and
    by no rounding.
    """
    return np.round(probabilities * GRID) / GRID


def in_fixed_pieces(function: RowFunction, *arrays: npt.NDArray) -> npt.NDArray:
    """Apply a function of rows to pieces of 1024 rows, missing rows being zero.

    What vectorised code computes for a row could differ in its last bits with the row's place among
    others, and the last bit of a probability decides on which side of a bin's edge it lies
    (docs/sensitivity.md). Where made-up rows show that it does, a piece has one row.

    Args:
        function: Arrays of shapes (1024, ...) -> shape (1024, ...), row by row.
        *arrays: Each of shape (N, ...), cut alike.

    Returns:
        What the function gives, joined, shape (N, ...).
    """
    count = len(arrays[0])
    rows = checked_piece(function=function, arrays=arrays, rows=ROWS_PER_PIECE)
    results = []
    # Where there is no record, a piece of padding alone says what shape a row has.
    for start in range(0, max(1, count), rows):
        buffers = [np.zeros((rows, *array.shape[1:]), array.dtype) for array in arrays]
        for buffer, array in zip(buffers, arrays, strict=True):
            part = array[start : start + rows]
            buffer[: len(part)] = part
        results.append(function(*buffers))
    return np.concatenate(results)[:count]


def coarsen(table: Floats, bins: int) -> Floats:
    """Sum the cells of a table into B equal-width bins.

    Records are never binned again: 11/15 lies in another of 15 bins by way of 300.

    Args:
        table: Shape (..., CELLS, columns).
        bins: B, a divisor of FINE_BINS.

    Returns:
        Shape (..., B, columns).
    """
    return np.add.reduceat(table, FIRST_CELL[: -1 : FINE_BINS // bins], axis=-2)


def equal_mass(table: Floats, ranges: int) -> Floats:
    """Join neighbouring cells of a table into R ranges of about equally many records.

    Cell k goes to range min(floor(R * (n_0 + ... + n_{k-1} + n_k / 2) / N), R - 1); a cell is never
    split, so masses are equal up to the content of one cell, and a range may be empty.

    Args:
        table: Shape (M, columns).
        ranges: R.

    Returns:
        Shape (R, columns).
    """
    count = table[:, COUNT]
    total = count.sum()
    joined = np.zeros((ranges, table.shape[1]))
    if total > 0:
        middle = np.cumsum(count) - count / 2
        number = (ranges * middle / total).astype(np.int64)
        np.add.at(joined, np.minimum(number, ranges - 1), table)
    return joined
