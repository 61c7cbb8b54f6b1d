"""Means over a study's cells, and methods beside each other at equal seeds and settings."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    label_text,
    rows_at,
)

RECALIBRATION = "recalibration"
RECALIBRATED = "recalibrated"
BASELINE = "baseline"
Labels = Mapping[str, str]


def estimate(frame: pd.DataFrame, column: str) -> Estimate | None:
    """Average a column over seeds, the interval cut at 0 where no value lies below."""
    mean = mean_of(frame, column)
    if mean is None or mean.ends is None:
        return mean
    if (pd.to_numeric(frame[column], errors="coerce") < 0).any():
        return mean
    low, high = mean.ends
    return replace(mean, ends=(max(0.0, low), high))


def estimates(frame: pd.DataFrame, by: str, column: str) -> dict[str, Estimate]:
    """Average a column for each label of another; labels without a value are left out."""
    if by not in frame.columns:
        return {}
    values = {
        label_text(label): estimate(rows, column) for label, rows in frame.groupby(by, sort=False)
    }
    return {label: value for label, value in values.items() if value is not None}


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
    """Average `method - baseline` over pairs, within each seed first, then over seeds.

    Args:
        methods: Rows of the method.
        baseline: Rows of the baseline.
        column: What is compared.
        keys: Columns in which the two rows of a pair agree, beside the seed.
    """
    joined = methods.merge(baseline, on=[SEED, *keys], suffixes=("", "_baseline"))
    joined[column] = joined[column] - joined[f"{column}_baseline"]
    return mean_of(joined, column)


@dataclass(frozen=True)
class BesideBaseline:
    """One method at one setting of the axes that are kept apart.

    Attributes:
        setting: Labels of the axes that are kept apart.
        method: Labels of the baseline's axes.
        value: The method's mean over the other axes.
        difference: From the baseline, paired; None for itself, or without pairs.
    """

    setting: Labels
    method: Labels
    value: Estimate
    difference: Estimate | None


def beside_baseline(study: StudyResults, metric: str) -> list[BesideBaseline]:
    """Compare every combination of the baseline's axes with it, at each setting kept apart."""
    separate = (*study.baseline, *study.record.separate)
    focus = {name: label for name, label in study.focus(PREDICTOR).items() if name not in separate}
    frame = rows_at(study.headline, focus)
    keys = [name for name in study.axes if name not in study.baseline]
    compared = []
    for setting, of_setting in groups(study, frame, study.record.separate):
        baseline = rows_at(of_setting, study.baseline)
        for method, rows in groups(study, of_setting, list(study.baseline)):
            value = estimate(rows, metric)
            if value is None:
                continue
            difference = None
            if method != study.baseline:
                difference = paired(rows, baseline, column=metric, keys=keys)
            compared.append(BesideBaseline(setting, method, value, difference))
    return compared


def groups(
    study: StudyResults, frame: pd.DataFrame, axes: Sequence[str]
) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Part a table by the labels of some axes.

    Args:
        study: Whose order of labels is kept, the last axis fastest.
        frame: The table.
        axes: Columns of it; without any, the whole table is one part.

    Yields:
        Axis -> label, and the rows that have these labels; combinations without rows are left out.
    """
    if not axes:
        yield {}, frame
        return
    # As many bare categoricals as the table has rows would be taken for its columns.
    columns = [
        pd.Series(pd.Categorical(frame[axis], study.methods(axis)), index=frame.index)
        for axis in axes
    ]
    for labels, rows in frame.groupby(columns, observed=True):
        yield dict(zip(axes, labels, strict=True)), rows


def setting_words(study: StudyResults, labels: Labels) -> str:
    """Name a method or a setting within a sentence: "sampler dp-sgd, the averaged posterior"."""
    return ", ".join(
        f"the {study.words(name, label)}" if name == PREDICTOR else f"{axis_name(name)} {label}"
        for name, label in labels.items()
    )


@dataclass(frozen=True)
class Difference:
    """`method - baseline` in a metric at the study's place.

    Attributes:
        axis: Whose labels are compared; with BASELINE, method and baseline are words.
        method: A label of the axis, or words.
        baseline: A label of the axis, or words.
        value: The mean over all settings of the other axes, but those of `setting`.
        setting: The setting that is kept apart, in words; empty where none is.
    """

    axis: str
    method: str
    baseline: str
    value: Estimate
    setting: str = ""


def compared_axes(study: StudyResults) -> list[str]:
    """Return the axes whose values are methods; predictors where the study names none."""
    axes = [axis for axis in study.record.compare if len(study.methods(axis)) > 1]
    if axes:
        return axes
    return [PREDICTOR] if study.methods(PREDICTOR) else []


def method_rows(study: StudyResults, frame: pd.DataFrame, axis: str, label: str) -> pd.DataFrame:
    """Select a method's rows, of one predictor.

    It is the one that a recalibration makes, where there is one, else the main predictor.
    """
    rows = rows_at(frame, {axis: label})
    if axis == PREDICTOR or rows.empty:
        return rows
    predictor = study.main_predictor()
    if axis == RECALIBRATION and (rows[PREDICTOR] == RECALIBRATED).any():
        predictor = RECALIBRATED
    return rows[rows[PREDICTOR] == predictor]


def differences(study: StudyResults, metric: str) -> list[Difference]:
    """Pair the methods of every compared axis at the study's place.

    Over all settings in the axis' focus, but at each setting that the study keeps apart.
    """
    if metric not in study.headline.columns:
        return []
    separate = (*study.record.separate, *study.baseline)
    compared = _differences_from_baseline(study, metric)
    for axis in compared_axes(study):
        if axis not in separate:
            compared += _axis_differences(study, metric=metric, axis=axis, separate=separate)
    return compared


def _axis_differences(
    study: StudyResults, metric: str, axis: str, separate: Collection[str]
) -> list[Difference]:
    frame = study.in_focus(axis)
    baseline, *methods = study.methods(axis)
    baseline_rows = method_rows(study, frame, axis, baseline)
    keys = [name for name in study.axes if name != axis]
    apart = [name for name in separate if name != PREDICTOR]
    compared = []
    for method in methods:
        for setting, rows in groups(study, method_rows(study, frame, axis, method), apart):
            value = paired(rows, rows_at(baseline_rows, setting), column=metric, keys=keys)
            if value is not None:
                compared.append(
                    Difference(
                        axis=axis,
                        method=method,
                        baseline=baseline,
                        value=value,
                        setting=setting_words(study, setting),
                    )
                )
    return compared


def _differences_from_baseline(study: StudyResults, metric: str) -> list[Difference]:
    """Return the differences from the declared baseline, those of a method together."""
    if not study.baseline:
        return []
    baseline = setting_words(study, study.baseline)
    by_method: dict[str, list[Difference]] = {}
    for row in beside_baseline(study, metric):
        if row.difference is None:
            continue
        method = setting_words(study, row.method)
        by_method.setdefault(method, []).append(
            Difference(
                axis=BASELINE,
                method=method,
                baseline=baseline,
                value=row.difference,
                setting=setting_words(study, row.setting),
            )
        )
    return [difference for of_method in by_method.values() for difference in of_method]


def by_severity(study: StudyResults, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table's rows under shift, with the unshifted site as severity 0 of each kind.

    A kind of which the table holds one severity alone, 0 included, is left out.
    """
    if frame.empty or not {SHIFT, SEVERITY} <= set(frame.columns):
        return frame.iloc[:0]
    is_shifted = frame[SEVERITY].notna()
    original = frame[(frame["site"] == study.original_site) & ~is_shifted]
    parts = [frame.iloc[:0]]
    for kind, rows in frame[is_shifted].groupby(SHIFT, sort=False):
        unshifted = original.assign(**{SHIFT: kind, SEVERITY: UNSHIFTED})
        part = pd.concat([unshifted, rows]) if len(unshifted) else rows
        if part[SEVERITY].nunique() > 1:
            parts.append(part)
    return pd.concat(parts[1:] or parts)
