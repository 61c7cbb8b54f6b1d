"""Figures of curves: epsilon after each round at each site, and net benefit over the threshold of treatment."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.config import CalibrationRecord, ReliabilityRecord
from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.figure_style import INK, MUTED, predictor_style
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.run_files import EpsilonCurve
from fl_dpbayes.report.wording import predictor_name


def epsilon_figure(curves: Sequence[EpsilonCurve], subtitle: str) -> Figure | None:
    """Draw epsilon after each round, at equal sites as one line, and the budgets."""
    drawn = [curve for curve in curves if all(map(math.isfinite, curve.epsilons))]
    if not drawn:
        return None
    # Sites that spent the same lie on top of each other; the largest spender comes first.
    joined: dict[tuple, tuple[EpsilonCurve, list[str]]] = {}
    for curve in drawn:
        key = (curve.rounds, tuple(round(epsilon, 4) for epsilon in curve.epsilons))
        joined.setdefault(key, (curve, []))[1].append(curve.site)
    groups = sorted(joined.values(), key=lambda group: -group[0].epsilons[-1])
    budgets = sorted(
        {
            curve.budget
            for curve in drawn
            if curve.budget is not None and math.isfinite(curve.budget)
        }
    )
    figure = look.titled_figure("Epsilon spent after each round", subtitle, 2.9)
    axes = figure.subplots()
    look.quiet_grid(axes, "y")
    for number, (curve, sites) in enumerate(groups):
        style: Any = {
            "color": MUTED,
            "linewidth": 0.8,
            "alpha": 0.4,
            "label": f"{len(drawn)} sites",
        }
        if len(groups) <= len(look.CYCLE):
            name = look.short(sites[0], 24) + (
                f" and {len(sites) - 1} more" if len(sites) > 1 else ""
            )
            style = {
                "color": look.CYCLE[number],
                "marker": "o",
                "markersize": 2.8,
                "linewidth": 1.3,
                "label": name,
            }
        axes.plot(curve.rounds, curve.epsilons, **style)
    for budget in budgets[-2:]:
        axes.axhline(
            budget, color=INK, linewidth=1, linestyle=(0, (5, 3)), label=f"budget {budget:g}"
        )
    axes.set(xlabel="round", title="epsilon")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    look.add_legend(figure)
    return figure


def net_benefit_figure(rows: Sequence[CalibrationRecord], title: str) -> Figure:
    """Draw the net benefit of each predictor at one place over the threshold above which a patient is treated."""
    subtitle = f"net benefit per 100 records, n = {count(rows[0].n)}; band: 95% interval"
    figure = look.titled_figure(
        title, subtitle, 2.4 + look.LEGEND_INCHES * math.ceil(len(rows) / 2 + 1)
    )
    axes = figure.subplots()
    look.quiet_grid(axes, "y")
    curves = [row.net_benefit or () for row in rows]
    threshold = [100 * point.threshold for point in curves[0]]
    ends = [point.interval for point in curves[0]]
    low, high = ([_hundred(end[at] if end else None) for end in ends] for at in (0, 1))
    axes.fill_between(
        threshold,
        low,
        high,
        color=predictor_style(rows[0].predictor).colour,
        alpha=0.15,
        linewidth=0,
    )
    values = []
    for row, curve in zip(rows, curves, strict=True):
        style, across = predictor_style(row.predictor), [100 * point.threshold for point in curve]
        benefit = [_hundred(point.model) for point in curve]
        values += benefit
        shape: Any = {
            "marker": style.marker,
            "markersize": 3,
            "color": style.colour,
            "linewidth": 1.3,
        }
        axes.plot(across, benefit, label=predictor_name(row), **shape)
    everyone = [_hundred(point.all) for point in curves[0]]
    axes.plot(threshold, everyone, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="treat all")
    axes.axhline(0, color=MUTED, linewidth=1.2, label="treat none")
    best = max([1.0, *values, *everyone, *(_hundred(end[1]) for end in ends if end)])
    # Net benefit falls without bound at high thresholds: lines leave below.
    axes.set(xlim=(0, 100), ylim=(max(min([0.0, *values]), -0.4 * best) - 0.08 * best, 1.05 * best))
    axes.set_xlabel("treat above a predicted probability of, %")
    look.add_legend(figure)
    return figure


def roc_figure(rows: Sequence[ReliabilityRecord], title: str, subtitle: str) -> Figure:
    """Draw the ROC curve of each predictor at one place.

    A band holds every curve that the counted bins allow.
    """
    figure = look.titled_figure(
        title, subtitle, 3.4 + look.LEGEND_INCHES * math.ceil(len(rows) / 2)
    )
    axes = figure.subplots()
    look.quiet_grid(axes, "y")
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    for row in rows:
        colour = predictor_style(row.predictor).colour
        x, y = ([100 * point[at] for point in row.roc] for at in (0, 1))
        axes.fill_between(x, y, [*y[1:], y[-1]], step="post", color=colour, alpha=0.25, linewidth=0)
        axes.plot(x, y, color=colour, linewidth=1.2, label=predictor_name(row))
    axes.set(
        xlim=(0, 100),
        ylim=(0, 100),
        title="sensitivity, %",
        xlabel="false alarms: 100 less specificity, %",
    )
    look.add_legend(figure)
    return figure


def _hundred(value: float | None) -> float:
    return float("nan") if value is None else 100 * value
