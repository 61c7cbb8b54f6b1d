"""What noise is added to: sums of units' shares.

Each share is finite and within a bound, whatever it was computed from.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import (
    FINE_BINS,
    OUTCOME,
    Floats,
    bin_index,
    in_fixed_pieces,
    on_grid,
)

SENT_COLUMNS = OUTCOME + 1
# Far inside the range of float64, so that no square of a bound, or sum of them, leaves it.
SMALLEST_BOUND = 1e-100
LARGEST_BOUND = 1e100
# More than the rounding of a norm over a few thousand entries; sensitivities have it added.
NORM_ROUNDING = 1e-12
GRID_BITS = 30


@dataclass(frozen=True)
class BoundedSum:
    """A sum of units' shares that `bounded_sum` made.

    Attributes:
        sums: Shape (K,) or (cells, K).
        sensitivity: By how much one unit moves it at most, in L2.
    """

    sums: Floats
    sensitivity: float


def sensitivity(max_records_per_unit: int = 1) -> float:
    """Return the L2 sensitivity of a table of `record_counts` to one privacy unit, m sqrt(3).

    Args:
        max_records_per_unit: m, a cap that the caller enforces.

    Returns:
        The sensitivity.

    Raises:
        ValueError: If m is below 1.
    """
    if max_records_per_unit < 1:
        raise ValueError(f"max_records_per_unit is {max_records_per_unit}: it must be 1 or more")
    return max_records_per_unit * math.sqrt(SENT_COLUMNS)


class NoisedTable(NamedTuple):
    """Noisy sums per equal-width bin.

    Attributes:
        sums: Of 1, p and y, shape (B, 3).
        noise_std: Standard deviation of each sum's noise.
    """

    sums: Floats
    noise_std: float


def bounded_shares(shares: Floats, bound: float) -> Floats:
    """Return units' shares, each finite and no longer than the bound (to 1e-12 of it).

        v_i <- 0 if an entry of v_i is NaN or infinite, else v_i min(1, R / |v_i|)

    A share depends on its own unit alone. No square is taken of a value before it is scaled, so
    none overflows.

    Args:
        shares: v_i, one row per unit, shape (U, K).
        bound: R, within SMALLEST_BOUND and LARGEST_BOUND.

    Returns:
        The bounded shares, shape (U, K).

    Raises:
        ValueError: If the bound is outside its limits.
    """
    if not SMALLEST_BOUND <= bound <= LARGEST_BOUND:
        raise ValueError(
            f"the bound of a unit's share is {bound}: "
            f"it must lie between {SMALLEST_BOUND:g} and {LARGEST_BOUND:g}"
        )
    return in_fixed_pieces(partial(_bounded, bound=bound), np.asarray(shares, np.float64))


def bounded_sum(
    shares: Floats,
    bound: float,
    *,
    cells: npt.NDArray[np.int64] | None = None,
    cell_count: int = 0,
) -> BoundedSum:
    """Add units' shares up: every sum that gets noise is made here.

    Shares are bounded, then put on a grid of 2^-30 times a power of two near the bound, towards
    zero. Sums of up to 2^22 shares are then exact in float64, so a unit moves them by its own
    shares and by no rounding.

    Args:
        shares: One row per share, shape (N, K); NaN or infinite ones count as zero.
        bound: Largest L2 norm of a share, above 0.
        cells: Which row of the table each share is added to, shape (N,); None for a sum of shape
            (K,).
        cell_count: Number of rows of the table.

    Returns:
        The sum, shape (K,) or (cell_count, K), and its sensitivity.

    Raises:
        ValueError: If the bound is outside its limits.
    """
    bounded = bounded_shares(shares, bound)
    _, exponent = math.frexp(bound)
    step = math.ldexp(1.0, exponent - 1 - GRID_BITS)
    rounded = np.trunc(bounded / step) * step
    sensitivity = bound * (1 + NORM_ROUNDING)
    if cells is None:
        return BoundedSum(rounded.sum(axis=0), sensitivity)
    table = np.zeros((cell_count, rounded.shape[1]))
    np.add.at(table, cells, rounded)
    return BoundedSum(table, sensitivity)


def noised(
    exact: BoundedSum, noise_multiplier: float, generator: np.random.Generator
) -> NoisedTable:
    """Add Gaussian noise to a sum.

    Its cost is one event of this noise multiplier at sampling rate 1.

    Args:
        exact: What `bounded_sum` made.
        noise_multiplier: Standard deviation of the noise over the sensitivity, 0 or more.
        generator: For privacy seeded with at least 128 bits from the operating system.

    Returns:
        The noisy sums and the standard deviation of their noise.

    Raises:
        ValueError: If the standard deviation is not a finite number of 0 or more.
    """
    noise_std = noise_multiplier * exact.sensitivity
    if not 0 <= noise_std < math.inf:
        raise ValueError(
            f"noise_multiplier is {noise_multiplier}: its noise must be finite, and 0 or more"
        )
    noise = noise_std * generator.standard_normal(exact.sums.shape)
    return NoisedTable(exact.sums + noise, noise_std)


def record_counts(
    confidence: Floats, outcome: npt.NDArray, bins: int, max_records_per_unit: int = 1
) -> BoundedSum:
    """Count records in equal-width bins of a probability: sums of 1, p and y per bin.

    A record adds (1, p, y), each at most 1, to one bin, and all three where it is right with
    certainty; a unit of up to m records moves the table by at most m sqrt(3). Bins are those of the
    statistics that leave exactly.

    Args:
        confidence: p, shape (N,); a record whose p is not a number counts nowhere, one beyond [0,
            1] at its end.
        outcome: y, whether the class of that probability is right, shape (N,).
        bins: B, a divisor of FINE_BINS.
        max_records_per_unit: m, a cap that the caller has enforced.

    Returns:
        The table, shape (B, 3).

    Raises:
        ValueError: If max_records_per_unit is below 1.
    """
    clipped = np.clip(confidence, 0.0, 1.0)
    cells = bin_index(np.nan_to_num(clipped), FINE_BINS) // (FINE_BINS // bins)
    shares = np.column_stack([np.ones_like(clipped), on_grid(clipped), outcome])
    exact = bounded_sum(shares, sensitivity(), cells=cells, cell_count=bins)
    return BoundedSum(exact.sums, sensitivity(max_records_per_unit))


def top_label_counts(
    probabilities: Floats, labels: npt.NDArray[np.int64], bins: int, max_records_per_unit: int = 1
) -> BoundedSum:
    """Count records by their largest class probability and whether that class is right.

    Bins and sums are those of `record_counts`.

    Args:
        probabilities: Shape (N, C).
        labels: Shape (N,), 0 to C - 1.
        bins: B, a divisor of FINE_BINS.
        max_records_per_unit: A cap that the caller has enforced.

    Returns:
        The table, shape (B, 3).

    Raises:
        ValueError: If max_records_per_unit is below 1.
    """
    right = probabilities.argmax(axis=1) == labels
    return record_counts(
        confidence=probabilities.max(axis=1),
        outcome=right,
        bins=bins,
        max_records_per_unit=max_records_per_unit,
    )


def noised_table(
    exact: BoundedSum, noise_multiplier: float, generator: np.random.Generator
) -> NoisedTable:
    """Release a table of test records as `noised`, never without noise.

    Args:
        exact: What was counted.
        noise_multiplier: As for `noised`, above 0.
        generator: As for `noised`.

    Returns:
        The noisy table and the standard deviation of its noise.

    Raises:
        ValueError: If noise_multiplier is not a positive number.
    """
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier is {noise_multiplier}: it must be a positive number")
    return noised(exact=exact, noise_multiplier=noise_multiplier, generator=generator)


def _bounded(shares: Floats, bound: float) -> Floats:
    """Bound the shares of one piece of rows."""
    largest = np.abs(shares).max(axis=1, initial=0.0, keepdims=True)
    finite = np.isfinite(largest)
    scale = np.where(finite & (largest > 0), largest, 1.0)
    # Entries within [-1, 1], of which one is 1 or all are 0.
    directions = np.where(finite, shares, 0.0) / scale
    lengths = np.maximum(np.sqrt(np.square(directions).sum(axis=1, keepdims=True)), 1.0)
    longest = bound / lengths
    within = finite & (scale <= longest * (1 + NORM_ROUNDING))
    return np.where(within, shares, directions * np.minimum(scale, longest))
