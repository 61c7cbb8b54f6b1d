"""The rows of a reliability diagram: confidence and accuracy per bin, with the band of a calibrated model."""

from dataclasses import asdict, dataclass

from scipy.stats import binom

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, REPORT_BINS, coarsen
from fl_dpbayes.calibration.intervals import TAILS
from fl_dpbayes.calibration.statistics import CalibrationStatistics


@dataclass(frozen=True)
class ReliabilityBin:
    """One bar of the diagram; `n` over all bins is the histogram of confidence.

    Attributes:
        low: lower edge of the bin.
        high: upper edge.
        n: records in it.
        confidence: their mean top-label probability; None without records, as the next three.
        accuracy: share whose top label is right.
        band_low: 2.5 % quantile of the accuracy of n records if `confidence` were the truth.
        band_high: 97.5 % quantile.
    """

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None
    band_low: float | None
    band_high: float | None

    def as_row(self) -> dict[str, float | int | None]:
        """Return the bin as a dictionary of plain numbers."""
        return asdict(self)


def reliability_bins(statistics: CalibrationStatistics, bins: int = REPORT_BINS) -> tuple[ReliabilityBin, ...]:
    """Return the bins of a top-label reliability diagram with a pointwise 95 % consistency band.

    The band holds the quantiles of Binomial(n_b, conf_b) / n_b (Bröcker and Smith 2007), which is not narrower than
    the law of the sum of outcomes with unequal confidences.

    Args:
        statistics: merged statistics.
        bins: number of equal-width bins, a divisor of FINE_BINS.

    Returns:
        One row per bin, empty ones included, in order of confidence.
    """
    rows = []
    for position, sums in enumerate(coarsen(statistics.top_label, bins)):
        n, edges = int(sums[COUNT]), (position / bins, (position + 1) / bins)
        if n == 0:
            rows.append(ReliabilityBin(*edges, 0, None, None, None, None))
            continue
        confidence = min(1.0, float(sums[CONFIDENCE] / n))
        band = (float(binom.ppf(tail, n, confidence)) / n for tail in TAILS)
        rows.append(ReliabilityBin(*edges, n, confidence, float(sums[OUTCOME] / n), *band))
    return tuple(rows)
