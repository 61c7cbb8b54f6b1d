"""Does one site decide a result over all sites of a role? What is pooled is held against the same without it."""

from collections.abc import Mapping
from functools import reduce

import numpy as np

from fl_dpbayes.calibration.release import NoisedTable, merge_noised
from fl_dpbayes.calibration.summarise import summarise_noised
from fl_dpbayes.config.names import Role
from fl_dpbayes.config.warning import RunWarning, warning

METRICS = {"accuracy": "accuracy", "rms_debiased": "calibration error (debiased RMS)"}


def decisive_sites(role: Role, tables: Mapping[str, NoisedTable]) -> list[RunWarning]:
    """Say so where a pooled result without one site differs by more than the width of its 95 % interval.

    Args:
        role: whose results are pooled.
        tables: site -> sums of the predictor that is read first, noise 0 where they are exact.

    Returns:
        A warning for each metric that one site decides, naming the site that moves it most; none for a single site.
    """
    if len(tables) < 2:
        return []
    pooled = summarise_noised(reduce(merge_noised, tables.values()), np.random.default_rng(0))
    without = {
        site: summarise_noised(
            reduce(merge_noised, (table for other, table in tables.items() if other != site)), np.random.default_rng(0)
        )
        for site in tables
    }
    found = []
    for metric, name in METRICS.items():
        value, ends = getattr(pooled, metric), pooled.intervals.get(metric)
        rests = {site: getattr(rest, metric) for site, rest in without.items() if getattr(rest, metric) is not None}
        if value is None or ends is None or not rests:
            continue
        site = max(rests, key=lambda site: abs(rests[site] - value))
        if abs(rests[site] - value) > ends.high - ends.low:
            measured = {"value": value, "low": ends.low, "high": ends.high, "without": rests[site]}
            found.append(warning("decisive", site, sites=len(tables), role=role, metric=name, **measured))
    return found
