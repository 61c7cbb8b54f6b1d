"""Decision curves of a two-class predictor: what acting above a threshold gains over treating all or none."""

import math
from typing import NamedTuple

from fl_dpbayes.calibration.bins import COUNT, FINE_BINS, OUTCOME, coarsen
from fl_dpbayes.calibration.intervals import NORMAL_QUANTILE, Interval
from fl_dpbayes.calibration.statistics import CalibrationStatistics

THRESHOLDS = tuple(step / 20 for step in range(1, 20))  # each an edge of fine bins
PRIOR_COUNT = 4 / 3


class NetBenefit(NamedTuple):
    """Net benefit at one threshold, per record, in units of a true positive.

    Attributes:
        threshold: t in (0, 1); a record is treated if p >= t.
        model: net benefit of treating so.
        interval: 95 % interval of `model`.
        all: net benefit of treating everybody.
        none: that of treating nobody, 0.
    """

    threshold: float
    model: float
    interval: Interval
    all: float
    none: float = 0.0


def net_benefit(statistics: CalibrationStatistics, threshold: float) -> NetBenefit | None:
    """Return TP / N - FP / N t / (1 - t), beside treating all and treating none.

    The interval is mean +- z s / sqrt(N) of the terms 1 (true positive), -t / (1 - t) (false positive) and 0 (not
    treated), after 4/3 of each are added: without them it would have no width where none is treated.

    Args:
        statistics: merged statistics.
        threshold: t, a multiple of 1 / FINE_BINS in (0, 1).

    Returns:
        The net benefit, or None for more than two classes or without records.

    Raises:
        ValueError: if t is no inner edge of the fine bins.

    Source: Vickers and Elkin, Medical Decision Making 26 (2006), 565-574; the added counts after Agresti and Coull,
        The American Statistician 52 (1998), 119-126.
    """
    first = round(threshold * FINE_BINS)
    if not 0 < first < FINE_BINS or not math.isclose(first / FINE_BINS, threshold):
        raise ValueError(f"threshold is {threshold}: it must be one of 1/{FINE_BINS} .. {FINE_BINS - 1}/{FINE_BINS}")
    if statistics.classes != 2 or statistics.count == 0:
        return None
    table, count = coarsen(statistics.class_wise[1], FINE_BINS), statistics.count
    harm = first / (FINE_BINS - first)
    treated, true_positive, events = table[first:, COUNT].sum(), table[first:, OUTCOME].sum(), table[:, OUTCOME].sum()
    false_positive = treated - true_positive
    model = float(true_positive - false_positive * harm) / count

    size = count + 3 * PRIOR_COUNT
    gained, harmed = (true_positive + PRIOR_COUNT) / size, (false_positive + PRIOR_COUNT) / size
    middle = gained - harm * harmed
    half = NORMAL_QUANTILE * math.sqrt((gained + harm**2 * harmed - middle**2) / size)
    interval = Interval(min(model, float(middle - half)), max(model, float(middle + half)))
    return NetBenefit(threshold, model, interval, float(events - (count - events) * harm) / count)


def decision_curve(statistics: CalibrationStatistics) -> list[NetBenefit] | None:
    """Return the net benefit at THRESHOLDS, or None for more than two classes or without records."""
    points = [point for threshold in THRESHOLDS if (point := net_benefit(statistics, threshold))]
    return points or None
