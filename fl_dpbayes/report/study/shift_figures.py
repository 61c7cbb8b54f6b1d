"""Figures over shifts and their severity: error, uncertainty, and the coverage and size of conformal sets."""

from collections.abc import Callable, Sequence

import pandas as pd

from fl_dpbayes.report.figures import figure_name
from fl_dpbayes.report.numbers import decimal
from fl_dpbayes.report.study.estimates import estimate
from fl_dpbayes.report.study.lines import OVER_SEEDS, metric_figure
from fl_dpbayes.report.study.methods import compared_axes, method_rows
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import axis_name, quantity
from fl_dpbayes.report.study.results import POOLED, PREDICTOR, SEVERITY, SHIFT, StudyResults

UNSHIFTED = 0
MEASURES = {"epistemic": "epistemic uncertainty", "total": "total uncertainty"}
WEIGHTS = {
    "none": "as calibrated",
    "label-shift": "weighted, by the site's own labels",
    "label-shift-estimated": "weighted, by its predictions",
}
MOST_PLACES = 8
Select = Callable[[pd.DataFrame], pd.DataFrame]


def shift_kinds(study: StudyResults, frame: pd.DataFrame) -> list[str]:
    """Return the kinds of shift that a table holds at more than one severity, the unshifted original counting."""
    if frame.empty or not {SHIFT, SEVERITY} <= set(frame.columns):
        return []
    severities = frame[frame[SEVERITY].notna()].groupby(SHIFT, sort=False)[SEVERITY].nunique()
    original = (frame["site"] == study.original_site).any()
    return [str(kind) for kind, count in severities.items() if kind and count + original > 1]


def at_severity(study: StudyResults, frame: pd.DataFrame, kind: str, severity: int) -> pd.DataFrame:
    """Select the rows of one shift; severity 0 is the site of which shifted sites hold the records."""
    if severity == UNSHIFTED:
        return frame[(frame["site"] == study.original_site) & frame[SEVERITY].isna()]
    return frame[(frame[SHIFT] == kind) & (frame[SEVERITY] == severity)]


def shift_figures(study: StudyResults) -> list[PanelFigure]:
    """Draw the main metric by severity, a panel per kind of shift and a figure per compared axis.

    Args:
        study: the study.

    Returns:
        The figures; none without shifts.
    """
    measured, frame, figures = quantity(study.metric), study.results, []
    for axis in compared_axes(study):
        lines: list[tuple[str, str, Select]] = [
            (method, study.words(axis, method), lambda rows, method=method, axis=axis: method_rows(  # type: ignore[misc]
                study, rows, axis, method
            ))
            for method in study.methods(axis)
        ]  # fmt: skip
        reference = "ece_if_calibrated" if measured.key == "ece" else ""
        panels = _by_severity(study, frame, lines, measured.key, reference)
        if panels:
            title, grey = f"under shift, by {axis_name(axis)}", "if calibrated, at this n" if reference else ""
            reading = f"across: severity, 0 is unshifted; {OVER_SEEDS}"
            figures.append(metric_figure(measured, figure_name("shift", axis), title, reading, panels, grey))
    return figures


def detection_figure(study: StudyResults) -> PanelFigure | None:
    """Draw how well uncertainty tells a place's records from those of the training sites.

    Args:
        study: the study.

    Returns:
        The figure, or None where it was not measured.
    """
    frame = study.shift_detection
    if frame.empty or not {"measure", "auroc"} <= set(frame.columns):
        return None
    lines: list[tuple[str, str, Select]] = [
        (name, words, lambda rows, name=name: rows[rows["measure"] == name])  # type: ignore[misc]
        for name, words in MEASURES.items()
    ]
    panels = _by_severity(study, frame, lines, "auroc") or _by_place(frame, lines, "auroc")
    if not panels:
        return None
    known_to = ""
    if {"low", "high"} <= set(frame.columns):
        # What sums leave open of the order of records.
        known_to = f", each run's known to ±{decimal(float((frame['high'] - frame['low']).max()) / 2)}"
    return PanelFigure(
        "shift-detection", "Does uncertainty notice another site?",
        f"AUROC against training sites' records; .5 is chance{known_to}", "AUROC", panels, level=0.5, grey="chance",
    )  # fmt: skip


def epistemic_figure(study: StudyResults) -> PanelFigure | None:
    """Draw the mean epistemic uncertainty by severity.

    Args:
        study: the study.

    Returns:
        The figure, or None without shifts or samples.
    """
    predictor = study.main_predictor()
    if predictor is None or "epistemic" not in study.results.columns:
        return None
    lines: list[tuple[str, str, Select]] = [
        (predictor, study.words(PREDICTOR, predictor), lambda rows: rows[rows[PREDICTOR] == predictor])
    ]
    panels = _by_severity(study, study.results, lines, "epistemic")
    if not panels:
        return None
    return PanelFigure(
        "epistemic", "Disagreement of the posterior's samples", f"thousandths of a nat; across: severity; {OVER_SEEDS}",
        "Mean epistemic uncertainty, nats / 1000", panels, 1000.0, 2, from_zero=True,
    )  # fmt: skip


def conformal_figures(study: StudyResults) -> list[PanelFigure]:
    """Draw coverage and size of conformal prediction sets by severity, or at each place.

    Args:
        study: the study.

    Returns:
        Two figures, or none where sets were not measured.
    """
    frame, predictor = study.conformal, study.main_predictor()
    if frame.empty or not {"weights", "level", "coverage", "size"} <= set(frame.columns):
        return []
    level = float(frame["level"].mode().iloc[0])
    frame = frame[(frame["level"] == level) & (frame[PREDICTOR] == predictor)]
    lines: list[tuple[str, str, Select]] = [
        (name, WEIGHTS.get(name, name), lambda rows, name=name: rows[rows["weights"] == name])  # type: ignore[misc]
        for name in dict.fromkeys(frame["weights"])
    ]
    figures = []
    for key, title, subtitle in (
        ("coverage", f"Coverage of {100 * level:g}% prediction sets", "% of records whose set holds their label"),
        ("size", f"Size of {100 * level:g}% prediction sets", "mean number of classes in a set"),
    ):
        panels = _by_severity(study, frame, lines, key) or _by_place(frame, lines, key)
        if panels:
            share = key == "coverage"
            figures.append(
                PanelFigure(
                    f"conformal-{key}", title, subtitle, "Coverage, %" if share else "Classes in a set", panels,
                    100.0 if share else 1.0, 1 if share else 2, level=level if share else None,
                    grey="promised" if share else "", from_zero=not share,
                )
            )  # fmt: skip
    return figures


def _by_severity(
    study: StudyResults,
    frame: pd.DataFrame,
    lines: Sequence[tuple[str, str, Select]],
    column: str,
    reference: str = "",
) -> tuple[Panel, ...]:
    panels = []
    for kind in shift_kinds(study, frame):
        known = sorted({int(value) for value in frame[frame[SHIFT] == kind][SEVERITY].dropna()})
        severities = [UNSHIFTED, *known]
        drawn = []
        for method, words, select in lines:
            marks = []
            for severity in severities:
                value = estimate(select(at_severity(study, frame, kind, severity)), column)
                if value is not None:
                    marks.append(Mark(severity, str(severity), value))
            if marks:
                drawn.append(Line(method, words, tuple(marks)))
        level = []
        for severity in severities if reference else ():
            value = estimate(at_severity(study, frame, kind, severity), reference)
            level += [(float(severity), value.mean)] if value else []
        if drawn:
            ticks = tuple(str(severity) for severity in range(severities[-1] + 1))
            panels.append(Panel(kind, "", tuple(drawn), ticks, tuple(level)))
    return tuple(panels)


def _by_place(frame: pd.DataFrame, lines: Sequence[tuple[str, str, Select]], column: str) -> tuple[Panel, ...]:
    sites = [site for site in dict.fromkeys(frame["site"]) if not str(site).startswith(POOLED)]
    panels = []
    for first in range(0, len(sites), MOST_PLACES):
        places = sites[first : first + MOST_PLACES]
        drawn = []
        for method, words, select in lines:
            found = [(site, estimate(select(frame[frame["site"] == site]), column)) for site in places]
            marks = [Mark(places.index(site), site, value) for site, value in found if value is not None]
            if marks:
                drawn.append(Line(method, words, tuple(marks), joined=False))
        if drawn:
            panels.append(Panel("each site", "", tuple(drawn), tuple(places)))
    return tuple(panels)
