"""What a study found, in sentences that claim no more than its intervals allow."""

import math
from dataclasses import dataclass
from itertools import groupby

from fl_dpbayes.report.numbers import rounded_up
from fl_dpbayes.report.study.comparisons import (
    BASELINE,
    UNSHIFTED,
    Difference,
    at_severity,
    beside_baseline,
    combinations,
    compared_axes,
    differences,
    estimate,
    method_rows,
    rows_at,
    setting_words,
    shift_kinds,
)
from fl_dpbayes.report.study.quantities import Estimate, Quantity, axis_name, place_words, quantity
from fl_dpbayes.report.study.results import PREDICTOR, SEVERITY, SHIFT, StudyResults

MUCH = 0.05  # of a calibration error: five percentage points
MANY_DIFFERENCES = 5
MOST_OF_IT = 0.9  # of the epsilon asked
ASKED = "privacy.epsilon"


@dataclass(frozen=True)
class StudyAnswer:
    """The opening of the page.

    `lead`: the main metric of the methods that are compared first. `differences`: one sentence per compared axis.
    `shifts`: the worst shift, and where the error grows large; empty without shifts. `basis`: what was run, and
    what the intervals mean. `cautions`: what weakens a conclusion, the gravest first.
    """

    lead: str
    differences: tuple[str, ...]
    shifts: str
    basis: str
    cautions: tuple[str, ...]


def study_answer(study: StudyResults) -> StudyAnswer:
    """Say what a study found."""
    found = differences(study, study.metric)
    return StudyAnswer(
        lead=_lead(study),
        differences=tuple(
            _differences(study, axis, list(rows)) if not apart else _apart(study, axis, method, list(rows))
            for (axis, method, apart), rows in groupby(found, _paragraph)
        ),
        shifts=_shifts(study),
        basis=_basis(study),
        cautions=tuple(_cautions(study, found)),
    )


def method_words(study: StudyResults, axis: str, label: str) -> str:
    """Name a method within a sentence."""
    if axis == BASELINE:
        return label
    words = study.words(axis, label)
    return f"the {words}" if axis == PREDICTOR else f"{axis_name(axis)} {words}"


def _paragraph(one: Difference) -> tuple[str, str, bool]:
    """What differences share that stand in one paragraph: the axis; the method too where settings are kept apart."""
    return one.axis, one.method if one.at else "", bool(one.at)


def _apart(study: StudyResults, axis: str, method: str, found: list[Difference]) -> str:
    """Say how a method differs from its baseline at each setting by itself."""
    measured = quantity(study.metric)
    baseline = "the baseline" if axis == BASELINE else method_words(study, axis, found[0].baseline)
    parts = "; ".join(f"{_signed(measured, one.value)} at {one.at}" for one in found)
    return (
        f"{_capital(method_words(study, axis, method))} against {baseline} ({_pairs(found[0].value)} each): "
        f"{measured.noun} {parts}."
    )


def _signed(measured: Quantity, value: Estimate) -> str:
    text = f"{'+' if value.mean >= 0 else ''}{measured.estimate(value)}"
    unclear = value.ends is not None and value.ends[0] <= 0 <= value.ends[1]
    return f"{text}, no clear difference," if unclear else text


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _baseline_lead(study: StudyResults) -> str:
    measured = quantity(study.metric)
    parts = [
        f"{measured.estimate(one.value)}{f' at {words}' if (words := setting_words(study, one.at)) else ''}"
        for one in beside_baseline(study, study.metric)
        if one.is_baseline
    ]
    place = place_words(study.record.where) + _focus(study, PREDICTOR)
    if not parts:
        return f"The baseline was not measured by {measured.key} at {place}."
    verb = "is off by" if measured.key == "rms_debiased" else f"has {measured.noun}"
    return f"At {place} the baseline, {setting_words(study, study.baseline)}, {verb} {'; '.join(parts)}."


def _lead(study: StudyResults) -> str:
    if study.baseline:
        return _baseline_lead(study)
    axes = compared_axes(study)[:1]
    measured = quantity(study.metric)
    place = place_words(study.record.where) + "".join(_focus(study, axis) for axis in axes)
    found = {
        method_words(study, axis, label): estimate(method_rows(study, study.in_focus(axis), axis, label), measured.key)
        for axis in axes
        for label in study.methods(axis)
    }
    known = {words: value for words, value in found.items() if value is not None}
    if not known:
        return f"Nothing was measured by {measured.key} at {place}."
    most = max(value.settings for value in known.values())
    parts = []
    for words, value in known.items():
        # Methods that were not measured everywhere are not compared like with like here.
        fewer = f" over {value.settings} of {most} settings" if value.settings < most else ""
        parts.append((words, measured.estimate(value) + fewer))
    if measured.key == "rms_debiased":
        (words, text), *others = parts
        return f"At {place} {words} is off by {text}{''.join(f'; {words} by {text}' for words, text in others)}."
    return f"At {place} {measured.noun} is {'; '.join(f'with {words} {text}' for words, text in parts)}."


def _focus(study: StudyResults, axis: str) -> str:
    """Say to which settings a sentence on an axis keeps."""
    parts = [method_words(study, name, label) for name, label in study.focus(axis).items()]
    return f", with {' and '.join(parts)}," if parts else ""


def _differences(study: StudyResults, axis: str, found: list[Difference]) -> str:
    measured = quantity(study.metric)
    parts = [f"{method_words(study, axis, one.method)} {_verdict(measured, one.value)}" for one in found]
    baseline = method_words(study, axis, found[0].baseline) + _focus(study, axis).rstrip(",")
    bases = [_pairs(one.value) for one in found]
    if len(set(bases)) == 1:
        return f"Compared with {baseline} ({bases[0]}): {'; '.join(parts)}."
    each = "; ".join(f"{part} ({basis})" for part, basis in zip(parts, bases, strict=True))
    return f"Compared with {baseline}: {each}."


def _pairs(value: Estimate) -> str:
    text = "one seed" if value.seeds == 1 else f"{value.seeds} seeds"
    text += f" × {value.settings} settings" if value.settings > 1 else ""
    return f"{text}, hence no interval" if value.seeds == 1 else text


def _verdict(measured: Quantity, value: Estimate) -> str:
    if value.ends is None:
        return f"{'+' if value.mean >= 0 else ''}{measured.estimate(value)}"
    low, high = value.ends
    if low <= 0 <= high:
        return f"shows no clear difference, {'+' if value.mean >= 0 else ''}{measured.estimate(value)}"
    if value.mean > 0:
        return f"raises {measured.noun} by {measured.estimate(value)}"
    turned = Estimate(-value.mean, -high, -low, value.seeds, value.settings)
    return f"lowers {measured.noun} by {measured.estimate(turned)}"


def _shifts(study: StudyResults) -> str:
    measured, frame, predictor = quantity(study.metric), study.results, study.main_predictor()
    kinds = shift_kinds(study, frame)
    if not kinds or not measured.metric.better or predictor is None:
        return ""
    frame = frame[frame[PREDICTOR] == predictor]
    found = {}
    for kind in kinds:
        for severity in sorted({int(value) for value in frame[frame[SHIFT] == kind][SEVERITY].dropna()}):
            value = estimate(at_severity(study, frame, kind, severity), measured.key)
            if value is not None:
                found[kind, severity] = value
    if not found:
        return ""
    sign = -1 if measured.metric.better == "higher" else 1
    kind, severity = max(found, key=lambda key: sign * found[key].mean)
    value = found[kind, severity]
    text = (
        f"Under shift, {method_words(study, PREDICTOR, predictor)} is worst at {kind}, severity {severity}: "
        f"{measured.estimate(value)}"
    )
    unshifted = estimate(at_severity(study, frame, kind, UNSHIFTED), measured.key)
    text += f"; unshifted: {measured.estimate(unshifted)}." if unshifted else "."
    return f"{text} {_where_large(found, measured)}".strip()


def _where_large(found: dict[tuple[str, int], Estimate], measured: Quantity) -> str:
    """Say from which severity on the error is large: surely where its interval says so."""
    if not measured.metric.calibration_error:
        return ""
    several = any(value.ends is not None for value in found.values())
    first: dict[int, list[str]] = {}
    below = []
    for kind in dict.fromkeys(kind for kind, _ in found):
        of_kind = {severity: value for (name, severity), value in found.items() if name == kind}
        large = [
            severity
            for severity, value in of_kind.items()
            if (value.mean if not several else -math.inf if value.ends is None else value.ends[0]) > MUCH
        ]
        if large:
            first.setdefault(min(large), []).append(kind)
        elif all(value.mean < MUCH for value in of_kind.values()):
            below.append(kind)
    sure = "its whole interval lies" if several else "in the only seed it lies"
    reached = "; ".join(f"severity {severity} of {', '.join(first[severity])}" for severity in sorted(first))
    text = f"{sure.capitalize()} above 5 points first at {reached}." if first else ""
    return text + (f" Its mean stays below 5 points at every severity of {', '.join(below)}." if below else "")


def _basis(study: StudyResults) -> str:
    cells, seeds = study.record.cells, study.record.axes.get("seed", (None,))
    text = f"{cells.finished} of {cells.all} cells finished" + (f", {cells.failed} failed" if cells.failed else "")
    if len(seeds) == 1:
        return f"{text}. There is one seed: no interval can be given, and nothing tells chance from effect."
    return (
        f"{text}; {len(seeds)} seeds. In brackets: 95% intervals by Student's t over seeds, each seed averaged over "
        "the settings first. They say how much another start, draw of records and noise would change the mean, on "
        "the same data; they do not speak of other hospitals."
    )


def _unspent(study: StudyResults) -> list[str]:
    """Say where methods spent so much less than was asked that the budget asked does not compare them."""
    asked = [name for name in study.record.separate if name == ASKED]
    frame, sentences = study.results, []
    if not asked or "epsilon" not in frame.columns:
        return []
    for at in combinations(study, (*asked, *(name for name in study.baseline if name != PREDICTOR))):
        spent = rows_at(frame, at)["epsilon"].max(skipna=False)
        if spent < MOST_OF_IT * float(at[ASKED]):
            method = setting_words(study, {name: label for name, label in at.items() if name != ASKED})
            sentences.append(
                f"{_capital(method or 'every method')} spent at most ε {rounded_up(float(spent))} of the {at[ASKED]} "
                "that it was allowed: what it lost there, it did not lose to that budget."
            )
    return sentences


def _cautions(study: StudyResults, found: list[Difference]) -> list[str]:
    cautions = []
    settings, frame = study.settings, study.results
    if "insecure_seed" in (settings.get("simulation") or {}):
        cautions.append(
            "Seeded: not private. The noise came from a seed that is written in a file; the epsilons are what the same "
            "runs without it would cost."
        )
    if study.record.cells.finished < study.record.cells.all:
        missing = study.record.cells.all - study.record.cells.finished
        cautions.append(f"{missing} cells are missing: means go over the settings of the seeds that have most of them.")
    tried = settings.get("configurations_tried")
    if isinstance(tried, int) and tried > 1:
        cautions.append(
            f"{tried} configurations were tried on these records before; choosing between them flatters the chosen one "
            "and is not in the epsilons."
        )
    cautions += _unspent(study)
    if len(found) > MANY_DIFFERENCES:
        cautions.append(
            f"{len(found)} differences are shown, each at 95% on its own: about one in twenty excludes 0 by chance."
        )
    source = (settings.get("data") or {}).get("source")
    name = source.get("kind") if isinstance(source, dict) else source
    if isinstance(name, str) and not any(axis.startswith(("data", "held_out")) for axis in study.axes):
        cautions.append(f"All cells used one data set ({name}).")
    if "warnings" in frame.columns:
        per_cell = frame.drop_duplicates("cell")["warnings"]
        if warned := int((per_cell > 0).sum()):
            cautions.append(f"{warned} of {len(per_cell)} runs ended with warnings, which their summaries list.")
    return cautions
