"""A study's figures: methods by axis, places, shifts and their severity, uncertainty elsewhere, and cost."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd

from fl_dpbayes.report.figure_style import figure_name
from fl_dpbayes.report.numbers import decimal
from fl_dpbayes.report.study.comparisons import (
    RECALIBRATION,
    UNSHIFTED,
    at_severity,
    compared_axes,
    estimate,
    method_rows,
    shift_kinds,
)
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import Quantity, axis_name, place_words, quantity
from fl_dpbayes.report.study.results import POOLED, PREDICTOR, SEED, SEVERITY, SHIFT, StudyResults
from fl_dpbayes.report.wording import ROLES

OVER_SEEDS = "line: 95% interval over seeds"
OVER_SETTINGS, OVER_AXES = f"mean over settings; {OVER_SEEDS}", f"mean over the other axes; {OVER_SEEDS}"
LEAST_RANGE = 0.02
SITES_PER_PANEL, MOST_SITES, MOST_PLACES = 6, 60, 8
SHORT = {"train": "trains", "held_out": "held out", "shifted": "shifted"}
MEASURES = {"epistemic": "epistemic uncertainty", "total": "total uncertainty"}
WEIGHTS = {
    "none": "as calibrated",
    "label-shift": "weighted, by the site's own labels",
    "label-shift-estimated": "weighted, by its predictions",
}
Select = Callable[[pd.DataFrame], pd.DataFrame]


class Method(NamedTuple):
    """What a line stands for: the key of its colour, its name, and its rows of a table."""

    key: str
    words: str
    rows: pd.DataFrame


class Place(NamedTuple):
    """A place on the horizontal axis: where it is, its name, and how its rows are told."""

    x: float
    label: str
    select: Select


def study_figures(study: StudyResults) -> list[tuple[str, str, list[PanelFigure]]]:
    """Return (heading, note, figures) of each section in reading order; those without a figure are left out."""
    where = f"At {place_words(study.record.where)}."
    promise = "Calibrated on the training sites' test records: the promise holds for sites like those only."
    sections: list[tuple[str, str, list[PanelFigure | None]]] = [
        ("Methods", where, [*_axis_figures(study), *_heterogeneity_figures(study)]),
        ("Sites", "", [_sites_figure(study), _subgroup_figure(study)]),
        ("Shift", "Severity 0 is the same site's records as they are.", [*_shift_figures(study)]),
        ("Uncertainty at new sites", "", [_detection_figure(study), _epistemic_figure(study)]),
        ("Conformal prediction sets", promise, [*_conformal_figures(study)]),
        ("Estimates against known truth", "", [_truth_figure(study)]),
        ("Cost", "", [_seconds_figure(study)]),
    ]
    kept = [(heading, note, [item for item in items if item is not None]) for heading, note, items in sections]
    return [section for section in kept if section[2]]


def _panel(
    title: str, methods: Sequence[Method], places: Sequence[Place], column: str, *, joined: bool = True
) -> list[Panel]:
    """Draw a column's means, a line for each method through its estimates at the places; no panel without any."""
    lines = []
    for method in methods:
        found = [(place, estimate(place.select(method.rows), column)) for place in places]
        marks = tuple(Mark(place.x, place.label, value) for place, value in found if value is not None)
        lines += [Line(method.key, method.words, marks, joined=joined)] if marks else []
    return [Panel(title, "", tuple(lines), tuple(place.label for place in places))] if lines else []


def _labelled(column: str, labels: Sequence[str]) -> list[Place]:
    return [Place(x, label, partial(_where, column=column, label=label)) for x, label in enumerate(labels)]


def _where(rows: pd.DataFrame, column: str, label: str) -> pd.DataFrame:
    return rows[rows[column] == label]


def _methods_of(study: StudyResults, frame: pd.DataFrame, axis: str) -> list[Method]:
    return [
        Method(label, study.words(axis, label), method_rows(study, frame, axis, label)) for label in study.methods(axis)
    ]


def _predictors_of(study: StudyResults, frame: pd.DataFrame) -> list[Method]:
    return [
        Method(name, study.words(PREDICTOR, name), _where(frame, PREDICTOR, name)) for name in study.predictors(frame)
    ]


def _figure(
    measured: Quantity, name: str, title: str, reading: str, panels: Sequence[Panel], grey: str = ""
) -> PanelFigure:
    subtitle = "; ".join(part for part in (measured.drawn_unit, reading) if part)
    return PanelFigure(
        name, f"{measured.short_name} {title}", subtitle, measured.heading, tuple(panels), measured.scale,
        measured.drawn_places, from_zero=measured.metric.calibration_error, grey=grey,
    )  # fmt: skip


def _axis_figures(study: StudyResults) -> list[PanelFigure]:
    """The main metric of each compared axis' methods, one panel for each other axis, or of all settings at once."""
    figures = []
    for axis in compared_axes(study):
        methods = _methods_of(study, study.headline, axis)
        panels: list[Panel] = []
        for name, labels in study.axes.items():
            if name != axis and len(labels) > 1:
                panels += _panel(axis_name(name), methods, _labelled(name, labels), study.metric)
        panels = panels or _panel("all settings", methods, [Place(0, "all", lambda rows: rows)], study.metric)
        if panels:
            title, name = f"by {axis_name(axis)}", figure_name("methods", axis)
            figures.append(_figure(quantity(study.metric), name, title, OVER_AXES, panels))
    return figures


def _heterogeneity_figures(study: StudyResults) -> list[PanelFigure]:
    """The main metric against how much the sites' labels differ, one figure for each compared axis."""
    axis, figures = _heterogeneous_axis(study), []
    for compared in compared_axes(study) if axis is not None else ():
        methods = _methods_of(study, study.headline, compared) if compared != axis else []
        lines = [line for method in methods if (line := _against_heterogeneity(study, method, str(axis))).marks]
        if lines:
            panel = Panel("", "mean total variation between a site's labels and all", tuple(lines))
            title = f"against heterogeneity, by {axis_name(compared)}"
            name = figure_name("heterogeneity", compared)
            figures.append(_figure(quantity(study.metric), name, title, "faint: single seeds", [panel]))
    return figures


def _against_heterogeneity(study: StudyResults, method: Method, axis: str) -> Line:
    marks, scattered = [], []
    for label in study.axes[axis]:
        here = _where(method.rows, axis, label)
        value = estimate(here, study.metric)
        if value is None:
            continue
        x = float(here["heterogeneity"].mean())
        marks.append(Mark(x, f"{x:.3f} ({axis_name(axis)} {label})", value))
        for _, one in here.groupby(SEED):
            single = estimate(one, study.metric)
            scattered += [(float(one["heterogeneity"].mean()), single.mean)] if single else []
    marks.sort(key=lambda mark: mark.x)
    return Line(method.key, method.words, tuple(marks), tuple(scattered))


def _heterogeneous_axis(study: StudyResults) -> str | None:
    """The axis along which the sites' labels differ most; None where they differ alike everywhere."""
    frame, ranges = study.headline, {}
    if frame.empty or "heterogeneity" not in frame.columns:
        return None
    for axis, labels in study.axes.items():
        means = frame.groupby(axis)["heterogeneity"].mean().dropna()
        if len(labels) > 1 and len(means) > 1 and axis != RECALIBRATION:
            ranges[axis] = float(means.max() - means.min())
    widest = max(ranges, key=lambda name: ranges[name], default=None)
    return widest if widest is not None and ranges[widest] > LEAST_RANGE else None


def _sites_figure(study: StudyResults) -> PanelFigure | None:
    """The main metric at every site: a panel per site where sites change their roles, else per role."""
    frame = study.results
    if frame.empty:
        return None
    frame = frame[~frame["site"].str.contains(":", regex=False)]
    if SEVERITY in frame.columns:
        frame = frame[frame[SEVERITY].isna()]
    sites = list(dict.fromkeys(frame["site"]))[:MOST_SITES]
    panels: list[Panel] = []
    if sites and frame.groupby("site")["role"].nunique().gt(1).any():
        for site in sites:
            here = _where(frame, "site", site)
            roles = [role for role in SHORT if (here["role"] == role).any()]
            places = [Place(x, SHORT[role], partial(_where, column="role", label=role)) for x, role in enumerate(roles)]
            panels += _panel(site, _predictors_of(study, here), places, study.metric, joined=False)
    else:
        for role in SHORT:
            of_role = _where(frame, "role", role)
            names = [site for site in sites if (of_role["site"] == site).any()]
            for first in range(0, len(names), SITES_PER_PANEL):
                here = of_role[of_role["site"].isin(names[first : first + SITES_PER_PANEL])]
                places = _labelled("site", names[first : first + SITES_PER_PANEL])
                panels += _panel(ROLES[role], _predictors_of(study, here), places, study.metric, joined=False)
    return _figure(quantity(study.metric), "sites", "site by site", OVER_SETTINGS, panels) if panels else None


def _subgroup_figure(study: StudyResults) -> PanelFigure | None:
    """The main metric by subgroup of the records, one panel for each attribute."""
    frame = study.subgroups
    if frame.empty or not {"attribute", "value", study.metric} <= set(frame.columns):
        return None
    frame = _where(frame, "site", study.record.where)
    panels: list[Panel] = []
    for attribute in dict.fromkeys(frame["attribute"]):
        here = _where(frame, "attribute", attribute)
        places = _labelled("value", list(dict.fromkeys(here["value"])))
        panels += _panel(str(attribute), _predictors_of(study, here), places, study.metric, joined=False)
    title = f"by subgroup, {place_words(study.record.where)}"
    return _figure(quantity(study.metric), "subgroups", title, OVER_SETTINGS, panels) if panels else None


def _shift_figures(study: StudyResults) -> list[PanelFigure]:
    """The main metric by severity, a panel per kind of shift and a figure per compared axis."""
    figures, reading = [], f"across: severity, 0 is unshifted; {OVER_SEEDS}"
    reference = "ece_if_calibrated" if study.metric == "ece" else ""
    for axis in compared_axes(study):
        panels: list[Panel] = []
        for kind in shift_kinds(study, study.results):
            places = _severities(study, study.results, kind)
            level = [(place.x, estimate(place.select(study.results), reference)) for place in places if reference]
            methods = _methods_of(study, study.results, axis)
            panels += _panel_by_severity(
                kind, methods, places, study.metric, [(x, one.mean) for x, one in level if one]
            )
        if panels:
            title, grey = f"under shift, by {axis_name(axis)}", "if calibrated, at this n" if reference else ""
            figures.append(_figure(quantity(study.metric), figure_name("shift", axis), title, reading, panels, grey))
    return figures


def _severities(study: StudyResults, frame: pd.DataFrame, kind: str) -> list[Place]:
    known = sorted({int(value) for value in _where(frame, SHIFT, kind)[SEVERITY].dropna()})
    return [
        Place(severity, str(severity), partial(at_severity, study, kind=kind, severity=severity))
        for severity in (UNSHIFTED, *known)
    ]


def _panel_by_severity(
    kind: str,
    methods: Sequence[Method],
    places: Sequence[Place],
    column: str,
    level: Sequence[tuple[float, float]] = (),
) -> list[Panel]:
    ticks = tuple(str(severity) for severity in range(int(places[-1].x) + 1))
    return [Panel(panel.title, "", panel.lines, ticks, tuple(level)) for panel in _panel(kind, methods, places, column)]


def _by_severity_or_place(
    study: StudyResults, frame: pd.DataFrame, methods: Sequence[Method], column: str
) -> list[Panel]:
    panels: list[Panel] = []
    for kind in shift_kinds(study, frame):
        panels += _panel_by_severity(kind, methods, _severities(study, frame, kind), column)
    sites = [] if panels else [site for site in dict.fromkeys(frame["site"]) if not str(site).startswith(POOLED)]
    for first in range(0, len(sites), MOST_PLACES):
        places = _labelled("site", sites[first : first + MOST_PLACES])
        panels += _panel("each site", methods, places, column, joined=False)
    return panels


def _detection_figure(study: StudyResults) -> PanelFigure | None:
    """How well uncertainty tells a place's records from those of the training sites."""
    frame = study.shift_detection
    if frame.empty or not {"measure", "auroc"} <= set(frame.columns):
        return None
    methods = [Method(name, words, _where(frame, "measure", name)) for name, words in MEASURES.items()]
    panels = _by_severity_or_place(study, frame, methods, "auroc")
    if not panels:
        return None
    known_to = ""
    if {"low", "high"} <= set(frame.columns):
        # What sums leave open of the order of records.
        known_to = f", each run's known to ±{decimal(float((frame['high'] - frame['low']).max()) / 2)}"
    return PanelFigure(
        "shift-detection", "Does uncertainty notice another site?",
        f"AUROC against training sites' records; .5 is chance{known_to}", "AUROC", tuple(panels), level=0.5,
        grey="chance",
    )  # fmt: skip


def _epistemic_figure(study: StudyResults) -> PanelFigure | None:
    """The mean epistemic uncertainty by severity."""
    predictor, frame = study.main_predictor(), study.results
    if predictor is None or "epistemic" not in frame.columns:
        return None
    methods = [Method(predictor, study.words(PREDICTOR, predictor), _where(frame, PREDICTOR, predictor))]
    panels: list[Panel] = []
    for kind in shift_kinds(study, frame):
        panels += _panel_by_severity(kind, methods, _severities(study, frame, kind), "epistemic")
    if not panels:
        return None
    return PanelFigure(
        "epistemic", "Disagreement of the posterior's samples", f"thousandths of a nat; across: severity; {OVER_SEEDS}",
        "Mean epistemic uncertainty, nats / 1000", tuple(panels), 1000.0, 2, from_zero=True,
    )  # fmt: skip


def _conformal_figures(study: StudyResults) -> list[PanelFigure]:
    """Coverage and size of conformal prediction sets by severity, or at each place."""
    frame = study.conformal
    if frame.empty or not {"weights", "level", "coverage", "size"} <= set(frame.columns):
        return []
    level = float(frame["level"].mode().iloc[0])
    frame = frame[(frame["level"] == level) & (frame[PREDICTOR] == study.main_predictor())]
    methods = [
        Method(name, WEIGHTS.get(name, name), _where(frame, "weights", name))
        for name in dict.fromkeys(frame["weights"])
    ]
    sets = f"{100 * level:g}% prediction sets"
    coverage, size = (tuple(_by_severity_or_place(study, frame, methods, key)) for key in ("coverage", "size"))
    figures = [
        PanelFigure(
            "conformal-coverage", f"Coverage of {sets}", "% of records whose set holds their label", "Coverage, %",
            coverage, 100.0, 1, level=level, grey="promised",
        ),
        PanelFigure(
            "conformal-size", f"Size of {sets}", "mean number of classes in a set", "Classes in a set", size, 1.0, 2,
            from_zero=True,
        ),
    ]  # fmt: skip
    return [figure for figure in figures if figure.panels]


def _truth_figure(study: StudyResults) -> PanelFigure | None:
    """Estimated calibration errors against the true ones, where records are made up and their truth is known."""
    frame, panels = study.results, []
    for key, truth, title in (("rms_debiased", "rms_true", "debiased RMS"), ("ece", "ece_true", "ECE (15 bins)")):
        if not {key, truth} <= set(frame.columns):
            continue
        known = frame[frame[key].notna() & frame[truth].notna() & ~frame["site"].str.startswith("mean:")]
        lines = []
        for method in _predictors_of(study, known):
            marks: list[Mark] = []
            for site, here in method.rows.groupby("site", sort=False):
                value, x = estimate(here, key), estimate(here, truth)
                if value is not None and x is not None and len(marks) < MOST_SITES:
                    marks.append(Mark(100 * x.mean, f"{site}: {100 * x.mean:.2f}", value))
            pairs = zip(method.rows[truth], method.rows[key], strict=True)
            scattered = tuple((100 * float(x), float(y)) for x, y in pairs)
            lines.append(Line(method.key, method.words, tuple(marks), scattered, joined=False))
        if lines:
            panels.append(Panel(title, "true error, points", tuple(lines), diagonal=True))
    if not panels:
        return None
    return PanelFigure(
        "truth", "Estimated against true calibration error", "points; faint: single runs; dashed: equal",
        "Estimated error, points", tuple(panels), 100.0, 2, from_zero=True, grey="estimate = truth",
    )  # fmt: skip


def _seconds_figure(study: StudyResults) -> PanelFigure | None:
    """How long a cell takes by each axis."""
    frame = study.results
    if frame.empty or "seconds" not in frame.columns:
        return None
    methods, panels = [Method("", "seconds of a cell", frame.drop_duplicates("cell"))], list[Panel]()
    for name, labels in study.axes.items():
        if len(labels) > 1:
            panels += _panel(axis_name(name), methods, _labelled(name, labels), "seconds")
    if not panels:
        return None
    return PanelFigure(
        "seconds", "Seconds of a cell", OVER_AXES, "Seconds", tuple(panels), 1.0, 1, from_zero=True
    )  # fmt: skip
