"""A study's figures: methods by axis, places, shifts, uncertainty elsewhere, prediction sets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from fl_dpbayes.report.figure_style import figure_name
from fl_dpbayes.report.measure_tables import WEIGHTS
from fl_dpbayes.report.numbers import decimal
from fl_dpbayes.report.study.comparisons import (
    at_severity,
    compared_axes,
    estimate,
    method_rows,
    severities_of,
    shift_kinds,
)
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import axis_name, place_words, quantity
from fl_dpbayes.report.study.results import (
    POOLED,
    PREDICTOR,
    SEVERITY,
    UNSHIFTED,
    StudyResults,
    rows_at,
)
from fl_dpbayes.report.wording import ROLES, SITE_ROLES

OVER_SEEDS = "line: 95% interval over seeds"
OVER_SETTINGS = f"mean over settings; {OVER_SEEDS}"
OVER_AXES = f"mean over the other axes; {OVER_SEEDS}"
# More panels on one axis cannot be told apart.
MOST_SHIFTS = 6
SITES_PER_PANEL = 6
MOST_SITES = 60
MOST_PLACES = 8
MEASURES = {"epistemic": "epistemic uncertainty", "total": "total uncertainty"}


@dataclass(frozen=True)
class Method:
    """What a line stands for.

    Attributes:
        key: The key of its colour.
        words: Its name.
        rows: Its rows of a table.
    """

    key: str
    words: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class Place:
    """A place on the horizontal axis.

    Attributes:
        x: Where it is.
        label: Its name.
        select: Selects its rows of a table.
    """

    x: int
    label: str
    select: Callable[[pd.DataFrame], pd.DataFrame]


@dataclass(frozen=True)
class Section:
    """A section of the page: its heading, a note below it, and figures."""

    heading: str
    note: str
    figures: list[PanelFigure]


def study_figures(study: StudyResults) -> list[Section]:
    """Return the sections of the page in reading order, without those that have no figure."""
    sections = [
        Section(
            heading="Methods",
            note=f"At {place_words(study.record.where)}.",
            figures=list(_axis_figures(study)),
        ),
        Section(heading="Sites", note="", figures=[_sites_figure(study), _subgroup_figure(study)]),
        Section(
            heading="Shift",
            note="Severity 0 is the same site's records as they are.",
            figures=list(_shift_figures(study)),
        ),
        Section(
            heading="Uncertainty at new sites", note="", figures=[_shift_detection_figure(study)]
        ),
        Section(
            heading="Conformal prediction sets",
            note=(
                "Calibrated on the training sites' test records: the promise holds for sites "
                "like those only."
            ),
            figures=list(_conformal_figures(study)),
        ),
    ]
    drawn = [
        replace(section, figures=[figure for figure in section.figures if figure.panels])
        for section in sections
    ]
    return [section for section in drawn if section.figures]


def _panel(
    title: str,
    methods: Sequence[Method],
    places: Sequence[Place],
    column: str,
    *,
    joined: bool = True,
) -> list[Panel]:
    """Draw a column's means, a line for each method through its estimates at the places.

    Returns:
        One panel, or none where nothing was measured.
    """
    lines = []
    for method in methods:
        marks = _marks(method, places, column)
        if marks:
            lines.append(Line(method.key, method.words, marks, joined=joined))
    if not lines:
        return []
    labels = {place.x: place.label for place in places}
    ticks = tuple(labels.get(x, str(x)) for x in range(max(labels) + 1))
    return [Panel(title=title, lines=tuple(lines), ticks=ticks)]


def _marks(method: Method, places: Sequence[Place], column: str) -> tuple[Mark, ...]:
    marks = []
    for place in places:
        value = estimate(place.select(method.rows), column)
        if value is not None:
            marks.append(Mark(x=place.x, where=place.label, value=value))
    return tuple(marks)


def _labelled(column: str, labels: Sequence[str]) -> list[Place]:
    """Return a place for each label of a column."""
    return [
        Place(x, label, partial(rows_at, labels={column: label})) for x, label in enumerate(labels)
    ]


def _methods_of(study: StudyResults, frame: pd.DataFrame, axis: str) -> list[Method]:
    return [
        Method(
            key=label,
            words=study.words(axis, label),
            rows=method_rows(study, frame, axis, label),
        )
        for label in study.methods(axis)
    ]


def _predictors_of(study: StudyResults, frame: pd.DataFrame) -> list[Method]:
    words = {name: study.words(PREDICTOR, name) for name in study.predictors(frame)}
    return _named_methods(PREDICTOR, words, frame)


def _named_methods(column: str, words: Mapping[str, str], frame: pd.DataFrame) -> list[Method]:
    """Return a method for each label of a column, by its name in words."""
    return [Method(label, name, rows_at(frame, {column: label})) for label, name in words.items()]


def _metric_figure(
    study: StudyResults, name: str, title: str, reading: str, panels: Sequence[Panel]
) -> PanelFigure:
    """Return a figure of the study's first metric.

    Args:
        study: The study.
        name: Stem of the figure's file.
        title: What stands after the metric's name.
        reading: How to read the figure.
        panels: What is drawn.
    """
    measured = quantity(study.metric)
    metric = measured.metric
    return PanelFigure(
        name=name,
        title=f"{measured.short_name} {title}",
        subtitle="; ".join(part for part in (measured.unit, reading) if part),
        quantity=f"{metric.name}, points" if measured.share else metric.name,
        panels=tuple(panels),
        scale=100.0 if measured.share else 1.0,
        places=2 if measured.share else 4,
        from_zero=metric.calibration_error,
    )


def _axis_figures(study: StudyResults) -> Iterator[PanelFigure]:
    """Draw each compared axis' methods, a panel for each other axis, or of all settings at once."""
    for axis in compared_axes(study):
        methods = _methods_of(study, study.headline, axis)
        panels: list[Panel] = []
        for name, labels in study.axes.items():
            if name != axis and len(labels) > 1:
                panels += _panel(axis_name(name), methods, _labelled(name, labels), study.metric)
        if not panels:
            everywhere = Place(x=0, label="all", select=lambda rows: rows)
            panels = _panel("all settings", methods, [everywhere], study.metric)
        yield _metric_figure(
            study,
            name=figure_name("methods", axis),
            title=f"by {axis_name(axis)}",
            reading=OVER_AXES,
            panels=panels,
        )


def _sites_figure(study: StudyResults) -> PanelFigure:
    """Draw every site: a panel for each where sites change their roles, else for each role."""
    frame = study.results
    if not frame.empty:
        frame = frame[~frame["site"].str.contains(":", regex=False)]
    if SEVERITY in frame.columns:
        frame = frame[frame[SEVERITY].isna()]
    sites = list(dict.fromkeys(frame.get("site", ())))[:MOST_SITES]
    panels: list[Panel] = []
    if sites and frame.groupby("site")["role"].nunique().gt(1).any():
        for site in sites:
            panels += _site_panel(study, rows_at(frame, {"site": site}), site)
    else:
        for role in SITE_ROLES:
            panels += _role_panels(study, rows_at(frame, {"role": role}), role=role, sites=sites)
    return _metric_figure(
        study, name="sites", title="site by site", reading=OVER_SETTINGS, panels=panels
    )


def _site_panel(study: StudyResults, frame: pd.DataFrame, site: str) -> list[Panel]:
    """Draw one site in each of its roles."""
    roles = [role for role in SITE_ROLES if len(rows_at(frame, {"role": role}))]
    places = [replace(place, label=SITE_ROLES[place.label]) for place in _labelled("role", roles)]
    methods = _predictors_of(study, frame)
    return _panel(site, methods, places, study.metric, joined=False)


def _role_panels(
    study: StudyResults, frame: pd.DataFrame, *, role: str, sites: Sequence[str]
) -> list[Panel]:
    """Draw the sites of one role, a few in each panel."""
    names = [site for site in sites if (frame["site"] == site).any()]
    panels: list[Panel] = []
    for first in range(0, len(names), SITES_PER_PANEL):
        few = names[first : first + SITES_PER_PANEL]
        methods = _predictors_of(study, frame[frame["site"].isin(few)])
        panels += _panel(ROLES[role], methods, _labelled("site", few), study.metric, joined=False)
    return panels


def _subgroup_figure(study: StudyResults) -> PanelFigure:
    """Draw each subgroup of the records, a panel for each attribute."""
    frame = rows_at(study.subgroups, {"site": study.record.where})
    panels: list[Panel] = []
    for attribute in dict.fromkeys(frame.get("attribute", ())):
        rows = rows_at(frame, {"attribute": attribute})
        panels += _panel(
            str(attribute),
            _predictors_of(study, rows),
            _labelled("value", list(dict.fromkeys(rows["value"]))),
            study.metric,
            joined=False,
        )
    return _metric_figure(
        study,
        name="subgroups",
        title=f"by subgroup, {place_words(study.record.where)}",
        reading=OVER_SETTINGS,
        panels=panels,
    )


def _shift_figures(study: StudyResults) -> Iterator[PanelFigure]:
    """Draw each compared axis by severity, a panel for each kind of shift."""
    for axis in compared_axes(study):
        methods = _methods_of(study, study.results, axis)
        panels = _severity_panels(study, study.results, methods, study.metric)
        if len(panels) > MOST_SHIFTS:
            yield from _shift_maps(study, axis, panels)
        else:
            yield _metric_figure(
                study,
                name=figure_name("shift", axis),
                title=f"under shift, by {axis_name(axis)}",
                reading=f"across: severity, 0 is unshifted; {OVER_SEEDS}",
                panels=panels,
            )


def _shift_maps(study: StudyResults, axis: str, panels: Sequence[Panel]) -> Iterator[PanelFigure]:
    """Draw a map of shifts and severities for each method."""
    methods = {line.method: line.words for panel in panels for line in panel.lines}
    for method, words in methods.items():
        method_panels = [
            replace(panel, lines=tuple(line for line in panel.lines if line.method == method))
            for panel in panels
        ]
        figure = _metric_figure(
            study,
            name=figure_name("shift", axis, method),
            title="by shift and severity",
            reading=words,
            panels=method_panels,
        )
        yield replace(figure, heat=True)


def _severity_panels(
    study: StudyResults, frame: pd.DataFrame, methods: Sequence[Method], column: str
) -> list[Panel]:
    """Draw a column by severity, a panel for each kind of shift."""
    panels: list[Panel] = []
    for kind in shift_kinds(study, frame):
        severities = dict.fromkeys((UNSHIFTED, *severities_of(frame, kind)))
        places = [
            Place(
                x=severity,
                label=str(severity),
                select=partial(at_severity, study, kind=kind, severity=severity),
            )
            for severity in severities
        ]
        panels += _panel(kind, methods, places, column)
    return panels


def _severity_or_place_panels(
    study: StudyResults, frame: pd.DataFrame, methods: Sequence[Method], column: str
) -> tuple[Panel, ...]:
    """Draw a column by severity, or at each site where there is no shift."""
    panels = _severity_panels(study, frame, methods, column)
    if panels:
        return tuple(panels)
    sites = [
        site for site in dict.fromkeys(frame.get("site", ())) if not str(site).startswith(POOLED)
    ]
    for first in range(0, len(sites), MOST_PLACES):
        places = _labelled("site", sites[first : first + MOST_PLACES])
        panels += _panel("each site", methods, places, column, joined=False)
    return tuple(panels)


def _shift_detection_figure(study: StudyResults) -> PanelFigure:
    """Draw how well uncertainty tells a place's records from those of the training sites."""
    frame = study.shift_detection
    methods = _named_methods("measure", MEASURES, frame)
    bounds = ""
    if {"low", "high"} <= set(frame.columns):
        # What sums leave open of the order of records.
        widest = float((frame["high"] - frame["low"]).max())
        bounds = f", each run's known to ±{decimal(widest / 2)}"
    return PanelFigure(
        name="shift-detection",
        title="Does uncertainty notice another site?",
        subtitle=f"AUROC against training sites' records; .5 is chance{bounds}",
        quantity="AUROC",
        panels=_severity_or_place_panels(study, frame, methods, "auroc"),
        level=0.5,
        grey="chance",
    )


def _conformal_figures(study: StudyResults) -> Iterator[PanelFigure]:
    """Draw coverage and size of conformal prediction sets by severity, or at each place."""
    frame = study.conformal
    if not {"weights", "level"} <= set(frame.columns):
        return
    level = float(frame["level"].mode().iloc[0])
    frame = frame[(frame["level"] == level) & (frame[PREDICTOR] == study.main_predictor())]
    words = {name: WEIGHTS.get(name, name) for name in dict.fromkeys(frame["weights"])}
    methods = _named_methods("weights", words, frame)
    sets = f"{100 * level:g}% prediction sets"
    yield PanelFigure(
        name="conformal-coverage",
        title=f"Coverage of {sets}",
        subtitle="% of records whose set holds their label",
        quantity="Coverage, %",
        panels=_severity_or_place_panels(study, frame, methods, "coverage"),
        scale=100.0,
        places=1,
        level=level,
        grey="promised",
    )
    yield PanelFigure(
        name="conformal-size",
        title=f"Size of {sets}",
        subtitle="mean number of classes in a set",
        quantity="Classes in a set",
        panels=_severity_or_place_panels(study, frame, methods, "size"),
        places=2,
        from_zero=True,
    )
