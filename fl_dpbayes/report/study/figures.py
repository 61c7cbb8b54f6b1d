"""A study's figures: methods by axis, places, shifts and their severity, uncertainty elsewhere, prediction sets."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from fl_dpbayes.report.figure_style import figure_name
from fl_dpbayes.report.measure_tables import WEIGHTS
from fl_dpbayes.report.numbers import decimal
from fl_dpbayes.report.study.comparisons import (
    at_severity,
    compared_axes,
    estimate,
    method_rows,
    shift_kinds,
)
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import axis_name, place_words, quantity
from fl_dpbayes.report.study.results import (
    POOLED,
    PREDICTOR,
    SEVERITY,
    SHIFT,
    UNSHIFTED,
    StudyResults,
    rows_at,
)
from fl_dpbayes.report.wording import ROLES, SITE_ROLES

OVER_SEEDS = "line: 95% interval over seeds"
OVER_SETTINGS, OVER_AXES = (
    f"mean over settings; {OVER_SEEDS}",
    f"mean over the other axes; {OVER_SEEDS}",
)
# More panels on one axis cannot be told apart.
MOST_SHIFTS = 6
SITES_PER_PANEL, MOST_SITES, MOST_PLACES = 6, 60, 8
MEASURES = {"epistemic": "epistemic uncertainty", "total": "total uncertainty"}


class Method(NamedTuple):
    """What a line stands for: the key of its colour, its name, and its rows of a table."""

    key: str
    words: str
    rows: pd.DataFrame


class Place(NamedTuple):
    """A place on the horizontal axis: where it is, its name, and how its rows are told."""

    x: int
    label: str
    select: Callable[[pd.DataFrame], pd.DataFrame]


def study_figures(study: StudyResults) -> list[tuple[str, str, list[PanelFigure]]]:
    """Return (heading, note, figures) of each section in reading order.

    Those without a figure are left out.
    """
    where = f"At {place_words(study.record.where)}."
    promise = (
        "Calibrated on the training sites' test records: the promise holds for sites "
        "like those only."
    )
    sections = [
        ("Methods", where, [*_axis_figures(study)]),
        ("Sites", "", [_sites_figure(study), _subgroup_figure(study)]),
        ("Shift", "Severity 0 is the same site's records as they are.", [*_shift_figures(study)]),
        ("Uncertainty at new sites", "", [_detection_figure(study)]),
        ("Conformal prediction sets", promise, [*_conformal_figures(study)]),
    ]
    kept = [
        (heading, note, [item for item in items if item.panels])
        for heading, note, items in sections
    ]
    return [section for section in kept if section[2]]


def _panel(
    title: str,
    methods: Sequence[Method],
    places: Sequence[Place],
    column: str,
    *,
    joined: bool = True,
) -> list[Panel]:
    """Draw a column's means, a line for each method through its estimates at the places.

    No panel without any.
    """
    lines = []
    for method in methods:
        found = [(place, estimate(place.select(method.rows), column)) for place in places]
        if marks := tuple(
            Mark(place.x, place.label, value) for place, value in found if value is not None
        ):
            lines.append(Line(method.key, method.words, marks, joined=joined))
    labels = {place.x: place.label for place in places}
    ticks = tuple(labels.get(x, str(x)) for x in range(max(labels, default=0) + 1))
    return [Panel(title, tuple(lines), ticks)] if lines else []


def _labelled(column: str, labels: Sequence[str]) -> list[Place]:
    return [
        Place(x, label, partial(rows_at, labels={column: label})) for x, label in enumerate(labels)
    ]


def _methods_of(study: StudyResults, frame: pd.DataFrame, axis: str) -> list[Method]:
    labels = study.methods(axis)
    return [
        Method(label, study.words(axis, label), method_rows(study, frame, axis, label))
        for label in labels
    ]


def _predictors_of(study: StudyResults, frame: pd.DataFrame) -> list[Method]:
    return _named(
        PREDICTOR, {name: study.words(PREDICTOR, name) for name in study.predictors(frame)}, frame
    )


def _named(column: str, words: dict[str, str], frame: pd.DataFrame) -> list[Method]:
    return [Method(name, text, rows_at(frame, {column: name})) for name, text in words.items()]


def _figure(
    study: StudyResults, name: str, title: str, reading: str, panels: Sequence[Panel]
) -> PanelFigure:
    measured = quantity(study.metric)
    metric, share = measured.metric, measured.share
    return PanelFigure(
        name,
        f"{measured.short_name} {title}",
        "; ".join(part for part in (measured.unit, reading) if part),
        f"{metric.name}, points" if share else metric.name,
        tuple(panels),
        100.0 if share else 1.0,
        2 if share else 4,
        from_zero=metric.calibration_error,
    )


def _axis_figures(study: StudyResults) -> Iterator[PanelFigure]:
    """The main metric of each compared axis' methods, one panel for each other axis, or of all settings at once."""
    for axis in compared_axes(study):
        methods = _methods_of(study, study.headline, axis)
        others = [
            (name, labels)
            for name, labels in study.axes.items()
            if name != axis and len(labels) > 1
        ]
        drawn = [
            _panel(axis_name(name), methods, _labelled(name, labels), study.metric)
            for name, labels in others
        ]
        panels = [panel for one in drawn for panel in one]
        panels = panels or _panel(
            "all settings", methods, [Place(0, "all", lambda rows: rows)], study.metric
        )
        yield _figure(
            study, figure_name("methods", axis), f"by {axis_name(axis)}", OVER_AXES, panels
        )


def _sites_figure(study: StudyResults) -> PanelFigure:
    """The main metric at every site: a panel per site where sites change their roles, else per role."""
    frame, panels = study.results, list[Panel]()
    if not frame.empty:
        frame = frame[~frame["site"].str.contains(":", regex=False)]
    if SEVERITY in frame.columns:
        frame = frame[frame[SEVERITY].isna()]
    sites = list(dict.fromkeys(frame.get("site", ())))[:MOST_SITES]

    def add(title: str, here: pd.DataFrame, places: list[Place]) -> None:
        panels.extend(
            _panel(title, _predictors_of(study, here), places, study.metric, joined=False)
        )

    if sites and frame.groupby("site")["role"].nunique().gt(1).any():
        for site in sites:
            here = rows_at(frame, {"site": site})
            roles = [place for place in _labelled("role", [*SITE_ROLES]) if len(place.select(here))]
            add(
                site,
                here,
                [
                    place._replace(x=x, label=SITE_ROLES[place.label])
                    for x, place in enumerate(roles)
                ],
            )
    else:
        for role in SITE_ROLES:
            of_role = rows_at(frame, {"role": role})
            names = [site for site in sites if (of_role["site"] == site).any()]
            for first in range(0, len(names), SITES_PER_PANEL):
                few = names[first : first + SITES_PER_PANEL]
                add(ROLES[role], of_role[of_role["site"].isin(few)], _labelled("site", few))
    return _figure(study, "sites", "site by site", OVER_SETTINGS, panels)


def _subgroup_figure(study: StudyResults) -> PanelFigure:
    """The main metric by subgroup of the records, one panel for each attribute."""
    frame, panels = rows_at(study.subgroups, {"site": study.record.where}), list[Panel]()
    for attribute in dict.fromkeys(frame.get("attribute", ())):
        here = rows_at(frame, {"attribute": attribute})
        places = _labelled("value", list(dict.fromkeys(here["value"])))
        panels += _panel(
            str(attribute), _predictors_of(study, here), places, study.metric, joined=False
        )
    return _figure(
        study, "subgroups", f"by subgroup, {place_words(study.record.where)}", OVER_SETTINGS, panels
    )


def _shift_figures(study: StudyResults) -> Iterator[PanelFigure]:
    """The main metric by severity, a panel per kind of shift and a figure per compared axis."""
    frame = study.results
    for axis in compared_axes(study):
        panels = _by_severity(study, frame, _methods_of(study, frame, axis), study.metric)
        if len(panels) > MOST_SHIFTS:
            for method, words in {
                line.method: line.words for panel in panels for line in panel.lines
            }.items():
                own = [
                    replace(
                        panel, lines=tuple(line for line in panel.lines if line.method == method)
                    )
                    for panel in panels
                ]
                found = _figure(
                    study, figure_name("shift", axis, method), "by shift and severity", words, own
                )
                yield replace(found, heat=True)
            continue
        title, reading = (
            f"under shift, by {axis_name(axis)}",
            f"across: severity, 0 is unshifted; {OVER_SEEDS}",
        )
        yield _figure(study, figure_name("shift", axis), title, reading, panels)


def _by_severity(
    study: StudyResults, frame: pd.DataFrame, methods: Sequence[Method], column: str
) -> list[Panel]:
    panels = []
    for kind in shift_kinds(study, frame):
        known = sorted({int(value) for value in rows_at(frame, {SHIFT: kind})[SEVERITY].dropna()})
        at = {
            severity: partial(at_severity, study, kind=kind, severity=severity)
            for severity in (UNSHIFTED, *known)
        }
        panels += _panel(
            kind, methods, [Place(each, str(each), rows) for each, rows in at.items()], column
        )
    return panels


def _by_severity_or_place(
    study: StudyResults, frame: pd.DataFrame, methods: Sequence[Method], column: str
) -> tuple[Panel, ...]:
    panels = _by_severity(study, frame, methods, column)
    sites = [
        site
        for site in dict.fromkeys(frame.get("site", ()))
        if not panels and not str(site).startswith(POOLED)
    ]
    for first in range(0, len(sites), MOST_PLACES):
        places = _labelled("site", sites[first : first + MOST_PLACES])
        panels += _panel("each site", methods, places, column, joined=False)
    return tuple(panels)


def _detection_figure(study: StudyResults) -> PanelFigure:
    """How well uncertainty tells a place's records from those of the training sites."""
    frame, known_to = study.shift_detection, ""
    panels = _by_severity_or_place(study, frame, _named("measure", MEASURES, frame), "auroc")
    if {"low", "high"} <= set(frame.columns):
        # What sums leave open of the order of records.
        known_to = (
            f", each run's known to ±{decimal(float((frame['high'] - frame['low']).max()) / 2)}"
        )
    reading = f"AUROC against training sites' records; .5 is chance{known_to}"
    title = "Does uncertainty notice another site?"
    return PanelFigure("shift-detection", title, reading, "AUROC", panels, level=0.5, grey="chance")


def _conformal_figures(study: StudyResults) -> Iterator[PanelFigure]:
    """Coverage and size of conformal prediction sets by severity, or at each place."""
    frame = study.conformal
    if not {"weights", "level"} <= set(frame.columns):
        return
    level = float(frame["level"].mode().iloc[0])
    frame = frame[(frame["level"] == level) & (frame[PREDICTOR] == study.main_predictor())]
    methods = _named(
        "weights",
        {name: WEIGHTS.get(name, name) for name in dict.fromkeys(frame["weights"])},
        frame,
    )
    sets = f"{100 * level:g}% prediction sets"
    coverage, size = (
        _by_severity_or_place(study, frame, methods, key) for key in ("coverage", "size")
    )
    yield PanelFigure(
        "conformal-coverage",
        f"Coverage of {sets}",
        "% of records whose set holds their label",
        "Coverage, %",
        coverage,
        100.0,
        1,
        level=level,
        grey="promised",
    )
    yield PanelFigure(
        "conformal-size",
        f"Size of {sets}",
        "mean number of classes in a set",
        "Classes in a set",
        size,
        1.0,
        2,
        from_zero=True,
    )
