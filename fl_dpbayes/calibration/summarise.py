"""One row of results from merged statistics: scores, errors, intervals, and what calibration would look like."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fl_dpbayes.calibration import errors, scores
from fl_dpbayes.calibration.bins import REPORT_BINS, coarsen
from fl_dpbayes.calibration.calibration_line import calibration_intercept, calibration_slope
from fl_dpbayes.calibration.intervals import (
    Interval,
    ece_if_calibrated,
    wilson_interval,
)
from fl_dpbayes.calibration.loss_intervals import brier_interval, nll_interval
from fl_dpbayes.calibration.net_benefit import decision_curve
from fl_dpbayes.calibration.risk_coverage import COVERAGES, Ranked, accuracy_at_coverage, aurc, aurc_excess
from fl_dpbayes.calibration.rms_interval import rms_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.true_error import true_ece, true_rms


@dataclass(frozen=True)
class CalibrationSummary:
    """Calibration and scores of one predictor on one set of records; undefined values are None.

    Attributes:
        n: records (rounded where they were counted with noise).
        accuracy: share of right top labels.
        nll: mean -log p_label, nats.
        nll_clipped: records whose p_label was below the floor.
        brier: multiclass Brier score in [0, 2].
        brier_terms: its five terms over 15 bins: reliability - resolution + uncertainty + within_variance -
            within_covariance.
        ece: top-label error in 15 equal-width bins.
        ece_10: the same in 10 bins.
        ece_20: the same in 20 bins.
        ece_equal_mass: the same in 15 ranges of about equally many records.
        ece_binary: error of p(y = 1) against y in 15 equal-width bins; two classes only.
        ece_if_calibrated: mean ECE of a calibrated model with the same confidences at this n.
        ece_if_calibrated_high: 95 % quantile of the same.
        rms_debiased: debiased root-mean-square error of the top label in 15 equal-width bins.
        ece_true: what `ece` would be without chance in the labels, where their law is known (made-up records).
        rms_true: what `rms_debiased` estimates, where known.
        mce: largest gap over those bins.
        ace: adaptive (equal-mass, class-wise) error.
        sce: static (equal-width, class-wise) error.
        auroc: area under the ROC curve, one against the rest.
        auroc_bounds: what it can be at least and at most, whatever the order within cells; no interval.
        aurc: area under the risk-coverage curve, mean form.
        aurc_excess: the same less that of a perfect ranking.
        aurc_bounds: as `auroc_bounds`.
        accuracy_at_coverage: accuracy on the most confident records, by the share of records kept ("0.8").
        accuracy_at_coverage_bounds: as `auroc_bounds`, by share.
        calibration_intercept: calibration in the large, 0 if calibrated; two classes only.
        calibration_slope: 1 if calibrated; two classes only.
        net_benefit: decision curve {threshold, model, interval, all, none} at steps of .05; two classes only.
        epistemic: mean mutual information of label and parameters, nats.
        aleatoric: mean expected entropy, nats.
        intervals: 95 % intervals of the metrics that have one that covers; `nll` has none where one more wrong answer
            could change too much (`nll_interval`).
    """

    n: int
    accuracy: float | None = None
    nll: float | None = None
    nll_clipped: int | None = None
    brier: float | None = None
    brier_terms: dict[str, float] | None = None
    ece: float | None = None
    ece_10: float | None = None
    ece_20: float | None = None
    ece_equal_mass: float | None = None
    ece_binary: float | None = None
    ece_if_calibrated: float | None = None
    ece_if_calibrated_high: float | None = None
    rms_debiased: float | None = None
    ece_true: float | None = None
    rms_true: float | None = None
    mce: float | None = None
    ace: float | None = None
    sce: float | None = None
    auroc: float | None = None
    auroc_bounds: list[float] | None = None
    aurc: float | None = None
    aurc_excess: float | None = None
    aurc_bounds: list[float] | None = None
    accuracy_at_coverage: dict[str, float] | None = None
    accuracy_at_coverage_bounds: dict[str, list[float]] | None = None
    calibration_intercept: float | None = None
    calibration_slope: float | None = None
    net_benefit: list[dict[str, Any]] | None = None
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
    terms, risk, excess = scores.decompose_brier(statistics), aurc(statistics), aurc_excess(statistics)
    kept = {str(share): accuracy_at_coverage(statistics, share) for share in COVERAGES}
    intercept, slope = calibration_intercept(statistics), calibration_slope(statistics)
    intervals = {
        "accuracy": wilson_interval(statistics.correct, count),
        "nll": nll_interval(statistics),
        "brier": brier_interval(statistics),
        "rms_debiased": rms_interval(coarsen(statistics.top_label, REPORT_BINS)),
        "calibration_intercept": intercept and intercept.interval,
        "calibration_slope": slope and slope.interval,
    }
    return CalibrationSummary(
        n=int(count),
        accuracy=scores.accuracy(statistics),
        nll=scores.nll(statistics),
        nll_clipped=int(statistics.nll_clipped),
        brier=scores.brier(statistics),
        brier_terms=asdict(terms) if terms else None,
        ece=errors.ece(statistics),
        ece_10=errors.ece(statistics, 10),
        ece_20=errors.ece(statistics, 20),
        ece_equal_mass=errors.ece_equal_mass(statistics),
        ece_binary=errors.ece_binary(statistics),
        ece_if_calibrated=reference.mean if reference else None,
        ece_if_calibrated_high=reference.high if reference else None,
        rms_debiased=errors.rms_debiased(statistics),
        ece_true=true_ece(statistics),
        rms_true=true_rms(statistics),
        mce=errors.mce(statistics),
        ace=errors.ace(statistics),
        sce=errors.sce(statistics),
        auroc=area.value if area else None,
        auroc_bounds=_bounds(area),
        aurc=risk.value if risk else None,
        aurc_excess=excess.value if excess else None,
        aurc_bounds=_bounds(risk),
        accuracy_at_coverage={share: ranked.value for share, ranked in kept.items() if ranked},
        accuracy_at_coverage_bounds={share: bounds for share, ranked in kept.items() if (bounds := _bounds(ranked))},
        calibration_intercept=intercept.value if intercept else None,
        calibration_slope=slope.value if slope else None,
        net_benefit=_curve_rows(statistics),
        epistemic=statistics.epistemic / count,
        aleatoric=statistics.aleatoric / count,
        intervals={metric: ends for metric, ends in intervals.items() if ends is not None},
    )


def _bounds(ranked: scores.Auroc | Ranked | None) -> list[float] | None:
    return [ranked.low, ranked.high] if ranked else None


def _curve_rows(statistics: CalibrationStatistics) -> list[dict[str, Any]] | None:
    curve = decision_curve(statistics)
    return [{**point._asdict(), "interval": list(point.interval)} for point in curve] if curve else None
