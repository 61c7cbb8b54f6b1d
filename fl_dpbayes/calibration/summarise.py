"""One row of results from merged statistics, exact or noised.

It holds metrics, intervals, and what a calibrated model would show.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, Floats
from fl_dpbayes.calibration.curves import Ends
from fl_dpbayes.calibration.intervals import (
    LEVEL,
    draw_calibrated,
    ece_if_calibrated,
    wilson_interval,
)
from fl_dpbayes.calibration.metrics.errors import mean_absolute_gap
from fl_dpbayes.calibration.metrics.two_classes import decision_curve
from fl_dpbayes.calibration.records import METRICS, CalibrationValues
from fl_dpbayes.calibration.release import NoisedTable
from fl_dpbayes.calibration.rms_interval import debiased_mean_square_gap, rms_interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.sums import Sums

# Standard deviations of noise that a count must exceed before a ratio over it means anything.
CLEAR = 5.0


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
        values["net_benefit"] = decision_curve(sums)
    return CalibrationValues(n=int(sums.count), intervals=intervals, **values)


def summarise_noised(table: NoisedTable, generator: np.random.Generator) -> CalibrationValues:
    """Summarise a noised table of a site, or of several merged.

    `ece` is the raw top-label error over `join_small_bins`, release noise included; so is
    `ece_if_calibrated`, with which it is to be compared. `rms_debiased` has the variance of the
    noise taken out. Other metrics do not follow from what was sent.

    Args:
        table: The noised sums.
        generator: Source of the draws behind `ece_if_calibrated`.

    Returns:
        The values; all but n are None where the noise hides the records.
    """
    count, _, correct = map(float, table.sums.sum(axis=0))
    n = max(0, round(count))
    joined = join_small_bins(table)
    sums = joined.sums
    if len(sums) == 0:
        return CalibrationValues(n=n)
    # Outcomes can be drawn for whole records only, of the same mean confidences.
    whole_counts = np.maximum(np.round(sums[:, COUNT]), 1)
    rounded = np.column_stack([whole_counts, sums[:, CONFIDENCE] * whole_counts / sums[:, COUNT]])
    gaps = sums[:, CONFIDENCE] - draw_calibrated(rounded, generator)
    gaps += math.sqrt(2) * joined.noise_std * generator.standard_normal(gaps.shape)
    reference = np.abs(gaps).sum(axis=1) / sums[:, COUNT].sum()
    mean_square_gap = float(debiased_mean_square_gap(sums, joined.noise_std))
    intervals = {
        "accuracy": wilson_interval(
            successes=correct,
            count=count,
            noise_variance=len(table.sums) * table.noise_std**2,
        ),
        "rms_debiased": rms_interval(sums, joined.noise_std),
    }
    return CalibrationValues(
        n=n,
        accuracy=min(1.0, max(0.0, correct / count)),
        ece=mean_absolute_gap(sums),
        ece_if_calibrated=float(reference.mean()),
        ece_if_calibrated_high=float(np.quantile(reference, LEVEL)),
        rms_debiased=math.sqrt(min(1.0, max(0.0, mean_square_gap))),
        intervals={metric: ends for metric, ends in intervals.items() if ends is not None},
    )


class JoinedBins(NamedTuple):
    """Bins of a noised table that were joined.

    Attributes:
        sums: Noisy sums of 1, p and y, shape (J, 3).
        noise_std: Standard deviation of the noise on each bin's sums, shape (J,).
    """

    sums: Floats
    noise_std: Floats


def join_small_bins(table: NoisedTable) -> JoinedBins:
    """Join neighbouring bins until each count is CLEAR of its noise.

    It reads released numbers only.

    Args:
        table: Noisy sums per bin.

    Returns:
        The joined bins; none where all is mostly noise.
    """
    sums: list[Floats] = []
    noises: list[float] = []
    for row in table.sums:
        if sums and not _is_clear(sums[-1], noises[-1]):
            sums[-1] = sums[-1] + row
            noises[-1] = math.hypot(noises[-1], table.noise_std)
        else:
            sums.append(row)
            noises.append(table.noise_std)
    while len(sums) > 1 and not _is_clear(sums[-1], noises[-1]):
        last_sums = sums.pop()
        last_noise = noises.pop()
        sums[-1] = sums[-1] + last_sums
        noises[-1] = math.hypot(noises[-1], last_noise)
    if not _is_clear(sums[-1], noises[-1]):
        return JoinedBins(np.zeros((0, table.sums.shape[1])), np.zeros(0))
    return JoinedBins(np.stack(sums), np.array(noises))


def _is_clear(row: Floats, noise: float) -> bool:
    return bool(row[COUNT] > max(1.0, CLEAR * noise) and row[CONFIDENCE] > 0)
