"""Conformal prediction sets calibrated on the training sites' test records, and how they do at every other site."""

from collections.abc import Iterable
from typing import Any

from fl_dpbayes.calibration.conformal import (
    LEVEL,
    label_shift_weights,
    measure_sets,
    prevalence,
    prevalence_from_means,
    set_thresholds,
)
from fl_dpbayes.calibration.evaluation_counts import Statistics
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.config.names import Role

PREDICTORS = ("posterior", "last")
CALIBRATED_ON = "pooled training sites' test records"


def conformal_rows(places: Iterable[tuple[str, Role, str, Statistics]]) -> list[dict[str, Any]]:
    """Measure prediction sets at held-out and shifted sites, one by one and pooled per role.

    Weights are "none", "label-shift" (from the place's own labels, which a hospital that only predicts does not have)
    and, for two classes, "label-shift-estimated" (from its mean prediction, no label needed).

    Args:
        places: name (of a site, or pooled:<role>), role, predictor and statistics.

    Returns:
        Rows for the summary. Places with noised sums have none; nobody has one where a training site's are noised.
    """
    sources, targets = {}, []
    for name, role, predictor, statistics in places:
        if predictor not in PREDICTORS or not isinstance(statistics, CalibrationStatistics) or statistics.count == 0:
            continue
        if name == "pooled:train":
            sources[predictor] = statistics
        elif role != "train":
            targets.append((name, role, predictor, statistics))
    return [
        {"site": name, "role": role, "predictor": predictor, **row}
        for name, role, predictor, target in targets
        if predictor in sources
        for row in _rows(sources[predictor], target)
    ]


def _rows(source: CalibrationStatistics, target: CalibrationStatistics) -> list[dict[str, Any]]:
    shares = {"label-shift": prevalence(target), "label-shift-estimated": prevalence_from_means(source, target)}
    thresholds = {"none": set_thresholds(source, LEVEL)}
    for name, share in shares.items():
        weights = None if share is None else label_shift_weights(prevalence(source), share)
        if weights is not None:
            thresholds[name] = set_thresholds(source, LEVEL, weights)
    rows = []
    for name, first in thresholds.items():
        quality = measure_sets(target, first)
        if quality is None:
            continue
        rows.append(
            {
                "level": LEVEL,
                "weights": name,
                "calibrated_on": CALIBRATED_ON,
                "coverage": quality.coverage,
                "interval": None if quality.interval is None else list(quality.interval),
                "size": quality.size,
                "n": int(target.count),
                "n_calibration": int(source.count),
            }
        )
    return rows
