"""Which rows of a study's tables stand for a method."""

from dataclasses import dataclass

import pandas as pd

from fl_dpbayes.report.study.baseline import beside_baseline, combinations, rows_at, setting_words
from fl_dpbayes.report.study.estimates import Estimate, paired
from fl_dpbayes.report.study.results import PREDICTOR, StudyResults, label_text

RECALIBRATION, RECALIBRATED = "recalibration", "recalibrated"
EVERY_SETTING = "all"
BASELINE = "baseline"


@dataclass(frozen=True)
class Difference:
    """`method - baseline` in a metric at the study's place, over all settings of the other axes but those of `at`.

    With `axis` BASELINE method and baseline are words; else they are labels of the axis.
    """

    axis: str
    method: str
    baseline: str
    value: Estimate
    at: str = ""


def compared_axes(study: StudyResults) -> list[str]:
    """Return the axes whose values are methods; predictors where the study names none with two values."""
    axes = [axis for axis in study.record.compare if len(study.methods(axis)) > 1]
    return axes or ([PREDICTOR] if study.methods(PREDICTOR) else [])


def method_rows(study: StudyResults, frame: pd.DataFrame, axis: str, label: str) -> pd.DataFrame:
    """Select a method's rows.

    The values of an axis are compared by the main predictor; recalibrations by the recalibrated one, where there is
    one, since the others do not depend on it.

    Args:
        study: the study.
        frame: one of its tables, with a predictor in each row.
        axis: a compared axis, or `predictor`.
        label: its value.

    Returns:
        The rows.
    """
    if frame.empty or axis not in frame.columns:
        return frame.iloc[:0]
    rows = frame[frame[axis] == label]
    if axis == PREDICTOR:
        return rows
    predictor = study.main_predictor()
    if axis == RECALIBRATION and (rows[PREDICTOR] == RECALIBRATED).any():
        predictor = RECALIBRATED
    return rows[rows[PREDICTOR] == predictor]


def differences(study: StudyResults, metric: str) -> list[Difference]:
    """Return the paired differences of every compared axis at the study's place over all settings in its focus.

    Args:
        study: the study.
        metric: which.

    Returns:
        One for each method but the baseline of its axis; left out where no pair exists. Where the study declares a
        baseline: one for each method and setting that is kept apart, and other axes' by sampler, budget or whatever
        baseline and `separate` name.
    """
    if study.baseline:
        return [*_from_baseline(study, metric), *_other_axes_apart(study, metric)]
    found = []
    for axis in compared_axes(study):
        baseline, *others = study.methods(axis)
        for method in others:
            value = (
                _in_focus(study, axis, method, baseline, metric)
                if axis == RECALIBRATION or study.focus(axis)
                else _from_table(study, axis, method, baseline, metric)
            )
            if value is not None:
                found.append(Difference(axis, method, baseline, value))
    return found


def _from_baseline(study: StudyResults, metric: str) -> list[Difference]:
    words = setting_words(study, study.baseline)
    found = [
        Difference(BASELINE, setting_words(study, one.method), words, one.difference, setting_words(study, one.at))
        for one in beside_baseline(study, metric)
        if one.difference is not None
    ]
    order = list(dict.fromkeys(one.method for one in found))
    return sorted(found, key=lambda one: order.index(one.method))


def _other_axes_apart(study: StudyResults, metric: str) -> list[Difference]:
    found = []
    apart = (*study.record.separate, *(name for name in study.baseline if name != PREDICTOR))
    for axis in compared_axes(study):
        if axis in study.baseline or axis in apart or metric not in study.headline.columns:
            continue
        frame = study.in_focus(axis)
        baseline, *others = study.methods(axis)
        keys = [name for name in study.axes if name != axis]
        for method in others:
            for at in combinations(study, apart):
                rows, first = (rows_at(method_rows(study, frame, axis, label), at) for label in (method, baseline))
                value = paired(rows, first, metric, keys)
                if value is not None:
                    found.append(Difference(axis, method, baseline, value, setting_words(study, at)))
    return found


def _from_table(study: StudyResults, axis: str, method: str, baseline: str, metric: str) -> Estimate | None:
    table = study.differences
    if table.empty:
        return None
    rows = table[
        (table["compared"] == axis)
        & (table["method"] == method)
        & (table["baseline"] == baseline)
        & (table["metric"] == metric)
        & (table["site"] == study.record.where)
    ]
    if axis != PREDICTOR:
        rows = rows[rows[PREDICTOR] == study.main_predictor()]
    whole = rows[rows["over"] == EVERY_SETTING]
    if whole.empty:
        return None
    row = whole.iloc[0]
    settings = int((rows["over"] == "setting").sum())
    low, high = (None if label_text(row[end]) == "" else float(row[end]) for end in ("low", "high"))
    return Estimate(float(row["mean"]), low, high, int(row["pairs"]), max(1, settings))


def _in_focus(study: StudyResults, axis: str, method: str, baseline: str, metric: str) -> Estimate | None:
    """Pair what the table of differences does not: some settings only, and a recalibration with none."""
    frame = study.in_focus(axis)
    if metric not in frame.columns:
        return None
    of_method, of_baseline = (method_rows(study, frame, axis, label) for label in (method, baseline))
    return paired(of_method, of_baseline, metric, [name for name in study.axes if name != axis])
