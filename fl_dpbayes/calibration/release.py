"""A private release of calibration sums: one coarse table under the Gaussian mechanism."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import CONFIDENCE_OUTCOME, OUTCOME, Floats, coarsen
from fl_dpbayes.calibration.check import MAX_RECORDS
from fl_dpbayes.calibration.statistics import CalibrationStatistics

SENT_COLUMNS = OUTCOME + 1


def sensitivity(columns: int, *, class_wise: int = 0, max_records_per_unit: int = 1) -> float:
    """Return the L2 sensitivity of released tables to adding or removing one privacy unit.

    A record adds (1, p, y, p^2, p y), each at most 1, to one cell of the top-label table: at most k for the first k
    columns, squared. To the class-wise tables it adds C counts of 1 and, as sum_c p_c = sum_c y_c = 1, at most 1 for
    each other column: C + k - 1. A unit of m records moves the sums by at most m times as much:

        m sqrt(k)    or, with C class-wise tables,    m sqrt(k + C + k - 1)

    Examples: k = 3 alone sqrt(3); k = 5 with ten classes sqrt(19).

    Args:
        columns: k, how many leading columns of each table are sent, 1 to 5.
        class_wise: C, how many class-wise tables are sent beside the top-label table; 0 for none.
        max_records_per_unit: m, the cap on records that a unit contributes; the caller enforces it.

    Returns:
        The sensitivity; it is attained by records that are right with certainty.

    Raises:
        ValueError: if an argument is outside its range.
    """
    if not 1 <= columns <= CONFIDENCE_OUTCOME + 1 or class_wise < 0 or max_records_per_unit < 1:
        raise ValueError(
            f"columns is {columns} (allowed 1 to 5), class_wise {class_wise} (0 or more), max_records_per_unit "
            f"{max_records_per_unit} (1 or more)"
        )
    squared = columns + (class_wise + columns - 1 if class_wise else 0)
    return max_records_per_unit * math.sqrt(squared)


@dataclass(frozen=True, eq=False)
class NoisedTable:
    """A top-label table with Gaussian noise.

    Attributes:
        sums: noisy sums of 1, p and y per equal-width bin, shape (B, 3); any real numbers.
        noise_std: standard deviation of the independent noise on each sum.
    """

    sums: Floats
    noise_std: float


def noised_table(
    statistics: CalibrationStatistics,
    bins: int,
    noise_multiplier: float,
    generator: np.random.Generator,
    max_records_per_unit: int = 1,
) -> NoisedTable:
    """Release the coarse top-label table; its cost is one Gaussian event of this noise multiplier at sampling rate 1.

    Args:
        statistics: statistics of the site's test records; a record's share of each column lies in [0, 1].
        bins: number of equal-width bins, a public constant and a divisor of FINE_BINS.
        noise_multiplier: standard deviation of the noise over the sensitivity, > 0.
        generator: source of the noise; for privacy seeded with at least 128 bits from the operating system.
        max_records_per_unit: cap on records per privacy unit that the caller has enforced.

    Raises:
        ValueError: if noise_multiplier is not a positive number.
    """
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier is {noise_multiplier}: it must be a positive number")
    exact = coarsen(statistics.top_label, bins)[:, :SENT_COLUMNS]
    noise_std = noise_multiplier * sensitivity(SENT_COLUMNS, max_records_per_unit=max_records_per_unit)
    return NoisedTable(exact + noise_std * generator.standard_normal(exact.shape), noise_std)


def merge_noised(first: NoisedTable, second: NoisedTable) -> NoisedTable:
    """Add the tables of two sites; their independent noises add in variance.

    Raises:
        ValueError: if the bins differ.
    """
    if first.sums.shape != second.sums.shape:
        raise ValueError(f"cannot merge tables of {len(first.sums)} and {len(second.sums)} bins")
    return NoisedTable(first.sums + second.sums, math.hypot(first.noise_std, second.noise_std))


def noised_to_arrays(table: NoisedTable) -> dict[str, Floats]:
    """Write the sums of a noisy table as the named array `noised`; the noise is stated in the message's header."""
    return {"noised": table.sums}


def noised_from_arrays(arrays: Mapping[str, npt.NDArray], bins: int, noise_std: float) -> NoisedTable:
    """Read a noisy table of the agreed number of bins that came in a message, the arrays of `noised_to_arrays`.

    Raises:
        ValueError: if names, shape or type differ, or a value is not finite or larger than any test set.
    """
    if set(arrays) != {"noised"}:
        raise ValueError(f"a noised release holds the array 'noised', not {sorted(map(str, arrays))[:5]}")
    sums = arrays["noised"]
    if sums.dtype != np.float64 or sums.shape != (bins, SENT_COLUMNS):
        raise ValueError(f"'noised' is {sums.dtype} of shape {sums.shape}, not float64 of {(bins, SENT_COLUMNS)}")
    if not np.isfinite(sums).all() or (np.abs(sums) > MAX_RECORDS).any():
        raise ValueError(f"'noised' has a value that is not finite or beyond {MAX_RECORDS:.0e}")
    return NoisedTable(sums.copy(), noise_std)
