"""What a study found, in sentences that claim no more than its intervals allow."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from fl_dpbayes.report.answer import SEEDED
from fl_dpbayes.report.numbers import rounded_up
from fl_dpbayes.report.study import comparisons as compared
from fl_dpbayes.report.study.comparisons import (
    BASELINE,
    Difference,
    at_severity,
    estimate,
    setting_words,
)
from fl_dpbayes.report.study.quantities import Estimate, Quantity, place_words, quantity
from fl_dpbayes.report.study.results import (
    PREDICTOR,
    SEVERITY,
    SHIFT,
    UNSHIFTED,
    StudyResults,
    rows_at,
)

MANY_DIFFERENCES = 5
MOST_OF_IT = 0.9  # of the epsilon asked
ASKED = "privacy.epsilon"


class StudyAnswer(NamedTuple):
    """The opening of the page.

    `lead` is on the methods that are compared first, `differences` has a sentence per compared
    axis, `shifts` is on the worst shift, `basis` on what was run and what the intervals mean;
    `cautions` weaken a conclusion, the gravest first.
    """

    lead: str
    differences: tuple[str, ...]
    shifts: str
    basis: str
    cautions: tuple[str, ...]


def study_answer(study: StudyResults) -> StudyAnswer:
    """Say what a study found."""
    found = compared.differences(study, study.metric)
    # One paragraph for each axis; for each of its methods where settings are kept apart.
    paragraphs = groupby(found, lambda one: (one.axis, one.method if one.at else "", bool(one.at)))
    said = tuple(
        _apart(study, axis, method, list(rows)) if apart else _differences(study, axis, list(rows))
        for (axis, method, apart), rows in paragraphs
    )
    return StudyAnswer(
        _lead(study), said, _shifts(study), _basis(study), tuple(_cautions(study, found))
    )


def _words(study: StudyResults, axis: str, label: str) -> str:
    return label if axis == BASELINE else setting_words(study, {axis: label})


def _apart(study: StudyResults, axis: str, method: str, found: list[Difference]) -> str:
    """Say how a method differs from its baseline at each setting by itself."""
    measured = quantity(study.metric)
    baseline = "the baseline" if axis == BASELINE else _words(study, axis, found[0].baseline)
    unclear = (", no clear difference," if _unclear(one.value) else "" for one in found)
    parts = (
        f"{_signed(measured, one.value)}{said} at {one.at}"
        for one, said in zip(found, unclear, strict=True)
    )
    start = _capital(
        f"{_words(study, axis, method)} against {baseline} ({_pairs(found[0].value)} each)"
    )
    return f"{start}: {measured.noun} {'; '.join(parts)}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _signed(measured: Quantity, value: Estimate) -> str:
    return f"{'+' if value.mean >= 0 else ''}{measured.estimate(value)}"


def _unclear(value: Estimate) -> bool:
    return value.ends is not None and value.ends[0] <= 0 <= value.ends[1]


def _baseline_lead(study: StudyResults) -> str:
    measured = quantity(study.metric)
    parts = [
        f"{measured.estimate(one.value)}{f' at {words}' if (words := setting_words(study, one.at)) else ''}"
        for one in compared.beside_baseline(study, study.metric)
        if one.method == study.baseline
    ]
    place = place_words(study.record.where) + _focus(study, PREDICTOR)
    if not parts:
        return f"The baseline was not measured by {measured.key} at {place}."
    verb = "is off by" if measured.key == "rms_debiased" else f"has {measured.noun}"
    return (
        f"At {place} the baseline, {setting_words(study, study.baseline)}, {verb} "
        f"{'; '.join(parts)}."
    )


def _lead(study: StudyResults) -> str:
    if study.baseline:
        return _baseline_lead(study)
    measured, known = quantity(study.metric), dict[str, Estimate]()
    place = place_words(study.record.where)
    for axis in compared.compared_axes(study)[:1]:
        place += _focus(study, axis)
        for label in study.methods(axis):
            if value := estimate(
                compared.method_rows(study, study.in_focus(axis), axis, label), measured.key
            ):
                known[_words(study, axis, label)] = value
    if not known:
        return f"Nothing was measured by {measured.key} at {place}."
    most = max(value.settings for value in known.values())
    # Methods that were not measured everywhere are not compared like with like here.
    parts = {
        words: measured.estimate(value)
        + (f" over {value.settings} of {most} settings" if value.settings < most else "")
        for words, value in known.items()
    }
    if measured.key == "rms_debiased":
        off = [
            f"{words}{' by' if number else ' is off by'} {parts[words]}"
            for number, words in enumerate(parts)
        ]
        return f"At {place} {'; '.join(off)}."
    return (
        f"At {place} {measured.noun} is "
        f"{'; '.join(f'with {words} {text}' for words, text in parts.items())}."
    )


def _focus(study: StudyResults, axis: str) -> str:
    parts = [_words(study, name, label) for name, label in study.focus(axis).items()]
    return f", with {' and '.join(parts)}," if parts else ""


def _differences(study: StudyResults, axis: str, found: list[Difference]) -> str:
    measured = quantity(study.metric)
    parts = [f"{_words(study, axis, one.method)} {_verdict(measured, one.value)}" for one in found]
    baseline = _words(study, axis, found[0].baseline) + _focus(study, axis).rstrip(",")
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
        return _signed(measured, value)
    if _unclear(value):
        return f"shows no clear difference, {_signed(measured, value)}"
    if value.mean > 0:
        return f"raises {measured.noun} by {measured.estimate(value)}"
    turned = replace(value, mean=-value.mean, ends=(-value.ends[1], -value.ends[0]))
    return f"lowers {measured.noun} by {measured.estimate(turned)}"


def _shifts(study: StudyResults) -> str:
    measured, predictor, found = (
        quantity(study.metric),
        study.main_predictor(),
        dict[tuple[str, int], Estimate](),
    )
    kinds = compared.shift_kinds(study, study.results)
    if not kinds or not measured.metric.better or predictor is None:
        return ""
    frame = rows_at(study.results, {PREDICTOR: predictor})
    for kind in kinds:
        for severity in sorted(
            {int(value) for value in rows_at(frame, {SHIFT: kind})[SEVERITY].dropna()}
        ):
            if value := estimate(at_severity(study, frame, kind, severity), measured.key):
                found[kind, severity] = value
    if not found:
        return ""
    sign = -1 if measured.metric.better == "higher" else 1
    kind, severity = max(found, key=lambda key: sign * found[key].mean)
    unshifted = estimate(at_severity(study, frame, kind, UNSHIFTED), measured.key)
    beside = f"; unshifted: {measured.estimate(unshifted)}" if unshifted else ""
    where = (
        f"Under shift, {_words(study, PREDICTOR, predictor)} is worst at {kind}, "
        f"severity {severity}"
    )
    return f"{where}: {measured.estimate(found[kind, severity])}{beside}."


def _basis(study: StudyResults) -> str:
    cells, seeds = study.record.cells, study.record.axes.get("seed", (None,))
    text = f"{cells.finished} of {cells.all} cells finished" + (
        f", {cells.failed} failed" if cells.failed else ""
    )
    if len(seeds) == 1:
        return (
            f"{text}. There is one seed: no interval can be given, and nothing tells chance "
            "from effect."
        )
    return (
        f"{text}; {len(seeds)} seeds. In brackets: 95% intervals by Student's t over seeds, "
        "each seed averaged over "
        "the settings first. They say how much another start, draw of records and noise "
        "would change the mean, on "
        "the same data; they do not speak of other hospitals."
    )


def _unspent(study: StudyResults) -> Iterator[str]:
    """Say where methods spent so much less than was asked that the budget asked does not compare them."""
    if ASKED not in study.record.separate or "epsilon" not in study.results.columns:
        return
    for at in compared.combinations(
        study, (ASKED, *(name for name in study.baseline if name != PREDICTOR))
    ):
        spent = rows_at(study.results, at)["epsilon"].max(skipna=False)
        if spent < MOST_OF_IT * float(at[ASKED]):
            method = setting_words(
                study, {name: label for name, label in at.items() if name != ASKED}
            )
            text = (
                f"{method or 'every method'} spent at most ε {rounded_up(float(spent))} of the "
                f"{at[ASKED]} that it "
            )
            yield _capital(
                f"{text}was allowed: what it lost there, it did not lose to that budget."
            )


def _cautions(study: StudyResults, found: list[Difference]) -> Iterator[str]:
    settings, cells = study.settings, study.record.cells
    if "insecure_seed" in (settings.get("simulation") or {}):
        yield SEEDED
    if missing := cells.all - cells.finished:
        yield (
            f"{missing} cells are missing: means go over the settings of the seeds that have "
            "most of them."
        )
    tried = settings.get("configurations_tried")
    if isinstance(tried, int) and tried > 1:
        flattered = "choosing between them flatters the chosen one and is not in the epsilons."
        yield f"{tried} configurations were tried on these records before; {flattered}"
    yield from _unspent(study)
    if len(found) > MANY_DIFFERENCES:
        yield (
            f"{len(found)} differences are shown, each at 95% on its own: about one in twenty "
            "excludes 0 by chance."
        )
    source = (settings.get("data") or {}).get("source")
    name = source.get("kind") if isinstance(source, dict) else source
    if isinstance(name, str) and not any(
        axis.startswith(("data", "held_out")) for axis in study.axes
    ):
        yield f"All cells used one data set ({name})."
    if "warnings" in study.results.columns:
        per_cell = study.results.drop_duplicates("cell")["warnings"]
        if warned := int((per_cell > 0).sum()):
            yield (
                f"{warned} of {len(per_cell)} runs ended with warnings, which their summaries list."
            )
