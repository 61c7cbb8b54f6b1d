"""Means over cells with intervals over seeds: cells of one seed share records and draws, so a seed counts once."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import pandas as pd

from fl_dpbayes.calibration.intervals import paired_difference
from fl_dpbayes.report.study.results import SEED


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval.

    Attributes:
        mean: over seeds of the mean over settings.
        low: end of Student's t interval over seeds; None for a single one.
        high: the other end.
        seeds: how many.
        settings: over how many cells a seed's mean goes.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    settings: int

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, where there is one."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def estimate(frame: pd.DataFrame, column: str) -> Estimate | None:
    """Average a column over the rows of each seed, then over seeds.

    Only seeds count that have as many rows as any seed has: a seed whose cell failed would average other settings.

    Args:
        frame: rows of a study's table.
        column: a number, NaN where undefined.

    Returns:
        The mean with its interval, cut at 0 where no value lies below, or None where nothing is defined.
    """
    found = _mean(frame, column)
    if found is None or found.low is None or (pd.to_numeric(frame[column], errors="coerce") < 0).any():
        return found
    return replace(found, low=max(0.0, found.low))


def _mean(frame: pd.DataFrame, column: str) -> Estimate | None:
    if frame.empty or column not in frame.columns:
        return None
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=float)
    defined = np.isfinite(values)
    by_seed: dict[Hashable, list[float]] = {}
    for seed, value in zip(frame[SEED].to_numpy()[defined], values[defined], strict=True):
        by_seed.setdefault(seed, []).append(float(value))
    return _over_seeds(by_seed)


def paired(methods: pd.DataFrame, baseline: pd.DataFrame, column: str, keys: list[str]) -> Estimate | None:
    """Average `method - baseline` over rows that agree in `keys`, within each seed first, then over seeds.

    Args:
        methods: rows of one method.
        baseline: rows of another.
        column: a number.
        keys: what two rows of a pair share beside the seed.

    Returns:
        The mean difference with its interval, or None without pairs.
    """
    joined = methods.merge(baseline, on=[SEED, *keys], suffixes=("", "_baseline"))
    joined[column] = joined[column] - joined[f"{column}_baseline"]
    return _mean(joined, column)


def _over_seeds(by_seed: dict[Hashable, list[float]]) -> Estimate | None:
    if not by_seed:
        return None
    most = max(map(len, by_seed.values()))
    means = [fmean(values) for values in by_seed.values() if len(values) == most]
    over = paired_difference(means, [0.0] * len(means))
    if over is None:
        return Estimate(means[0], None, None, 1, most)
    return Estimate(over.mean, over.interval.low, over.interval.high, over.pairs, most)
