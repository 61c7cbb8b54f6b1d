"""The one table of test records that leaves with noise: counts by bin of p and outcome, coded.

A record adds a public vector of length 1 that its bin and outcome name. Vectors of near bins are
alike, so noise of one size on their sum hides a record as well as on plain counts, and sums over
many bins (all that measures are made of) carry a fraction of it (docs/metrics.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from scipy.special import expit, logit

from fl_dpbayes.calibration.bins import (
    COUNT,
    FINE_BINS,
    OUTCOME,
    Floats,
    bin_index,
    coarsen,
)
from fl_dpbayes.calibration.release import (
    GRID_BITS,
    BoundedSum,
    NoisedTable,
    bounded_sum,
    noised_table,
)
from fl_dpbayes.calibration.statistics import CalibrationStatistics

# Inner edges in 1/960, up to one half; the others mirror them. About .4 apart in log odds, and with
# the thresholds at which net benefit is told among them.
_LOWER_EDGES = (1, 2, 4, 6, 10, 16, 24, 34, 48, 68, 96, 144, 192, 240, 288, 384, FINE_BINS // 2)
INNER_EDGES = np.array(
    [*_LOWER_EDGES, *(FINE_BINS - edge for edge in reversed(_LOWER_EDGES[:-1]))], np.int64
)
COUNT_BINS = len(INNER_EDGES) + 1
OUTCOMES = 2
# What share of a record's vector near bins have in common, and over how many bins it fades by e.
# Of the values tried at n = 100 to 1,000 these gave the least noise on all measures together.
ALIKE = 0.7
REACH = 10.0


def _middle_probabilities() -> Floats:
    """Return the probability in the middle of each bin by log odds, of the last ones by half."""
    edges = INNER_EDGES / FINE_BINS
    ends = np.concatenate([[edges[0] / 4], edges, [1 - edges[0] / 4]])
    log_odds = logit(ends)
    return np.asarray(expit((log_odds[1:] + log_odds[:-1]) / 2))


def _code() -> Floats:
    """Return the vectors of the bins as columns, none longer than 1.

    The Cholesky factor of the vectors' inner products. Its entries are multiples of 2^-30, cut
    towards 0, so that sums of up to 2^22 of them are exact.
    """
    bins = np.arange(COUNT_BINS)
    alike = ALIKE * np.exp(-np.abs(bins[:, None] - bins) / REACH)
    products = alike + (1 - ALIKE) * np.eye(COUNT_BINS)
    factor = np.linalg.cholesky(products).T
    cut = np.trunc(factor * 2.0**GRID_BITS) / 2.0**GRID_BITS
    return np.asarray(cut, np.float64)


MIDDLES = _middle_probabilities()
CODE = _code()
DECODE = np.linalg.inv(CODE)
# Covariance of one outcome's decoded counts where each released sum has noise of variance 1.
UNIT_COVARIANCE = DECODE @ DECODE.T


def largest_sensitivity(max_records_per_unit: int = 1, tables: int = 1) -> float:
    """Return the L2 sensitivity of coded counts to one privacy unit, m sqrt(t).

    Args:
        max_records_per_unit: m, a cap that the caller enforces.
        tables: t, in how many of the tables that leave together a record may be counted.

    Returns:
        The sensitivity.

    Raises:
        ValueError: If m or t is below 1.
    """
    if max_records_per_unit < 1 or tables < 1:
        raise ValueError(
            f"max_records_per_unit is {max_records_per_unit} and tables {tables}: "
            "both must be 1 or more"
        )
    return max_records_per_unit * math.sqrt(tables)


def count_bin(probability: Floats) -> npt.NDArray[np.int64]:
    """Place probabilities in the bins of the table; what is no number goes into the first."""
    fine = bin_index(np.nan_to_num(np.clip(probability, 0.0, 1.0)), FINE_BINS)
    return np.searchsorted(INNER_EDGES, fine, side="right")


def coded_counts(probabilities: Floats, labels: npt.NDArray[np.int64]) -> BoundedSum:
    """Count records by bin and outcome, and add up their vectors.

    Of two classes p is the risk of the second one, and the outcome whether it is the label; of more
    p is the largest probability, and the outcome whether its class is the label.

    Args:
        probabilities: Shape (N, C).
        labels: Shape (N,), 0 to C - 1.

    Returns:
        Sums of shape (COUNT_BINS, 2); one record moves them by their sensitivity at most, 1.
    """
    if probabilities.shape[1] == OUTCOMES:
        probability = probabilities[:, 1]
        outcome = labels == 1
    else:
        probability = probabilities.max(axis=1)
        outcome = probabilities.argmax(axis=1) == labels
    shares = np.column_stack([~outcome, outcome]).astype(np.float64)
    counted = bounded_sum(shares, 1.0, cells=count_bin(probability), cell_count=COUNT_BINS)
    return BoundedSum(sums=CODE @ counted.sums, sensitivity=counted.sensitivity)


def release_counts(
    tables: Sequence[BoundedSum],
    max_records_per_unit: int,
    noise_multiplier: float,
    generator: np.random.Generator,
    tables_of_a_record: int,
) -> list[NoisedTable]:
    """Release the tables of one predictor as one vector, never without noise.

    Its cost is one event of this noise multiplier at sampling rate 1, whatever the number of
    tables.

    Args:
        tables: What `coded_counts` made.
        max_records_per_unit: m, a cap that the caller has enforced.
        noise_multiplier: Standard deviation of the noise over the sensitivity of the vector, above
            0.
        generator: For privacy seeded with at least 128 bits from the operating system.
        tables_of_a_record: t, in how many of the tables one record is counted at most.

    Returns:
        The tables with noise, all of one standard deviation.

    Raises:
        ValueError: If noise_multiplier is not a positive number, or m or t is below 1.
    """
    factor = largest_sensitivity(max_records_per_unit, tables_of_a_record)
    return [
        noised_table(
            BoundedSum(table.sums, table.sensitivity * factor), noise_multiplier, generator
        )
        for table in tables
    ]


@dataclass(frozen=True, eq=False)
class NoisedCounts:
    """Coded counts of a site's test records, or of several sites', with noise.

    Attributes:
        sums: Shape (COUNT_BINS, 2).
        noise_std: Standard deviation of each sum's noise; 0 where the counts are exact.
        classes: C of the task.
    """

    sums: Floats
    noise_std: float
    classes: int

    @cached_property
    def counts(self) -> Floats:
        """Unbiased counts by bin and outcome, shape (COUNT_BINS, 2), some of them negative."""
        return np.asarray(DECODE @ self.sums)

    @cached_property
    def possible(self) -> Floats:
        """The counts of 0 or more to which the sums are nearest, shape (COUNT_BINS, 2)."""
        return np.column_stack([nnls(CODE, column)[0] for column in self.sums.T])

    @property
    def covariance(self) -> Floats:
        """Covariance of the noise on one outcome's counts, shape (COUNT_BINS, COUNT_BINS)."""
        return self.noise_std**2 * UNIT_COVARIANCE

    @property
    def records(self) -> float:
        """The estimated number of records."""
        return float(self.counts.sum())

    @property
    def records_noise_std(self) -> float:
        """Standard deviation of the noise on `records`."""
        return self.noise_std * math.sqrt(OUTCOMES * UNIT_COVARIANCE.sum())

    def plus(self, other: "NoisedCounts") -> "NoisedCounts":
        """Add the counts of other records; independent noises add in variance."""
        return NoisedCounts(
            sums=self.sums + other.sums,
            noise_std=math.hypot(self.noise_std, other.noise_std),
            classes=self.classes,
        )


def without_noise(statistics: CalibrationStatistics) -> NoisedCounts:
    """Reduce exact sums to coded counts of noise 0, so that both kinds of sites can be pooled."""
    table = statistics.top_label if statistics.risk is None else statistics.risk
    fine = coarsen(table, FINE_BINS)[:, [COUNT, OUTCOME]]
    binned = np.add.reduceat(fine, np.concatenate([[0], INNER_EDGES]))
    counts = np.column_stack([binned[:, 0] - binned[:, 1], binned[:, 1]])
    return NoisedCounts(sums=CODE @ counts, noise_std=0.0, classes=statistics.classes)
