"""Means over a study's cells with intervals over seeds, and methods beside each other at equal seeds and settings."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from fl_dpbayes.report.study.quantities import Estimate, axis_name, over_seeds
from fl_dpbayes.report.study.results import (
    PREDICTOR,
    SEED,
    SEVERITY,
    SHIFT,
    UNSHIFTED,
    StudyResults,
    rows_at,
)

RECALIBRATION, RECALIBRATED = "recalibration", "recalibrated"
BASELINE = "baseline"
Labels = Mapping[str, str]


def estimate(frame: pd.DataFrame, column: str) -> Estimate | None:
    """Average a column as `over_seeds` does, with the interval cut at 0 where no value lies below."""
    found = mean_of(frame, column)
    if (
        found is None
        or found.ends is None
        or (pd.to_numeric(frame[column], errors="coerce") < 0).any()
    ):
        return found
    return replace(found, ends=(max(0.0, found.ends[0]), found.ends[1]))


def mean_of(frame: pd.DataFrame, column: str) -> Estimate | None:
    """Average a column's finite values as `over_seeds` does; None without any."""
    if column not in frame.columns:
        return None
    values = pd.to_numeric(frame[column], errors="coerce").astype(float)
    by_seed = values[np.isfinite(values)].groupby(frame[SEED], sort=False)
    return over_seeds(of_seed.tolist() for _, of_seed in by_seed)


def paired(
    methods: pd.DataFrame, baseline: pd.DataFrame, column: str, keys: list[str]
) -> Estimate | None:
    """Average `method - baseline` over rows that agree in `keys`, within each seed first, then over seeds."""
    joined = methods.merge(baseline, on=[SEED, *keys], suffixes=("", "_baseline"))
    joined[column] = joined[column] - joined[f"{column}_baseline"]
    return mean_of(joined, column)


class BesideBaseline(NamedTuple):
    """One method (values of the baseline's axes) at one setting of the axes that are kept apart.

    `value`: its mean over the other axes. `difference`: from the baseline, paired; None for itself,
    or without pairs.
    """

    at: Labels
    method: Labels
    value: Estimate
    difference: Estimate | None


def beside_baseline(study: StudyResults, metric: str) -> list[BesideBaseline]:
    """Compare every combination of the baseline's axes with the baseline, at each setting that is kept apart."""
    apart = (*study.baseline, *study.record.separate)
    focus = {name: label for name, label in study.focus(PREDICTOR).items() if name not in apart}
    frame = rows_at(study.headline, focus)
    keys = [name for name in study.axes if name not in study.baseline]
    found = []
    for at in combinations(study, study.record.separate):
        baseline = rows_at(frame, {**at, **study.baseline})
        for method in combinations(study, study.baseline):
            rows = rows_at(frame, {**at, **method})
            if value := estimate(rows, metric):
                difference = (
                    None if method == study.baseline else paired(rows, baseline, metric, keys)
                )
                found.append(BesideBaseline(at, method, value, difference))
    return found


def combinations(study: StudyResults, names: Collection[str]) -> Iterator[dict[str, str]]:
    """Go through all combinations of the values of some axes, the last fastest."""
    for labels in product(*(study.methods(name) for name in names)):
        yield dict(zip(names, labels, strict=True))


def setting_words(study: StudyResults, labels: Labels) -> str:
    """Name a method or a setting within a sentence: "sampler dp-sgd, the averaged posterior"."""
    return ", ".join(
        f"the {study.words(name, label)}" if name == PREDICTOR else f"{axis_name(name)} {label}"
        for name, label in labels.items()
    )


class Difference(NamedTuple):
    """`method - baseline` in a metric at the study's place, over all settings of the other axes but those of `at`.

    With `axis` BASELINE method and baseline are words; else they are labels of the axis.
    """

    axis: str
    method: str
    baseline: str
    value: Estimate
    at: str = ""


def compared_axes(study: StudyResults) -> list[str]:
    """Return the axes whose values are methods.

    Predictors where the study names none with two values.
    """
    axes = [axis for axis in study.record.compare if len(study.methods(axis)) > 1]
    return axes or ([PREDICTOR] if study.methods(PREDICTOR) else [])


def method_rows(study: StudyResults, frame: pd.DataFrame, axis: str, label: str) -> pd.DataFrame:
    """Select a method's rows: by the main predictor.

    Of a recalibration by the one it makes, where there is one.
    """
    rows = rows_at(frame, {axis: label})
    if axis == PREDICTOR or rows.empty:
        return rows
    predictor = study.main_predictor()
    if axis == RECALIBRATION and (rows[PREDICTOR] == RECALIBRATED).any():
        predictor = RECALIBRATED
    return rows[rows[PREDICTOR] == predictor]


def differences(study: StudyResults, metric: str) -> list[Difference]:
    """Pair the methods of every compared axis at the study's place, over all settings in its focus or kept apart."""
    if metric not in study.headline.columns:
        return []
    found, apart = _from_baseline(study, metric), (*study.record.separate, *study.baseline)
    for axis in compared_axes(study):
        if axis in apart:
            continue
        frame = study.in_focus(axis)
        baseline, *others = study.methods(axis)
        keys = [name for name in study.axes if name != axis]
        for method, at in product(
            others, combinations(study, [name for name in apart if name != PREDICTOR])
        ):
            rows, first = (
                rows_at(method_rows(study, frame, axis, label), at) for label in (method, baseline)
            )
            if value := paired(rows, first, metric, keys):
                found.append(Difference(axis, method, baseline, value, setting_words(study, at)))
    return found


def _from_baseline(study: StudyResults, metric: str) -> list[Difference]:
    words = setting_words(study, study.baseline)
    found = [
        Difference(
            BASELINE,
            setting_words(study, one.method),
            words,
            one.difference,
            setting_words(study, one.at),
        )
        for one in (beside_baseline(study, metric) if study.baseline else ())
        if one.difference is not None
    ]
    order = list(dict.fromkeys(one.method for one in found))
    return sorted(found, key=lambda one: order.index(one.method))


def shift_kinds(study: StudyResults, frame: pd.DataFrame) -> list[str]:
    """Return the kinds of shift that a table holds at more than one severity, the unshifted original counting."""
    if frame.empty or not {SHIFT, SEVERITY} <= set(frame.columns):
        return []
    severities = frame[frame[SEVERITY].notna()].groupby(SHIFT, sort=False)[SEVERITY].nunique()
    original = (frame["site"] == study.original_site).any()
    return [str(kind) for kind, count in severities.items() if kind and count + original > 1]


def at_severity(study: StudyResults, frame: pd.DataFrame, kind: str, severity: int) -> pd.DataFrame:
    """Select the rows of one shift.

    Severity 0 is the site of which shifted sites hold the records.
    """
    if severity == UNSHIFTED:
        return frame[(frame["site"] == study.original_site) & frame[SEVERITY].isna()]
    return frame[(frame[SHIFT] == kind) & (frame[SEVERITY] == severity)]
