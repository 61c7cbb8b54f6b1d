"""A study's figures: methods by axis, places, shifts, uncertainty elsewhere, prediction sets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fl_dpbayes.report.figure_style import figure_name
from fl_dpbayes.report.measure_tables import WEIGHTS
from fl_dpbayes.report.numbers import decimal
from fl_dpbayes.report.study.comparisons import (
    by_severity,
    compared_axes,
    estimates,
    method_rows,
)
from fl_dpbayes.report.study.panels import Line, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import axis_name, place_words, quantity
from fl_dpbayes.report.study.results import (
    POOLED,
    PREDICTOR,
    SEVERITY,
    SHIFT,
    StudyResults,
    label_text,
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
# A column with one label, where no axis parts the panels.
EVERYWHERE = "everywhere"
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
    places: Mapping[str, str],
    *,
    place_column: str,
    column: str,
    joined: bool = True,
) -> list[Panel]:
    """Draw a column's means, a line for each method through its estimates at the places.

    Args:
        title: Stands above the panel.
        methods: The lines.
        places: Label of `place_column` -> its name, from left to right.
        place_column: Tells places apart.
        column: What is drawn.
        joined: Whether a line goes through the estimates.

    Returns:
        One panel, or none where nothing was measured.
    """
    lines = []
    for method in methods:
        values = estimates(method.rows, by=place_column, column=column)
        named = {name: values[label] for label, name in places.items() if label in values}
        if named:
            lines.append(Line(method.key, method.words, named, joined=joined))
    return [Panel(title, tuple(lines), tuple(places.values()))] if lines else []


def _by_name(labels: Iterable[str]) -> dict[str, str]:
    return {label: label for label in labels}


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
    return PanelFigure(
        name=name,
        title=f"{measured.short_name} {title}",
        subtitle="; ".join(part for part in (measured.unit, reading) if part),
        panels=tuple(panels),
        scale=100.0 if measured.share else 1.0,
        from_zero=measured.metric.calibration_error,
    )


def _axis_figures(study: StudyResults) -> Iterator[PanelFigure]:
    """Draw each compared axis' methods, a panel for each other axis, or of all settings at once."""
    for axis in compared_axes(study):
        methods = _methods_of(study, study.headline.assign(**{EVERYWHERE: "all"}), axis)
        others = {
            name: labels for name, labels in study.axes.items() if name != axis and len(labels) > 1
        }
        panels: list[Panel] = []
        for name, labels in others.items():
            panels += _panel(
                axis_name(name),
                methods,
                _by_name(labels),
                place_column=name,
                column=study.metric,
            )
        if not panels:
            panels = _panel(
                "all settings",
                methods,
                _by_name(["all"]),
                place_column=EVERYWHERE,
                column=study.metric,
            )
        yield _metric_figure(
            study,
            name=figure_name("methods", axis),
            title=f"by {axis_name(axis)}",
            reading=OVER_AXES,
            panels=panels,
        )


def _sites_figure(study: StudyResults) -> PanelFigure:
    """Draw every site in each role that it has, a few in each panel."""
    frame = study.results
    if not frame.empty:
        frame = frame[~frame["site"].str.contains(":", regex=False)]
    if SEVERITY in frame.columns:
        frame = frame[frame[SEVERITY].isna()]
    sites = list(dict.fromkeys(frame.get("site", ())))[:MOST_SITES]
    panels: list[Panel] = []
    for role in SITE_ROLES:
        rows = rows_at(frame, {"role": role})
        names = [site for site in sites if site in set(rows.get("site", ()))]
        for first in range(0, len(names), SITES_PER_PANEL):
            few = names[first : first + SITES_PER_PANEL]
            panels += _panel(
                ROLES[role],
                _predictors_of(study, rows[rows["site"].isin(few)]),
                _by_name(few),
                place_column="site",
                column=study.metric,
                joined=False,
            )
    return _metric_figure(
        study, name="sites", title="site by site", reading=OVER_SETTINGS, panels=panels
    )


def _subgroup_figure(study: StudyResults) -> PanelFigure:
    """Draw each subgroup of the records, a panel for each attribute."""
    frame = rows_at(study.subgroups, {"site": study.record.where})
    panels: list[Panel] = []
    for attribute in dict.fromkeys(frame.get("attribute", ())):
        rows = rows_at(frame, {"attribute": attribute})
        panels += _panel(
            str(attribute),
            _predictors_of(study, rows),
            _by_name(dict.fromkeys(rows["value"])),
            place_column="value",
            column=study.metric,
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
        methods = _methods_of(study, by_severity(study, study.results), axis)
        panels = _severity_panels(methods, study.metric)
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


def _severity_panels(methods: Sequence[Method], column: str) -> list[Panel]:
    """Draw a column by severity, a panel for each kind of shift.

    Args:
        methods: The lines; their rows are of `by_severity`.
        column: What is drawn.
    """
    rows = pd.concat([pd.DataFrame(), *(method.rows for method in methods)])
    if rows.empty:
        return []
    panels: list[Panel] = []
    for kind, severities in rows.groupby(SHIFT, sort=False)[SEVERITY]:
        of_kind = [
            replace(method, rows=rows_at(method.rows, {SHIFT: str(kind)})) for method in methods
        ]
        labels = map(label_text, sorted(set(severities)))
        panels += _panel(str(kind), of_kind, _by_name(labels), place_column=SEVERITY, column=column)
    return panels


def _severity_or_place_panels(
    study: StudyResults, frame: pd.DataFrame, *, lines: str, words: Mapping[str, str], column: str
) -> tuple[Panel, ...]:
    """Draw a column by severity, or at each site where there is no shift.

    Args:
        study: The study.
        frame: A table.
        lines: The column whose labels are the lines.
        words: Label -> what the legend calls it.
        column: What is drawn.
    """
    shifted = by_severity(study, frame)
    panels = _severity_panels(_named_methods(lines, words, shifted), column)
    if panels:
        return tuple(panels)
    sites = [
        site for site in dict.fromkeys(frame.get("site", ())) if not str(site).startswith(POOLED)
    ]
    methods = _named_methods(lines, words, frame)
    for first in range(0, len(sites), MOST_PLACES):
        places = _by_name(sites[first : first + MOST_PLACES])
        panels += _panel(
            "each site", methods, places, place_column="site", column=column, joined=False
        )
    return tuple(panels)


def _shift_detection_figure(study: StudyResults) -> PanelFigure:
    """Draw how well uncertainty tells a place's records from those of the training sites."""
    frame = study.shift_detection
    bounds = ""
    if {"low", "high"} <= set(frame.columns):
        # What sums leave open of the order of records.
        widest = float((frame["high"] - frame["low"]).max())
        bounds = f", each run's known to ±{decimal(widest / 2)}"
    return PanelFigure(
        name="shift-detection",
        title="Does uncertainty notice another site?",
        subtitle=f"AUROC against training sites' records; .5 is chance{bounds}",
        panels=_severity_or_place_panels(
            study, frame, lines="measure", words=MEASURES, column="auroc"
        ),
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
    sets = f"{100 * level:g}% prediction sets"
    yield PanelFigure(
        name="conformal-coverage",
        title=f"Coverage of {sets}",
        subtitle="% of records whose set holds their label",
        panels=_severity_or_place_panels(
            study, frame, lines="weights", words=words, column="coverage"
        ),
        scale=100.0,
        level=level,
        grey="promised",
    )
    yield PanelFigure(
        name="conformal-size",
        title=f"Size of {sets}",
        subtitle="mean number of classes in a set",
        panels=_severity_or_place_panels(study, frame, lines="weights", words=words, column="size"),
        from_zero=True,
    )
