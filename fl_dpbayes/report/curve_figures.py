"""Figures of curves: epsilon after each round at each site, and net benefit over the threshold of treatment."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.config.summary import CalibrationRecord, ReliabilityRecord
from fl_dpbayes.report.figure_style import (
    CYCLE,
    INK,
    LEGEND_INCHES,
    MUTED,
    WIDTH_INCHES,
    PredictorStyle,
    legend_key,
    predictor_style,
    quiet_grid,
    set_title,
)
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.run_files import EpsilonCurve
from fl_dpbayes.report.wording import predictor_name

MAX_NAMED = len(CYCLE)


def epsilon_figure(curves: Sequence[EpsilonCurve], subtitle: str) -> Figure | None:
    """Draw epsilon after each round; names stand at the lines' ends."""
    drawn = [curve for curve in curves if all(map(math.isfinite, curve.epsilons))]
    if not drawn:
        return None
    figure = Figure(figsize=(WIDTH_INCHES, 3.1))
    set_title(figure, "Epsilon spent after each round", subtitle)
    axes = figure.add_axes((0.1, 0.145, 0.57, 0.615))
    quiet_grid(axes, "y")
    # Sites that spent the same lie on top of each other; the largest spender comes first.
    joined: dict[tuple, tuple[EpsilonCurve, list[str]]] = {}
    for curve in drawn:
        key = (curve.rounds, tuple(round(epsilon, 4) for epsilon in curve.epsilons))
        joined.setdefault(key, (curve, []))[1].append(curve.site)
    groups = sorted(joined.values(), key=lambda group: -group[0].epsilons[-1])
    labels: list[tuple[float, str, str]] = []
    if len(groups) <= MAX_NAMED:
        for colour, (curve, sites) in zip(CYCLE, groups, strict=False):
            axes.plot(curve.rounds, curve.epsilons, color=colour, linewidth=1.3, marker="o", markersize=2.8)
            name = sites[0] if len(sites) == 1 else f"{sites[0]} and {len(sites) - 1} more"
            labels.append((curve.epsilons[-1], name if len(name) <= 24 else f"{name[:23]}…", colour))
    else:
        for curve, _ in groups:
            axes.plot(curve.rounds, curve.epsilons, color=MUTED, linewidth=0.8, alpha=0.4)
        labels.append((groups[0][0].epsilons[-1], f"{len(drawn)} sites", MUTED))
    budgets = sorted({curve.budget for curve in drawn if curve.budget is not None and math.isfinite(curve.budget)})
    for budget in budgets[-2:]:
        axes.axhline(budget, color=INK, linewidth=1, linestyle=(0, (5, 3)))
        labels.append((budget, f"budget {budget:g}", INK))
    top = max([*budgets[-2:], *(curve.epsilons[-1] for curve in drawn)]) or 1.0
    ends = min(curve.rounds[0] for curve in drawn) - 0.2, max(curve.rounds[-1] for curve in drawn) + 0.2
    axes.set(ylim=(0, 1.08 * top), xlim=ends, xlabel="round", title="epsilon")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for height, text, colour in _spread(labels, distance=0.072 * top):
        axes.annotate(
            text, (1.0, height), xycoords=axes.get_yaxis_transform(), xytext=(4, 0), textcoords="offset points",
            color=colour, size=7.5, va="center", annotation_clip=False,
        )  # fmt: skip
    return figure


def _spread(labels: list[tuple[float, str, str]], distance: float) -> list[tuple[float, str, str]]:
    """Move labels down until neighbours are `distance` apart, so that none covers another."""
    spread: list[tuple[float, str, str]] = []
    for height, text, colour in sorted(labels, key=lambda label: -label[0]):
        spread.append((min(height, spread[-1][0] - distance) if spread else height, text, colour))
    return spread


def net_benefit_figure(rows: Sequence[CalibrationRecord], title: str) -> Figure:
    """Draw the net benefit of each predictor at one place over the threshold above which a patient is treated."""
    legend = {predictor_name(row): predictor_style(row.predictor) for row in rows}
    legend |= {"treat all": PredictorStyle(INK, ""), "treat none": PredictorStyle(MUTED, "")}
    below = 0.36 + LEGEND_INCHES * -(-len(legend) // 2)
    height = 2.55 + below
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, title, f"net benefit per 100 records, n = {count(rows[0].n)}; band: 95% interval")
    axes = figure.add_axes((0.1, (below + 0.16) / height, 0.86, 1.9 / height))
    quiet_grid(axes, "y")
    curves = [row.net_benefit or () for row in rows]
    threshold = [100 * point.threshold for point in curves[0]]
    ends = [point.interval for point in curves[0]]
    low, high = ([_hundred(end[at] if end else None) for end in ends] for at in (0, 1))
    axes.fill_between(threshold, low, high, color=predictor_style(rows[0].predictor).colour, alpha=0.15, linewidth=0)
    axes.plot(threshold, [_hundred(point.all) for point in curves[0]], color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.axhline(0, color=MUTED, linewidth=1.2)
    values = []
    for row, curve in zip(rows, curves, strict=True):
        style, across = predictor_style(row.predictor), [100 * point.threshold for point in curve]
        benefit = [_hundred(point.model) for point in curve]
        values += benefit
        axes.plot(across, benefit, marker=style.marker, markersize=3, color=style.colour, linewidth=1.3)
    upper = [_hundred(end[1]) for end in ends if end]
    best = max([1.0, *values, *upper, *(_hundred(point.all) for point in curves[0])])
    # Net benefit falls without bound at high thresholds: lines leave below.
    axes.set(xlim=(0, 100), ylim=(max(min([0.0, *values]), -0.4 * best) - 0.08 * best, 1.05 * best))
    axes.set_xlabel("treat above a predicted probability of, %")
    for number, (words, style) in enumerate(legend.items()):
        key = legend_key(figure, divmod(number, 2), words, style.colour, below - 0.32, 0.06)
        dashes = (0, (4, 3)) if words == "treat all" else "-"
        key.plot([0, 1, 2], [0, 0, 0], color=style.colour, linewidth=1.2, linestyle=dashes)
        key.plot(1, 0, marker=style.marker, color=style.colour, markersize=3.5)
    return figure


def roc_figure(rows: Sequence[ReliabilityRecord], title: str, subtitle: str) -> Figure:
    """Draw the ROC curve of each predictor at one place; a band holds every curve that the counted bins allow."""
    legend = LEGEND_INCHES * -(-len(rows) // 2)
    height = 3.9 + legend
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, title, subtitle)
    axes = figure.add_axes((0.1, (0.42 + legend) / height, 0.86, 2.8 / height))
    quiet_grid(axes, "y")
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    for index, row in enumerate(rows):
        style = predictor_style(row.predictor)
        x, y = ([100 * point[at] for point in row.roc] for at in (0, 1))
        axes.fill_between(x, y, [*y[1:], y[-1]], step="post", color=style.colour, alpha=0.25, linewidth=0)
        axes.plot(x, y, color=style.colour, linewidth=1.2)
        key = legend_key(figure, divmod(index, 2), predictor_name(row), style.colour, legend, 0.05)
        key.plot([0, 1], [0, 0], color=style.colour, linewidth=1.2)
    axes.set(xlim=(0, 100), ylim=(0, 100), title="sensitivity, %", xlabel="false alarms: 100 less specificity, %")
    return figure


def _hundred(value: float | None) -> float:
    return float("nan") if value is None else 100 * value
