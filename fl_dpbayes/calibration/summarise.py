"""One row of results from merged statistics: scores, errors, intervals, and what calibration would look like."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fl_dpbayes.calibration import errors, scores
from fl_dpbayes.calibration.bins import REPORT_BINS, coarsen
from fl_dpbayes.calibration.intervals import (
    Interval,
    ece_if_calibrated,
    mean_interval,
    wilson_interval,
)
from fl_dpbayes.calibration.rms_interval import rms_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics


@dataclass(frozen=True)
class CalibrationSummary:
    """Calibration and scores of one predictor on one set of records; undefined values are None.

    Attributes:
        n: records (rounded where they were counted with noise).
        accuracy: share of right top labels.
        nll: mean -log p_label, nats.
        nll_clipped: records whose p_label was below the floor.
        brier: multiclass Brier score in [0, 2].
        ece: top-label error in 15 equal-width bins.
        ece_if_calibrated: mean ECE of a calibrated model with the same confidences at this n.
        ece_if_calibrated_high: 95 % quantile of the same.
        rms_debiased: debiased root-mean-square error of the top label in 15 equal-width bins.
        mce: largest gap over those bins.
        ace: adaptive (equal-mass, class-wise) error.
        sce: static (equal-width, class-wise) error.
        auroc: area under the ROC curve, one against the rest.
        epistemic: mean mutual information of label and parameters, nats.
        aleatoric: mean expected entropy, nats.
        intervals: 95 % intervals of the metrics that have one that covers.
    """

    n: int
    accuracy: float | None = None
    nll: float | None = None
    nll_clipped: int | None = None
    brier: float | None = None
    ece: float | None = None
    ece_if_calibrated: float | None = None
    ece_if_calibrated_high: float | None = None
    rms_debiased: float | None = None
    mce: float | None = None
    ace: float | None = None
    sce: float | None = None
    auroc: float | None = None
    epistemic: float | None = None
    aleatoric: float | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        """Return the summary as a dictionary of plain numbers, intervals as lists [low, high]."""
        return {**asdict(self), "intervals": {metric: list(ends) for metric, ends in self.intervals.items()}}


def summarise(statistics: CalibrationStatistics, generator: np.random.Generator) -> CalibrationSummary:
    """Summarise exact statistics of a site, or of several merged.

    Args:
        statistics: merged statistics.
        generator: source of the draws behind `ece_if_calibrated`.

    Returns:
        Every metric; without records n = 0 and all others None.
    """
    count = statistics.count
    if count == 0:
        return CalibrationSummary(n=0)
    area, reference = scores.auroc(statistics), ece_if_calibrated(statistics, generator)
    intervals = {
        "accuracy": wilson_interval(statistics.correct, count),
        "nll": mean_interval(statistics.nll, statistics.nll_squared, count),
        "brier": mean_interval(statistics.brier, statistics.brier_squared, count),
        "rms_debiased": rms_interval(coarsen(statistics.top_label, REPORT_BINS)),
    }
    return CalibrationSummary(
        n=int(count),
        accuracy=scores.accuracy(statistics),
        nll=scores.nll(statistics),
        nll_clipped=int(statistics.nll_clipped),
        brier=scores.brier(statistics),
        ece=errors.ece(statistics),
        ece_if_calibrated=reference.mean if reference else None,
        ece_if_calibrated_high=reference.high if reference else None,
        rms_debiased=errors.rms_debiased(statistics),
        mce=errors.mce(statistics),
        ace=errors.ace(statistics),
        sce=errors.sce(statistics),
        auroc=area.value if area else None,
        epistemic=statistics.epistemic / count,
        aleatoric=statistics.aleatoric / count,
        intervals={metric: ends for metric, ends in intervals.items() if ends is not None},
    )
