"""Figures of methods: by each axis, against heterogeneity, at each site, against known truth, by subgroup, cost."""

from collections.abc import Sequence

import pandas as pd

from fl_dpbayes.report.figures import figure_name
from fl_dpbayes.report.study.estimates import Estimate, estimate
from fl_dpbayes.report.study.methods import RECALIBRATION, compared_axes, method_rows
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import Quantity, axis_name, place_words, quantity
from fl_dpbayes.report.study.results import PREDICTOR, SEED, SEVERITY, StudyResults
from fl_dpbayes.report.wording import ROLES

VERTICAL = "line: 95% interval over seeds"
LEAST_RANGE = 0.02
SITES_PER_PANEL, MOST_SITES = 6, 60


def unit_of(measured: Quantity) -> str:
    """Say what the vertical axis counts."""
    return "%" if measured.key == "accuracy" else "percentage points" if measured.scale == 100 else "plain value"


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
            figures.append(
                _figure(
                    study,
                    figure_name("methods", axis),
                    f"{measured.name}, by {axis_name(axis)}",
                    f"{unit_of(measured)}, mean over the other axes; {VERTICAL}",
                    panels,
                )
            )
    return figures


def heterogeneity_figure(study: StudyResults) -> PanelFigure | None:
    """Draw the main metric against how much the sites' labels differ, one panel for each compared axis.

    Args:
        study: the study.

    Returns:
        The figure, or None where sites differ as much in every setting.
    """
    frame, measured = study.headline, quantity(study.metric)
    axis = _heterogeneous_axis(study, frame)
    if axis is None:
        return None
    panels = []
    for compared in compared_axes(study):
        lines = []
        for method in study.methods(compared) if compared != axis else ():
            rows = method_rows(study, frame, compared, method)
            marks, scattered = [], []
            for label in study.axes[axis]:
                here = rows[rows[axis] == label]
                value = estimate(here, measured.key)
                if value is not None:
                    x = float(here["heterogeneity"].mean())
                    marks.append(Mark(x, f"{x:.3f} ({axis_name(axis)} {label})", value))
                    for _, one in here.groupby(SEED):
                        single = estimate(one, measured.key)
                        scattered += [(float(one["heterogeneity"].mean()), single.mean)] if single else []
            marks.sort(key=lambda mark: mark.x)
            if marks:
                lines.append(Line(method, study.words(compared, method), tuple(marks), tuple(scattered)))
        if lines:
            panels.append(Panel(f"by {axis_name(compared)}", "mean total variation", tuple(lines)))
    if not panels:
        return None
    return _figure(
        study,
        "heterogeneity",
        f"{measured.name} against heterogeneity",
        "faint: single seeds; across: labels of site against all",
        panels,
    )


def sites_figure(study: StudyResults) -> PanelFigure | None:
    """Draw the main metric at every site: a panel per site where sites change their roles, else per role.

    Args:
        study: the study.

    Returns:
        The figure, or None without sites.
    """
    frame = study.results
    if frame.empty:
        return None
    frame = frame[~frame["site"].str.contains(":", regex=False)]
    if SEVERITY in frame.columns:
        frame = frame[frame[SEVERITY].isna()]
    sites = list(dict.fromkeys(frame["site"]))[:MOST_SITES]
    roles = [role for role in ("train", "held_out", "shifted") if (frame["role"] == role).any()]
    changing = frame.groupby("site")["role"].nunique().gt(1).any() if sites else False
    short = {"train": "trains", "held_out": "held out", "shifted": "shifted"}
    panels = []
    if changing:
        for site in sites:
            here = [(short[role], frame[(frame["site"] == site) & (frame["role"] == role)]) for role in roles]
            panels += _place_panels(study, site, "", here)
    else:
        for role in roles:
            names = [site for site in sites if ((frame["site"] == site) & (frame["role"] == role)).any()]
            for first in range(0, len(names), SITES_PER_PANEL):
                here = [(name, frame[frame["site"] == name]) for name in names[first : first + SITES_PER_PANEL]]
                panels += _place_panels(study, ROLES[role], "", here)
    if not panels:
        return None
    measured = quantity(study.metric)
    return _figure(
        study, "sites", f"{measured.name}, site by site", f"{unit_of(measured)}, mean over settings; {VERTICAL}", panels
    )


def subgroup_figure(study: StudyResults) -> PanelFigure | None:
    """Draw the main metric by subgroup of the records, one panel for each attribute.

    Args:
        study: the study.

    Returns:
        The figure, or None where no site told subgroups apart.
    """
    frame, measured = study.subgroups, quantity(study.metric)
    if frame.empty or not {"attribute", "value", measured.key} <= set(frame.columns):
        return None
    frame = frame[frame["site"] == study.record.where]
    panels = []
    for attribute in dict.fromkeys(frame["attribute"]):
        rows = frame[frame["attribute"] == attribute]
        here = [(str(value), rows[rows["value"] == value]) for value in dict.fromkeys(rows["value"])]
        panels += _place_panels(study, str(attribute), "", here)
    if not panels:
        return None
    return _figure(
        study,
        "subgroups",
        f"{measured.name} by subgroup, {place_words(study.record.where)}",
        f"{unit_of(measured)}, mean over settings; {VERTICAL}",
        panels,
    )


def truth_figure(study: StudyResults) -> PanelFigure | None:
    """Draw estimated calibration errors against the true ones, where records are made up and their truth is known.

    Args:
        study: the study.

    Returns:
        The figure, or None where no truth is known.
    """
    frame, panels = study.results, []
    for key, truth, title in (("rms_debiased", "rms_true", "debiased RMS"), ("ece", "ece_true", "ECE (15 bins)")):
        if not {key, truth} <= set(frame.columns):
            continue
        known = frame[frame[key].notna() & frame[truth].notna() & ~frame["site"].str.startswith("mean:")]
        lines = []
        for predictor in study.predictors(known):
            rows = known[known[PREDICTOR] == predictor]
            marks = []
            for site, here in rows.groupby("site", sort=False):
                value, x = estimate(here, key), estimate(here, truth)
                if value is not None and x is not None and len(marks) < MOST_SITES:
                    marks.append(Mark(100 * x.mean, f"{site}: {100 * x.mean:.2f}", value))
            scattered = tuple((100 * float(x), float(y)) for x, y in zip(rows[truth], rows[key], strict=True))
            lines.append(Line(predictor, study.words(PREDICTOR, predictor), tuple(marks), scattered, joined=False))
        if lines:
            panels.append(Panel(title, "true error, points", tuple(lines), diagonal=True))
    if not panels:
        return None
    return PanelFigure(
        "truth", "Estimated against true calibration error", "points; faint: single runs; dashed: equal",
        "Estimated error, points", tuple(panels), 100.0, 2, from_zero=True, grey="estimate = truth",
    )  # fmt: skip


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
        line = _line("", "seconds of a cell", labels, found)
        if line is not None and len(labels) > 1:
            panels.append(Panel(axis_name(name), "", (line,), tuple(labels)))
    if not panels:
        return None
    return PanelFigure(
        "seconds", "Seconds of a cell", f"mean over the other axes; {VERTICAL}", "Seconds", tuple(panels), 1.0, 1,
        from_zero=True,
    )  # fmt: skip


def _figure(study: StudyResults, name: str, title: str, subtitle: str, panels: Sequence[Panel]) -> PanelFigure:
    measured = quantity(study.metric)
    heading = measured.name + (f", {unit_of(measured)}" if measured.scale == 100 else "")
    return PanelFigure(
        name, title, subtitle, heading, tuple(panels), measured.scale, 2 if measured.scale == 100 else 4,
        from_zero=measured.is_error,
    )  # fmt: skip


def _by_axis(
    study: StudyResults, frame: pd.DataFrame, axis: str, other: str, labels: Sequence[str], metric: str
) -> Panel:
    lines = []
    for method in study.methods(axis):
        rows = method_rows(study, frame, axis, method)
        found = [estimate(rows[rows[other] == label], metric) for label in labels]
        line = _line(method, study.words(axis, method), labels, found)
        lines += [line] if line else []
    return Panel(axis_name(other), "", tuple(lines), tuple(labels))


def _at_once(study: StudyResults, frame: pd.DataFrame, axis: str, metric: str) -> list[Panel]:
    lines = []
    for method in study.methods(axis):
        found = estimate(method_rows(study, frame, axis, method), metric)
        line = _line(method, study.words(axis, method), ["all"], [found])
        lines += [line] if line else []
    return [Panel("all settings", "", tuple(lines), ("all",))] if lines else []


def _place_panels(
    study: StudyResults, title: str, horizontal: str, places: Sequence[tuple[str, pd.DataFrame]]
) -> list[Panel]:
    ticks = [name for name, _ in places]
    lines = []
    for predictor in study.predictors(pd.concat([rows for _, rows in places])):
        found = [estimate(rows[rows[PREDICTOR] == predictor], study.metric) for _, rows in places]
        line = _line(predictor, study.words(PREDICTOR, predictor), ticks, found, joined=False)
        lines += [line] if line else []
    return [Panel(title, horizontal, tuple(lines), tuple(ticks))] if lines else []


def _line(
    method: str, words: str, labels: Sequence[str], found: Sequence[Estimate | None], *, joined: bool = True
) -> Line | None:
    marks = [
        Mark(number, label, value)
        for number, (label, value) in enumerate(zip(labels, found, strict=True))
        if value is not None
    ]
    return Line(method, words, tuple(marks), joined=joined) if marks else None


def _heterogeneous_axis(study: StudyResults, frame: pd.DataFrame) -> str | None:
    """Return the axis along which the sites' labels differ most; None where they differ alike everywhere."""
    if frame.empty or "heterogeneity" not in frame.columns:
        return None
    ranges = {}
    for axis, labels in study.axes.items():
        means = frame.groupby(axis)["heterogeneity"].mean().dropna()
        if len(labels) > 1 and len(means) > 1 and axis != RECALIBRATION:
            ranges[axis] = float(means.max() - means.min())
    axis = max(ranges, key=lambda name: ranges[name], default=None)
    return axis if axis is not None and ranges[axis] > LEAST_RANGE else None
