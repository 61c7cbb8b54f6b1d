"""Figures of methods by each axis and against heterogeneity, and of what a cell takes."""

from collections.abc import Sequence

import pandas as pd

from fl_dpbayes.report.figures import figure_name
from fl_dpbayes.report.study.estimates import estimate
from fl_dpbayes.report.study.lines import OVER_SEEDS, line_over, metric_figure
from fl_dpbayes.report.study.methods import RECALIBRATION, compared_axes, method_rows
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import axis_name, quantity
from fl_dpbayes.report.study.results import SEED, StudyResults

LEAST_RANGE = 0.02


def axis_figures(study: StudyResults) -> list[PanelFigure]:
    """Draw the main metric of each compared axis' methods, one panel for each other axis.

    Args:
        study: the study.

    Returns:
        One figure per compared axis.
    """
    measured, frame = quantity(study.metric), study.headline
    figures = []
    for axis in compared_axes(study):
        others = {name: labels for name, labels in study.axes.items() if name != axis and len(labels) > 1}
        panels = [_by_axis(study, frame, axis, name, labels, measured.key) for name, labels in others.items()]
        panels = [panel for panel in panels if panel.lines] or _at_once(study, frame, axis, measured.key)
        if panels:
            reading = f"mean over the other axes; {OVER_SEEDS}"
            name = figure_name("methods", axis)
            figures.append(metric_figure(measured, name, f"by {axis_name(axis)}", reading, panels))
    return figures


def heterogeneity_figures(study: StudyResults) -> list[PanelFigure]:
    """Draw the main metric against how much the sites' labels differ, one figure for each compared axis.

    Args:
        study: the study.

    Returns:
        The figures; none where sites differ as much in every setting.
    """
    frame, measured = study.headline, quantity(study.metric)
    axis = _heterogeneous_axis(study, frame)
    figures = []
    for compared in compared_axes(study) if axis is not None else ():
        lines = []
        for method in study.methods(compared) if compared != axis else ():
            line = _against_heterogeneity(study, compared, method, str(axis))
            lines += [line] if line.marks else []
        if lines:
            panel = Panel("", "mean total variation between a site's labels and all", tuple(lines))
            name = figure_name("heterogeneity", compared)
            title = f"against heterogeneity, by {axis_name(compared)}"
            figures.append(metric_figure(measured, name, title, "faint: single seeds", [panel]))
    return figures


def _against_heterogeneity(study: StudyResults, compared: str, method: str, axis: str) -> Line:
    rows = method_rows(study, study.headline, compared, method)
    marks, scattered = [], []
    for label in study.axes[axis]:
        here = rows[rows[axis] == label]
        value = estimate(here, study.metric)
        if value is None:
            continue
        x = float(here["heterogeneity"].mean())
        marks.append(Mark(x, f"{x:.3f} ({axis_name(axis)} {label})", value))
        for _, one in here.groupby(SEED):
            single = estimate(one, study.metric)
            scattered += [(float(one["heterogeneity"].mean()), single.mean)] if single else []
    marks.sort(key=lambda mark: mark.x)
    return Line(method, study.words(compared, method), tuple(marks), tuple(scattered))


def seconds_figure(study: StudyResults) -> PanelFigure | None:
    """Draw how long a cell takes by each axis.

    Args:
        study: the study.

    Returns:
        The figure, or None without cells or axes.
    """
    if study.results.empty or "seconds" not in study.results.columns:
        return None
    cells = study.results.drop_duplicates("cell")
    panels = []
    for name, labels in study.axes.items():
        found = [estimate(cells[cells[name] == label], "seconds") for label in labels]
        line = line_over("", "seconds of a cell", labels, found)
        if line is not None and len(labels) > 1:
            panels.append(Panel(axis_name(name), "", (line,), tuple(labels)))
    if not panels:
        return None
    return PanelFigure(
        "seconds", "Seconds of a cell", f"mean over the other axes; {OVER_SEEDS}", "Seconds", tuple(panels), 1.0, 1,
        from_zero=True,
    )  # fmt: skip


def _by_axis(
    study: StudyResults, frame: pd.DataFrame, axis: str, other: str, labels: Sequence[str], metric: str
) -> Panel:
    lines = []
    for method in study.methods(axis):
        rows = method_rows(study, frame, axis, method)
        found = [estimate(rows[rows[other] == label], metric) for label in labels]
        line = line_over(method, study.words(axis, method), labels, found)
        lines += [line] if line else []
    return Panel(axis_name(other), "", tuple(lines), tuple(labels))


def _at_once(study: StudyResults, frame: pd.DataFrame, axis: str, metric: str) -> list[Panel]:
    lines = []
    for method in study.methods(axis):
        found = estimate(method_rows(study, frame, axis, method), metric)
        line = line_over(method, study.words(axis, method), ["all"], [found])
        lines += [line] if line else []
    return [Panel("all settings", "", tuple(lines), ("all",))] if lines else []


def _heterogeneous_axis(study: StudyResults, frame: pd.DataFrame) -> str | None:
    """Return the axis along which the sites' labels differ most; None where they differ alike everywhere."""
    if frame.empty or "heterogeneity" not in frame.columns:
        return None
    ranges = {}
    for axis, labels in study.axes.items():
        means = frame.groupby(axis)["heterogeneity"].mean().dropna()
        if len(labels) > 1 and len(means) > 1 and axis != RECALIBRATION:
            ranges[axis] = float(means.max() - means.min())
    widest = max(ranges, key=lambda name: ranges[name], default=None)
    return widest if widest is not None and ranges[widest] > LEAST_RANGE else None
