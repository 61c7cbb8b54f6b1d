"""One row of results from merged statistics, exact or noised: metrics, intervals, what calibration would look like."""

import math
from typing import Any

import numpy as np

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, Floats
from fl_dpbayes.calibration.intervals import (
    LEVEL,
    Measured,
    draw_calibrated,
    ece_if_calibrated,
    wilson_interval,
)
from fl_dpbayes.calibration.metrics.errors import mean_absolute_gap
from fl_dpbayes.calibration.metrics.two_classes import decision_curve
from fl_dpbayes.calibration.records import METRICS, CalibrationValues, Metric
from fl_dpbayes.calibration.release import NoisedTable
from fl_dpbayes.calibration.rms_interval import debiased_mean_square_gap, rms_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.config import implementation

CLEAR = 5.0  # standard deviations of noise that a count must exceed before a ratio over it means anything


def measure(metric: Metric, statistics: CalibrationStatistics) -> Measured | None:
    """Compute a metric from merged statistics, None where it is undefined."""
    code = implementation("fl_dpbayes.calibration.metrics", metric.file)
    found = getattr(code, metric.key)(statistics)
    return found if found is None or isinstance(found, Measured) else Measured(found)


def summarise(
    statistics: CalibrationStatistics, generator: np.random.Generator
) -> CalibrationValues:
    """Summarise exact statistics of a site, or of several merged.

    Without records n = 0 and all else is None.

    `generator`: source of the draws behind `ece_if_calibrated`.
    """
    if statistics.count == 0:
        return CalibrationValues(n=0)
    measured = {
        key: found for key, metric in METRICS.items() if (found := measure(metric, statistics))
    }
    values: dict[str, Any] = {key: found.value for key, found in measured.items()}
    values |= {f"{key}_bounds": found.bounds for key, found in measured.items() if found.bounds}
    if reference := ece_if_calibrated(statistics, generator):
        values["ece_if_calibrated"], values["ece_if_calibrated_high"] = reference
    if curve := decision_curve(statistics):
        values["net_benefit"] = curve
    values |= {"n": int(statistics.count), "nll_clipped": int(statistics.nll_clipped)}
    intervals = {key: found.interval for key, found in measured.items() if found.interval}
    return CalibrationValues.model_validate({**values, "intervals": intervals})


def summarise_noised(table: NoisedTable, generator: np.random.Generator) -> CalibrationValues:
    """Summarise a noised table of a site, or of several merged.

    `ece` is the raw top-label error over `join_small_bins`, release noise included; so is
    `ece_if_calibrated`, with which it is to be compared. `rms_debiased` has the variance of the
    noise taken out. All but n are None where the noise hides the records; other metrics do not
    follow from what was sent.
    """
    count, _, correct = map(float, table.sums.sum(axis=0))
    n = max(0, round(count))
    joined, noise = join_small_bins(table)
    if len(joined) == 0:
        return CalibrationValues(n=n)
    # Outcomes can be drawn for whole records only, of the same mean confidences.
    whole = np.maximum(np.round(joined[:, COUNT]), 1)
    rounded = np.column_stack([whole, joined[:, CONFIDENCE] * whole / joined[:, COUNT]])
    drawn = joined[:, CONFIDENCE] - draw_calibrated(rounded, generator)
    drawn += math.sqrt(2) * noise * generator.standard_normal(drawn.shape)
    reference = np.abs(drawn).sum(axis=1) / joined[:, COUNT].sum()
    share = wilson_interval(correct, count, len(table.sums) * table.noise_std**2)
    intervals = {"accuracy": share, "rms_debiased": rms_interval(joined, noise)}
    return CalibrationValues.model_validate(
        {
            "n": n,
            "accuracy": min(1.0, max(0.0, correct / count)),
            "ece": mean_absolute_gap(joined),
            "ece_if_calibrated": float(reference.mean()),
            "ece_if_calibrated_high": float(np.quantile(reference, LEVEL)),
            "rms_debiased": math.sqrt(
                min(1.0, max(0.0, float(debiased_mean_square_gap(joined, noise))))
            ),
            "intervals": {metric: ends for metric, ends in intervals.items() if ends is not None},
        }
    )


def join_small_bins(table: NoisedTable) -> tuple[Floats, Floats]:
    """Join neighbouring bins until each count is CLEAR of its noise.

    It reads released numbers only.

    Returns the sums per joined bin, (J, 3), and their noise's standard deviation, (J,); J = 0 where
    all is mostly noise.
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
