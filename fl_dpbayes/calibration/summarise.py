"""One row of results from merged statistics, exact or noised.

It holds metrics, intervals, and what a calibrated model would show.
"""

import math
from typing import Any

import numpy as np

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT
from fl_dpbayes.calibration.curves import Ends, NetBenefitRecord
from fl_dpbayes.calibration.intervals import (
    LEVEL,
    Measured,
    draw_calibrated,
    ece_if_calibrated,
)
from fl_dpbayes.calibration.metrics import two_classes
from fl_dpbayes.calibration.metrics.errors import mean_absolute_gap
from fl_dpbayes.calibration.noised_counts import OUTCOMES, NoisedCounts
from fl_dpbayes.calibration.noised_measures import (
    TWO_CLASS_MEASURES,
    accuracy,
    decision_curve,
    joined_bins,
)
from fl_dpbayes.calibration.records import METRICS, CalibrationValues, Metric
from fl_dpbayes.calibration.rms_interval import debiased_mean_square_gap, rms_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.sums import Sums

# One true positive in ten patients more or less.
WIDEST_NET_BENEFIT = 0.2


def summarise(sums: Sums, generator: np.random.Generator) -> CalibrationValues:
    """Summarise exact sums of a site, or of several merged.

    Args:
        sums: Of any outcome; the metrics of others stay undefined.
        generator: Source of the draws behind `ece_if_calibrated`.

    Returns:
        All values; without records n = 0, and all else is None.
    """
    if sums.count == 0:
        return CalibrationValues(n=0)
    values: dict[str, Any] = {}
    intervals: dict[str, Ends] = {}
    for key, metric in METRICS.items():
        measured = metric.measure(sums)
        if measured is None:
            continue
        values[key] = measured.value
        if measured.bounds is not None:
            values[f"{key}_bounds"] = measured.bounds
        if measured.interval is not None:
            intervals[key] = measured.interval
    if isinstance(sums, CalibrationStatistics):
        reference = ece_if_calibrated(sums, generator)
        values["nll_clipped"] = int(sums.nll_clipped)
        values["ece_if_calibrated"] = reference.mean
        values["ece_if_calibrated_high"] = reference.high
        values["net_benefit"] = two_classes.decision_curve(sums)
    return CalibrationValues(n=int(sums.count), intervals=intervals, **values)


def says_nothing(metric: Metric, ends: Ends) -> bool:
    """Say whether an interval is too wide, or has no end, so that a value would mislead.

    The one rule behind "cannot tell": the interval is as wide as the metric's `widest`.

    Args:
        metric: The metric.
        ends: Its interval; None where it has no end.
    """
    if ends is None or ends[0] is None or ends[1] is None:
        return True
    return ends[1] - ends[0] >= metric.widest


def summarise_noised(table: NoisedCounts, generator: np.random.Generator) -> CalibrationValues:
    """Summarise the noised counts of a site, or of several merged.

    `ece` is the raw top-label error over bins that were joined until they stand clear of the noise,
    release noise included; so is `ece_if_calibrated`, with which it is to be compared. All else is
    freed of the noise, and has an interval that holds it. A metric that this cannot tell has no
    value. Other metrics do not follow from what was sent.

    Args:
        table: The counts.
        generator: Source of the draws behind `ece_if_calibrated`.

    Returns:
        The values.
    """
    measured = {"accuracy": accuracy(table), "rms_debiased": noised_rms(table)}
    curve = None
    if table.classes == OUTCOMES:
        measured |= {name: measure(table) for name, measure in TWO_CLASS_MEASURES.items()}
        curve = _told_curve(table)
    values: dict[str, Any] = {}
    intervals: dict[str, Ends] = {}
    cannot_tell = []
    for key, of_metric in measured.items():
        ends = None if of_metric is None else of_metric.interval
        if ends is not None:
            intervals[key] = ends
        if of_metric is None or says_nothing(METRICS[key], ends):
            cannot_tell.append(key)
        else:
            values[key] = of_metric.value
    # It has no interval of its own, and says the same.
    if "rms_debiased" in cannot_tell:
        cannot_tell.append("ece")
    else:
        values |= _noised_ece(table, generator)
    return CalibrationValues(
        n=max(0, round(table.records)),
        net_benefit=curve,
        intervals=intervals,
        cannot_tell=tuple(cannot_tell),
        **values,
    )


def noised_rms(table: NoisedCounts) -> Measured | None:
    """Return the debiased root-mean-square error of the top label, the variance of noise taken out.

    None where the noise hides the records.
    """
    joined = joined_bins(table)
    if len(joined.sums) == 0:
        return None
    mean_square_gap = float(debiased_mean_square_gap(joined.sums, joined.noise_std))
    return Measured(
        math.sqrt(min(1.0, max(0.0, mean_square_gap))),
        rms_interval(joined.sums, joined.noise_std),
    )


def _told_curve(table: NoisedCounts) -> tuple[NetBenefitRecord, ...] | None:
    """Return the decision curve, without the points whose interval says nothing."""
    points = [
        point
        for point in decision_curve(table) or ()
        if point.interval is not None
        and point.interval[0] is not None
        and point.interval[1] is not None
        and point.interval[1] - point.interval[0] < WIDEST_NET_BENEFIT
    ]
    return tuple(points) or None


def _noised_ece(table: NoisedCounts, generator: np.random.Generator) -> dict[str, Any]:
    joined = joined_bins(table)
    sums = joined.sums
    if len(sums) == 0:
        return {}
    # Outcomes can be drawn for whole records only, of the same mean confidences.
    whole_counts = np.maximum(np.round(sums[:, COUNT]), 1)
    rounded = np.column_stack([whole_counts, sums[:, CONFIDENCE] * whole_counts / sums[:, COUNT]])
    gaps = sums[:, CONFIDENCE] - draw_calibrated(rounded, generator)
    gaps += math.sqrt(2) * joined.noise_std * generator.standard_normal(gaps.shape)
    reference = np.abs(gaps).sum(axis=1) / sums[:, COUNT].sum()
    return {
        "ece": mean_absolute_gap(sums),
        "ece_if_calibrated": float(reference.mean()),
        "ece_if_calibrated_high": float(np.quantile(reference, LEVEL)),
    }
