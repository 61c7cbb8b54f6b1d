"""One row of results from merged statistics, exact or noised: metrics, intervals, what calibration would look like."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.intervals import (
    LEVEL,
    Interval,
    Measured,
    draw_calibrated,
    ece_if_calibrated,
    wilson_interval,
)
from fl_dpbayes.calibration.metrics.errors import mean_absolute_gap
from fl_dpbayes.calibration.metrics.ranking import COVERAGES, accuracy_at_coverage
from fl_dpbayes.calibration.metrics.scores import decompose_brier
from fl_dpbayes.calibration.metrics.two_classes import decision_curve
from fl_dpbayes.calibration.release import NoisedTable
from fl_dpbayes.calibration.rms_interval import debiased_mean_square_gap, rms_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.config.kinds import implementation
from fl_dpbayes.config.metrics import METRICS, Metric

CLEAR = 5.0  # standard deviations of noise that a count must exceed before a ratio over it means anything


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


def measure(metric: Metric, statistics: CalibrationStatistics) -> Measured | None:
    """Compute a metric from merged statistics, None where it is undefined."""
    code = implementation("fl_dpbayes.calibration.metrics", metric.file)
    found = getattr(code, metric.key)(statistics)
    return found if found is None or isinstance(found, Measured) else Measured(found)


def summarise(statistics: CalibrationStatistics, generator: np.random.Generator) -> CalibrationSummary:
    """Summarise exact statistics of a site, or of several merged.

    Args:
        statistics: merged statistics.
        generator: source of the draws behind `ece_if_calibrated`.

    Returns:
        Every metric; without records n = 0 and all others None.
    """
    if statistics.count == 0:
        return CalibrationSummary(n=0)
    measured = {key: found for key, metric in METRICS.items() if (found := measure(metric, statistics))}
    values: dict[str, Any] = {key: found.value for key, found in measured.items()}
    values |= {f"{key}_bounds": list(found.bounds) for key, found in measured.items() if found.bounds}
    reference, terms = ece_if_calibrated(statistics, generator), decompose_brier(statistics)
    curve = decision_curve(statistics)
    kept = {str(share): ranked for share in COVERAGES if (ranked := accuracy_at_coverage(statistics, share))}
    return CalibrationSummary(
        n=int(statistics.count),
        nll_clipped=int(statistics.nll_clipped),
        brier_terms=asdict(terms) if terms else None,
        ece_if_calibrated=reference.mean if reference else None,
        ece_if_calibrated_high=reference.high if reference else None,
        accuracy_at_coverage={share: ranked.value for share, ranked in kept.items()},
        accuracy_at_coverage_bounds={share: list(ranked.bounds or ()) for share, ranked in kept.items()},
        net_benefit=[{**point._asdict(), "interval": list(point.interval)} for point in curve] if curve else None,
        intervals={key: found.interval for key, found in measured.items() if found.interval},
        **values,
    )


def summarise_noised(table: NoisedTable, generator: np.random.Generator) -> CalibrationSummary:
    """Summarise a noised table of a site, or of several merged.

    `ece` is the raw top-label error over `join_small_bins`, release noise included; so is `ece_if_calibrated`, with
    which it is to be compared. `rms_debiased` has the variance of the noise taken out.

    Args:
        table: noisy table.
        generator: source of the draws behind `ece_if_calibrated`.

    Returns:
        n, accuracy, ece with its reference, rms_debiased, and intervals of accuracy and rms_debiased; all but n are
        None where the noise hides the records. Other metrics do not follow from what was sent: None.
    """
    count, _, correct = map(float, table.sums.sum(axis=0))
    n = max(0, round(count))
    joined, noise = join_small_bins(table)
    if len(joined) == 0:
        return CalibrationSummary(n=n)
    drawn = joined[:, CONFIDENCE] - draw_calibrated(_whole(joined), generator)
    drawn += math.sqrt(2) * noise * generator.standard_normal(drawn.shape)
    reference = np.abs(drawn).sum(axis=1) / joined[:, COUNT].sum()
    intervals = {
        "accuracy": wilson_interval(correct, count, len(table.sums) * table.noise_std**2),
        "rms_debiased": rms_interval(joined, noise),
    }
    return CalibrationSummary(
        n=n,
        accuracy=min(1.0, max(0.0, correct / count)),
        ece=mean_absolute_gap(joined),
        ece_if_calibrated=float(reference.mean()),
        ece_if_calibrated_high=float(np.quantile(reference, LEVEL)),
        rms_debiased=math.sqrt(min(1.0, max(0.0, float(debiased_mean_square_gap(joined, noise))))),
        intervals={metric: ends for metric, ends in intervals.items() if ends is not None},
    )


def join_small_bins(table: NoisedTable) -> tuple[Floats, Floats]:
    """Join neighbouring bins until each count is CLEAR of its noise.

    Joining keeps every record, and depends on released numbers only, so it costs no privacy. Returned are the sums per
    joined bin, (J, 3), and the standard deviation of their noise, (J,); J = 0 where even all of it is mostly noise.
    """
    joined: list[tuple[Floats, float]] = []
    for row in table.sums:
        if joined and not _is_clear(*joined[-1]):
            joined[-1] = joined[-1][0] + row, math.hypot(joined[-1][1], table.noise_std)
        else:
            joined.append((row, table.noise_std))
    while len(joined) > 1 and not _is_clear(*joined[-1]):
        (left, left_noise), (right, right_noise) = joined[-2:]
        joined[-2:] = [(left + right, math.hypot(left_noise, right_noise))]
    if not _is_clear(*joined[-1]):
        return np.zeros((0, table.sums.shape[1])), np.zeros(0)
    return np.stack([row for row, _ in joined]), np.array([noise for _, noise in joined])


def _is_clear(row: Floats, noise: float) -> bool:
    return bool(row[COUNT] > max(1.0, CLEAR * noise) and row[CONFIDENCE] > 0)


def _whole(joined: Floats) -> Floats:
    """Round the counts, as outcomes can be drawn for whole records only, and keep the mean confidences."""
    whole = np.maximum(np.round(joined[:, COUNT]), 1)
    return np.column_stack([whole, joined[:, CONFIDENCE] * whole / joined[:, COUNT], joined[:, OUTCOME]])
