"""Figures of curves: epsilon after each round, net benefit over thresholds, ROC."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.calibration import CalibrationRecord, ReliabilityRecord
from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.figure_style import INK, MUTED, predictor_style
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.run_files import EpsilonCurve
from fl_dpbayes.report.wording import predictor_name

MOST_BUDGETS = 2


@dataclass(frozen=True)
class _EqualCurves:
    """Sites that spent the same after each round, whose curves lie on top of each other."""

    curve: EpsilonCurve
    sites: list[str] = field(default_factory=list)


def epsilon_figure(curves: Sequence[EpsilonCurve], subtitle: str) -> Figure | None:
    """Draw epsilon after each round, at equal sites as one line, and the budgets."""
    finite = [curve for curve in curves if all(map(math.isfinite, curve.epsilons))]
    if not finite:
        return None
    groups = _equal_curves(finite)
    figure = look.titled_figure("Epsilon spent after each round", subtitle, 2.9)
    axes = figure.subplots()
    look.quiet_grid(axes, "y")
    if len(groups) <= len(look.CYCLE):
        for group, colour in zip(groups, look.CYCLE, strict=False):
            _draw_named_curve(axes, group, colour)
    else:
        for group in groups:
            axes.plot(
                group.curve.rounds,
                group.curve.epsilons,
                color=MUTED,
                linewidth=0.8,
                alpha=0.4,
                label=f"{len(finite)} sites",
            )
    budgets = {
        curve.budget for curve in finite if curve.budget is not None and math.isfinite(curve.budget)
    }
    for budget in sorted(budgets)[-MOST_BUDGETS:]:
        axes.axhline(
            budget, color=INK, linewidth=1, linestyle=(0, (5, 3)), label=f"budget {budget:g}"
        )
    axes.set(xlabel="round", title="epsilon")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    look.add_legend(figure)
    return figure


def _equal_curves(curves: Sequence[EpsilonCurve]) -> list[_EqualCurves]:
    """Gather sites that spent the same; the largest spender comes first."""
    groups: dict[tuple[object, ...], _EqualCurves] = {}
    for curve in curves:
        key = (curve.rounds, tuple(round(epsilon, 4) for epsilon in curve.epsilons))
        groups.setdefault(key, _EqualCurves(curve)).sites.append(curve.site)
    return sorted(groups.values(), key=lambda group: -group.curve.epsilons[-1])


def _draw_named_curve(axes: Axes, group: _EqualCurves, colour: str) -> None:
    label = look.short(group.sites[0], 24)
    if len(group.sites) > 1:
        label += f" and {len(group.sites) - 1} more"
    axes.plot(
        group.curve.rounds,
        group.curve.epsilons,
        color=colour,
        marker="o",
        markersize=2.8,
        linewidth=1.3,
        label=label,
    )


def net_benefit_figure(rows: Sequence[CalibrationRecord], title: str) -> Figure:
    """Draw the net benefit of each predictor at one place over the threshold of treatment."""
    first = rows[0]
    figure = look.titled_figure(
        title,
        subtitle=f"net benefit per 100 records, n = {count(first.n)}; band: 95% interval",
        body_inches=2.4 + look.LEGEND_INCHES * math.ceil(len(rows) / 2 + 1),
    )
    axes = figure.subplots()
    look.quiet_grid(axes, "y")
    curve = first.net_benefit or ()
    thresholds = [100 * point.threshold for point in curve]
    lows = [_hundred(point.interval[0] if point.interval else None) for point in curve]
    highs = [_hundred(point.interval[1] if point.interval else None) for point in curve]
    axes.fill_between(
        thresholds,
        lows,
        highs,
        color=predictor_style(first.predictor).colour,
        alpha=0.15,
        linewidth=0,
    )
    benefits: list[float] = []
    for row in rows:
        benefits += _draw_net_benefit(axes, row)
    everyone = [_hundred(point.all) for point in curve]
    axes.plot(
        thresholds, everyone, color=INK, linewidth=1, linestyle=(0, (4, 3)), label="treat all"
    )
    axes.axhline(0, color=MUTED, linewidth=1.2, label="treat none")
    known_highs = [_hundred(point.interval[1]) for point in curve if point.interval]
    best = max([1.0, *benefits, *everyone, *known_highs])
    # Net benefit falls without bound at high thresholds: lines leave below.
    lowest = max(min([0.0, *benefits]), -0.4 * best)
    axes.set(xlim=(0, 100), ylim=(lowest - 0.08 * best, 1.05 * best))
    axes.set_xlabel("treat above a predicted probability of, %")
    look.add_legend(figure)
    return figure


def _draw_net_benefit(axes: Axes, row: CalibrationRecord) -> list[float]:
    """Draw a predictor's curve and return its values per 100 records."""
    curve = row.net_benefit or ()
    style = predictor_style(row.predictor)
    benefits = [_hundred(point.model) for point in curve]
    axes.plot(
        [100 * point.threshold for point in curve],
        benefits,
        label=predictor_name(row),
        marker=style.marker,
        markersize=3,
        color=style.colour,
        linewidth=1.3,
    )
    return benefits


def roc_figure(rows: Sequence[ReliabilityRecord], title: str, subtitle: str) -> Figure:
    """Draw the ROC curve of each predictor at one place.

    A band holds every curve that the counted bins allow.
    """
    height = 3.4 + look.LEGEND_INCHES * math.ceil(len(rows) / 2)
    figure = look.titled_figure(title, subtitle, height)
    axes = figure.subplots()
    look.quiet_grid(axes, "y")
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    for row in rows:
        colour = predictor_style(row.predictor).colour
        false_alarms = [100 * false_positive for false_positive, _ in row.roc]
        sensitivities = [100 * true_positive for _, true_positive in row.roc]
        axes.fill_between(
            false_alarms,
            sensitivities,
            [*sensitivities[1:], sensitivities[-1]],
            step="post",
            color=colour,
            alpha=0.25,
            linewidth=0,
        )
        axes.plot(
            false_alarms, sensitivities, color=colour, linewidth=1.2, label=predictor_name(row)
        )
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
