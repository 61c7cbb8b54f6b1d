"""Every method beside the declared baseline, at each value of the axes over which the answer must not average."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import pandas as pd

from fl_dpbayes.report.study.estimates import Estimate, estimate, paired
from fl_dpbayes.report.study.quantities import axis_name
from fl_dpbayes.report.study.results import PREDICTOR, StudyResults

Labels = Mapping[str, str]


@dataclass(frozen=True)
class BesideBaseline:
    """One method at one setting: its own mean, and what it differs by from the baseline there.

    Attributes:
        at: values of the axes that are kept apart.
        method: values of the baseline's axes.
        value: the method's mean over the other axes.
        difference: method minus baseline, paired; None for the baseline itself, or without pairs.
        is_baseline: whether it is the baseline.
    """

    at: Labels
    method: Labels
    value: Estimate
    difference: Estimate | None
    is_baseline: bool


def beside_baseline(study: StudyResults, metric: str) -> list[BesideBaseline]:
    """Compare every combination of the baseline's axes with the baseline, at each setting that is kept apart.

    Args:
        study: one whose record declares a baseline.
        metric: a column of its results.

    Returns:
        By setting, in the order of the axes; what was not measured is left out.
    """
    frame = study.headline
    for name, label in study.focus(PREDICTOR).items() if not frame.empty else ():
        if name not in study.baseline and name not in study.record.separate:
            frame = frame[frame[name] == label]
    keys = [name for name in study.axes if name not in study.baseline]
    found = []
    for at in combinations(study, study.record.separate):
        baseline = rows_at(frame, {**at, **study.baseline})
        for method in combinations(study, study.baseline):
            rows = rows_at(frame, {**at, **method})
            value = estimate(rows, metric)
            if value is None:
                continue
            same = method == study.baseline
            difference = None if same else paired(rows, baseline, metric, keys)
            found.append(BesideBaseline(at, method, value, difference, same))
    return found


def combinations(study: StudyResults, names: Mapping[str, str] | tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Go through all combinations of the values of some axes, the last fastest."""
    for labels in product(*(study.methods(name) for name in names)):
        yield dict(zip(names, labels, strict=True))


def rows_at(frame: pd.DataFrame, labels: Labels) -> pd.DataFrame:
    """Select the rows that have these labels."""
    for name, label in labels.items() if not frame.empty else ():
        frame = frame[frame[name] == label]
    return frame


def setting_words(study: StudyResults, labels: Labels) -> str:
    """Name a method or a setting within a sentence: "sampler dp-sgd, the averaged posterior"."""
    return ", ".join(
        f"the {study.words(name, label)}" if name == PREDICTOR else f"{axis_name(name)} {label}"
        for name, label in labels.items()
    )
