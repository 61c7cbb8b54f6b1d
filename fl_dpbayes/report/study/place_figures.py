"""Figures of places: each site, subgroups of the records, and made-up records whose truth is known."""

from collections.abc import Sequence

import pandas as pd

from fl_dpbayes.report.study.estimates import estimate
from fl_dpbayes.report.study.lines import OVER_SEEDS, line_over, metric_figure
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import place_words, quantity
from fl_dpbayes.report.study.results import PREDICTOR, SEVERITY, StudyResults
from fl_dpbayes.report.wording import ROLES

SITES_PER_PANEL, MOST_SITES = 6, 60
SHORT = {"train": "trains", "held_out": "held out", "shifted": "shifted"}


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
    roles = [role for role in SHORT if (frame["role"] == role).any()]
    changing = frame.groupby("site")["role"].nunique().gt(1).any() if sites else False
    panels = []
    if changing:
        for site in sites:
            of_site = frame[frame["site"] == site]
            here = [
                (SHORT[role], of_site[of_site["role"] == role]) for role in roles if (of_site["role"] == role).any()
            ]
            panels += _place_panels(study, site, here)
    else:
        for role in roles:
            names = [site for site in sites if ((frame["site"] == site) & (frame["role"] == role)).any()]
            for first in range(0, len(names), SITES_PER_PANEL):
                here = [(name, frame[frame["site"] == name]) for name in names[first : first + SITES_PER_PANEL]]
                panels += _place_panels(study, ROLES[role], here)
    if not panels:
        return None
    return metric_figure(quantity(study.metric), "sites", "site by site", f"mean over settings; {OVER_SEEDS}", panels)


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
        panels += _place_panels(study, str(attribute), here)
    if not panels:
        return None
    title = f"by subgroup, {place_words(study.record.where)}"
    return metric_figure(measured, "subgroups", title, f"mean over settings; {OVER_SEEDS}", panels)


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
            marks: list[Mark] = []
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


def _place_panels(study: StudyResults, title: str, places: Sequence[tuple[str, pd.DataFrame]]) -> list[Panel]:
    ticks = [name for name, _ in places]
    lines = []
    for predictor in study.predictors(pd.concat([rows for _, rows in places])):
        found = [estimate(rows[rows[PREDICTOR] == predictor], study.metric) for _, rows in places]
        line = line_over(predictor, study.words(PREDICTOR, predictor), ticks, found, joined=False)
        lines += [line] if line else []
    return [Panel(title, "", tuple(lines), tuple(ticks))] if lines else []
