"""A private release of calibration sums: one coarse table under the Gaussian mechanism."""

import math
from typing import NamedTuple

import numpy as np

from fl_dpbayes.calibration.bins import OUTCOME, Floats, coarsen
from fl_dpbayes.calibration.statistics import CalibrationStatistics

SENT_COLUMNS = OUTCOME + 1


def sensitivity(max_records_per_unit: int = 1) -> float:
    """Return m sqrt(3), the L2 sensitivity of a released table to adding or removing one privacy unit.

    A record adds (1, p, y), each at most 1, to one cell, and all three where it is right with certainty; a unit of up
    to m records, a cap that the caller enforces, moves them by at most m times as much. ValueError if m is below 1.
    """
    if max_records_per_unit < 1:
        raise ValueError(f"max_records_per_unit is {max_records_per_unit}: it must be 1 or more")
    return max_records_per_unit * math.sqrt(SENT_COLUMNS)


class NoisedTable(NamedTuple):
    """Noisy sums of 1, p and y per equal-width bin, shape (B, 3), and the standard deviation of each sum's noise."""

    sums: Floats
    noise_std: float


def noised_table(
    statistics: CalibrationStatistics, bins: int, noise_multiplier: float, generator: np.random.Generator,
    max_records_per_unit: int = 1,
) -> NoisedTable:  # fmt: skip
    """Release the coarse top-label table; its cost is one Gaussian event of this noise multiplier at sampling rate 1.

    `statistics`: of the site's test records. `noise_multiplier`: standard deviation of the noise over the sensitivity,
    > 0. `generator`: for privacy seeded with at least 128 bits from the operating system. `max_records_per_unit`: a cap
    that the caller has enforced. Raises ValueError if noise_multiplier is not a positive number.
    """
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier is {noise_multiplier}: it must be a positive number")
    exact = coarsen(statistics.top_label, bins)[:, :SENT_COLUMNS]
    noise_std = noise_multiplier * sensitivity(max_records_per_unit)
    return NoisedTable(exact + noise_std * generator.standard_normal(exact.shape), noise_std)


def merge_noised(first: NoisedTable, second: NoisedTable) -> NoisedTable:
    """Add the tables of two sites, whose independent noises add in variance."""
    return NoisedTable(first.sums + second.sums, math.hypot(first.noise_std, second.noise_std))
