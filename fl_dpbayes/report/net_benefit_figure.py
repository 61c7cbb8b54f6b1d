"""The decision curve: what acting on a predictor gains over treating everybody or nobody."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from fl_dpbayes.config.summary import CalibrationRecord
from fl_dpbayes.report.figure_style import INK, MUTED, WIDTH_INCHES, predictor_style, quiet_grid, set_title
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.wording import predictor_name

LEGEND_INCHES = 0.17


def net_benefit_figure(rows: Sequence[CalibrationRecord], title: str) -> Figure:
    """Draw the net benefit of each predictor at one place over the threshold above which a patient is treated."""
    names = {
        predictor_name(row): (predictor_style(row.predictor).colour, predictor_style(row.predictor).marker)
        for row in rows
    }
    legend: Mapping[str, tuple[str, str]] = names | {"treat all": (INK, ""), "treat none": (MUTED, "")}
    below = 0.36 + LEGEND_INCHES * -(-len(legend) // 2)
    height = 2.55 + below
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, title, f"net benefit per 100 records, n = {count(rows[0].n)}; band: 95% interval")
    axes = figure.add_axes((0.1, (below + 0.16) / height, 0.86, 1.9 / height))
    quiet_grid(axes, "y")
    curves = [row.net_benefit or () for row in rows]
    threshold = [100 * point.threshold for point in curves[0]]
    ends = [point.interval for point in curves[0]]
    axes.fill_between(
        threshold,
        [_hundred(end[0] if end else None) for end in ends],
        [_hundred(end[1] if end else None) for end in ends],
        color=predictor_style(rows[0].predictor).colour,
        alpha=0.15,
        linewidth=0,
    )
    axes.plot(threshold, [_hundred(point.all) for point in curves[0]], color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.axhline(0, color=MUTED, linewidth=1.2)
    values = []
    for row, curve in zip(rows, curves, strict=True):
        style = predictor_style(row.predictor)
        benefit = [_hundred(point.model) for point in curve]
        values += benefit
        axes.plot(
            [100 * point.threshold for point in curve],
            benefit,
            marker=style.marker,
            markersize=3,
            color=style.colour,
            linewidth=1.3,
        )
    upper = [_hundred(end[1]) for end in ends if end]
    best = max([1.0, *values, *upper, *(_hundred(point.all) for point in curves[0])])
    # Net benefit falls without bound at high thresholds: lines leave below.
    axes.set(xlim=(0, 100), ylim=(max(min([0.0, *values]), -0.4 * best) - 0.08 * best, 1.05 * best))
    axes.set_xlabel("treat above a predicted probability of, %")
    for number, (words, (colour, marker)) in enumerate(legend.items()):
        left, bottom = (number % 2) * 0.5, below - 0.36 - LEGEND_INCHES * (number // 2 + 1) + 0.04
        key = figure.add_axes((left, bottom / height, 0.06, 0.13 / height))
        dashes = (0, (4, 3)) if words == "treat all" else "-"
        key.plot([0, 1, 2], [0, 0, 0], color=colour, linewidth=1.2, linestyle=dashes)
        key.plot(1, 0, marker=marker or "", color=colour, markersize=3.5)
        key.set_axis_off()
        figure.text(left + 0.075, (bottom + 0.065) / height, words, color=colour, size=7.5, va="center")
    return figure


def _hundred(value: float | None) -> float:
    return float("nan") if value is None else 100 * value
