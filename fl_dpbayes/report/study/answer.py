"""What a study found, in sentences that claim no more than its intervals allow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fl_dpbayes.report.answer import SEEDED
from fl_dpbayes.report.numbers import rounded_up
from fl_dpbayes.report.study import comparisons
from fl_dpbayes.report.study.comparisons import BASELINE, Difference, estimate, setting_words
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
# A share of the epsilon asked.
MOST_OF_EPSILON = 0.9
EPSILON_ASKED = "privacy.epsilon"


@dataclass(frozen=True)
class StudyAnswer:
    """The opening of the page.

    Attributes:
        lead: On the methods that are compared first.
        differences: A sentence for each compared axis.
        shifts: On the worst shift.
        basis: What was run and what the intervals mean.
        cautions: What weakens a conclusion, the gravest first.
    """

    lead: str
    differences: tuple[str, ...]
    shifts: str
    basis: str
    cautions: tuple[str, ...]


def study_answer(study: StudyResults) -> StudyAnswer:
    """Say what a study found."""
    differences = comparisons.differences(study, study.metric)
    return StudyAnswer(
        lead=_baseline_lead(study) if study.baseline else _lead(study),
        differences=tuple(_difference_paragraphs(study, differences)),
        shifts=_worst_shift(study),
        basis=_basis(study),
        cautions=tuple(_cautions(study, differences)),
    )


def _words(study: StudyResults, axis: str, label: str) -> str:
    return label if axis == BASELINE else setting_words(study, {axis: label})


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _signed(measured: Quantity, value: Estimate) -> str:
    sign = "+" if value.mean >= 0 else ""
    return f"{sign}{measured.estimate(value)}"


def _holds_zero(value: Estimate) -> bool:
    return value.ends is not None and value.ends[0] <= 0 <= value.ends[1]


def _lead(study: StudyResults) -> str:
    """Say the error of each method of the axis that is compared first."""
    measured = quantity(study.metric)
    place = place_words(study.record.where)
    estimates: dict[str, Estimate] = {}
    for axis in comparisons.compared_axes(study)[:1]:
        place += _focus(study, axis)
        for label in study.methods(axis):
            rows = comparisons.method_rows(study, study.in_focus(axis), axis, label)
            value = estimate(rows, measured.key)
            if value is not None:
                estimates[_words(study, axis, label)] = value
    if not estimates:
        return f"Nothing was measured by {measured.key} at {place}."
    most_settings = max(value.settings for value in estimates.values())
    texts = {}
    for words, value in estimates.items():
        text = measured.estimate(value)
        # Methods that were not measured everywhere are not compared like with like here.
        if value.settings < most_settings:
            text += f" over {value.settings} of {most_settings} settings"
        texts[words] = text
    if measured.key == "rms_debiased":
        (first, first_text), *further = texts.items()
        parts = [f"{first} is off by {first_text}"]
        parts += [f"{words} by {text}" for words, text in further]
        return f"At {place} {'; '.join(parts)}."
    parts = [f"with {words} {text}" for words, text in texts.items()]
    return f"At {place} {measured.noun} is {'; '.join(parts)}."


def _baseline_lead(study: StudyResults) -> str:
    """Say the error of the declared baseline at each setting that is kept apart."""
    measured = quantity(study.metric)
    place = place_words(study.record.where) + _focus(study, PREDICTOR)
    parts = []
    for row in comparisons.beside_baseline(study, study.metric):
        if row.method == study.baseline:
            words = setting_words(study, row.setting)
            at = f" at {words}" if words else ""
            parts.append(f"{measured.estimate(row.value)}{at}")
    if not parts:
        return f"The baseline was not measured by {measured.key} at {place}."
    verb = "is off by" if measured.key == "rms_debiased" else f"has {measured.noun}"
    return (
        f"At {place} the baseline, {setting_words(study, study.baseline)}, {verb} "
        f"{'; '.join(parts)}."
    )


def _focus(study: StudyResults, axis: str) -> str:
    parts = [_words(study, name, label) for name, label in study.focus(axis).items()]
    return f", with {' and '.join(parts)}," if parts else ""


def _difference_paragraphs(study: StudyResults, differences: Sequence[Difference]) -> Iterator[str]:
    """Write a paragraph for each axis; for each of its methods where settings are kept apart."""

    def paragraph(difference: Difference) -> tuple[str, str]:
        return difference.axis, difference.method if difference.setting else ""

    for (axis, method), group in groupby(differences, paragraph):
        rows = list(group)
        if method:
            yield _by_setting(study, axis=axis, method=method, differences=rows)
        else:
            yield _by_method(study, axis, rows)


def _by_setting(
    study: StudyResults, axis: str, method: str, differences: Sequence[Difference]
) -> str:
    """Say how a method differs from its baseline at each setting by itself."""
    measured = quantity(study.metric)
    first = differences[0]
    baseline = "the baseline" if axis == BASELINE else _words(study, axis, first.baseline)
    parts = []
    for difference in differences:
        unclear = ", no clear difference," if _holds_zero(difference.value) else ""
        parts.append(f"{_signed(measured, difference.value)}{unclear} at {difference.setting}")
    method_words = _capital(_words(study, axis, method))
    return (
        f"{method_words} against {baseline} ({_pairs(first.value)} each): "
        f"{measured.noun} {'; '.join(parts)}."
    )


def _by_method(study: StudyResults, axis: str, differences: Sequence[Difference]) -> str:
    """Say how each method of an axis differs from the baseline."""
    measured = quantity(study.metric)
    baseline = _words(study, axis, differences[0].baseline) + _focus(study, axis).rstrip(",")
    parts = [
        f"{_words(study, axis, difference.method)} {_verdict(measured, difference.value)}"
        for difference in differences
    ]
    pairs = [_pairs(difference.value) for difference in differences]
    if len(set(pairs)) == 1:
        return f"Compared with {baseline} ({pairs[0]}): {'; '.join(parts)}."
    parts = [f"{part} ({basis})" for part, basis in zip(parts, pairs, strict=True)]
    return f"Compared with {baseline}: {'; '.join(parts)}."


def _pairs(value: Estimate) -> str:
    """Say over how many seeds and settings a difference goes."""
    text = "one seed" if value.seeds == 1 else f"{value.seeds} seeds"
    if value.settings > 1:
        text += f" × {value.settings} settings"
    if value.seeds == 1:
        text += ", hence no interval"
    return text


def _verdict(measured: Quantity, value: Estimate) -> str:
    if value.ends is None:
        return _signed(measured, value)
    if _holds_zero(value):
        return f"shows no clear difference, {_signed(measured, value)}"
    if value.mean > 0:
        return f"raises {measured.noun} by {measured.estimate(value)}"
    low, high = value.ends
    decrease = replace(value, mean=-value.mean, ends=(-high, -low))
    return f"lowers {measured.noun} by {measured.estimate(decrease)}"


def _worst_shift(study: StudyResults) -> str:
    """Name the shift and severity at which the main predictor does worst."""
    measured = quantity(study.metric)
    predictor = study.main_predictor()
    if not measured.metric.better or predictor is None:
        return ""
    rows = comparisons.by_severity(study, rows_at(study.results, {PREDICTOR: predictor}))
    values = {
        (kind, severity): value
        for kind, of_kind in (rows.groupby(SHIFT, sort=False) if len(rows) else ())
        for severity, value in comparisons.estimates(of_kind, SEVERITY, measured.key).items()
    }
    shifted = {key: value for key, value in values.items() if key[1] != str(UNSHIFTED)}
    if not shifted:
        return ""
    sign = -1 if measured.metric.better == "higher" else 1
    kind, severity = max(shifted, key=lambda key: sign * shifted[key].mean)
    worst = measured.estimate(shifted[kind, severity])
    unshifted = values.get((kind, str(UNSHIFTED)))
    comparison = f"; unshifted: {measured.estimate(unshifted)}" if unshifted else ""
    return (
        f"Under shift, {_words(study, PREDICTOR, predictor)} is worst at {kind}, "
        f"severity {severity}: {worst}{comparison}."
    )


def _basis(study: StudyResults) -> str:
    cells = study.record.cells
    seeds = study.record.axes.get("seed", (None,))
    failed = f", {cells.failed} failed" if cells.failed else ""
    text = f"{cells.finished} of {cells.all} cells finished{failed}"
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


def _cautions(study: StudyResults, differences: Sequence[Difference]) -> Iterator[str]:
    if "insecure_seed" in (study.settings.get("simulation") or {}):
        yield SEEDED
    missing = study.record.cells.all - study.record.cells.finished
    if missing:
        yield (
            f"{missing} cells are missing: means go over the settings of the seeds that have "
            "most of them."
        )
    tried = study.settings.get("configurations_tried")
    if isinstance(tried, int) and tried > 1:
        yield (
            f"{tried} configurations were tried on these records before; choosing between them "
            "flatters the chosen one and is not in the epsilons."
        )
    yield from _unspent_budgets(study)
    if len(differences) > MANY_DIFFERENCES:
        yield (
            f"{len(differences)} differences are shown, each at 95% on its own: about one in "
            "twenty excludes 0 by chance."
        )
    data_set = _single_data_set(study)
    if data_set is not None:
        yield f"All cells used one data set ({data_set})."
    if "warnings" in study.results.columns:
        per_cell = study.results.drop_duplicates("cell")["warnings"]
        warned = int((per_cell > 0).sum())
        if warned:
            yield (
                f"{warned} of {len(per_cell)} runs ended with warnings, which their summaries list."
            )


def _unspent_budgets(study: StudyResults) -> Iterator[str]:
    """Say where methods spent so much less than asked that the budget does not compare them."""
    if EPSILON_ASKED not in study.record.separate or "epsilon" not in study.results.columns:
        return
    axes = (EPSILON_ASKED, *(name for name in study.baseline if name != PREDICTOR))
    for labels, rows in comparisons.groups(study, study.results, axes):
        # A run whose epsilon is not known is never said to have spent little.
        spent = float(rows["epsilon"].max(skipna=False))
        if spent < MOST_OF_EPSILON * float(labels[EPSILON_ASKED]):
            method = setting_words(
                study, {name: label for name, label in labels.items() if name != EPSILON_ASKED}
            )
            yield _capital(
                f"{method or 'every method'} spent at most ε {rounded_up(spent)} of the "
                f"{labels[EPSILON_ASKED]} that it was allowed: what it lost there, it did not "
                "lose to that budget."
            )


def _single_data_set(study: StudyResults) -> str | None:
    """Return the name of the data set of all cells, None if an axis varies it."""
    if any(axis.startswith(("data", "held_out")) for axis in study.axes):
        return None
    source = (study.settings.get("data") or {}).get("source")
    name = source.get("kind") if isinstance(source, dict) else source
    return name if isinstance(name, str) else None
