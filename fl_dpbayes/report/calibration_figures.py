"""Figures of calibration: accuracy against confidence, over sites and at each, and one metric at every site."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.config import METRICS, PREDICTORS, CalibrationRecord, ReliabilityRecord
from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.figure_style import BAND, INK, MUTED, predictor_style
from fl_dpbayes.report.numbers import known
from fl_dpbayes.report.wording import place_name, predictor_name

PREDICTOR_INCHES = 0.1
MAX_PLACES = 40
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
PERCENT = ("0", "25", "50", "75", "100")
MOST_WORST = 5


def reliability_figure(row: ReliabilityRecord, title: str, subtitle: str) -> Figure:
    """Draw one reliability diagram above the histogram of its confidences."""
    figure = look.titled_figure(title, subtitle, 3.85)
    axes, histogram = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    look.quiet_grid(axes, "y")
    draw_bins(axes, row, 4.2)
    axes.text(
        0.17, 0.19, "calibrated", color=MUTED, size=7.5, rotation=35, ha="center", va="bottom"
    )
    above, below = (
        ("risks too low", "risks too high") if row.risk else ("too cautious", "too sure of itself")
    )
    axes.text(0.03, 0.955, f"above the line: {above}", size=7.5, color=MUTED, va="top")
    axes.text(0.985, 0.03, f"below: {below}", size=7.5, color=MUTED, ha="right")
    axes.set(title="observed, %" if row.risk else "accuracy, %")
    axes.set_yticks(TICKS, PERCENT)
    look.quiet_grid(histogram, "y")
    total, colour = sum(part.n for part in row.bins), predictor_style(row.predictor).colour
    for part in row.bins:
        # Ranges of unequal width: as many records as a fifteenth of the axis would hold.
        share = 100 * part.n / total / (15 * (part.high - part.low)) if total else 0.0
        histogram.bar(
            part.low, share, width=0.92 * (part.high - part.low), align="edge", color=colour
        )
    across = (
        "predicted risk, %" if row.risk else "confidence: probability of the predicted class, %"
    )
    histogram.set(xlim=(0, 1), xlabel=across, title="records, %")
    histogram.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
    histogram.set_xticks(TICKS, PERCENT)
    return figure


def draw_bins(axes: Axes, row: ReliabilityRecord, marker_size: float) -> None:
    """Draw the band of a calibrated model, the diagonal, and accuracy against confidence in every bin."""
    for part in row.bins:
        if part.band_low is not None and part.band_high is not None:
            axes.fill_between(
                [part.low, part.high], part.band_low, part.band_high, color=BAND, linewidth=0.5
            )
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    style = predictor_style(row.predictor)
    parts = [
        part
        for part in row.bins
        if part.n and part.confidence is not None and part.accuracy is not None
    ]
    x, y = [part.confidence or 0.0 for part in parts], [part.accuracy or 0.0 for part in parts]
    axes.plot(x, y, color=style.colour, linewidth=1.3)
    shape: Any = {"color": style.colour, "markersize": marker_size, "zorder": 3, "clip_on": False}
    for part, horizontal, vertical in zip(parts, x, y, strict=True):
        low, high = part.band_low, part.band_high
        outside = low is not None and high is not None and not low <= vertical <= high
        axes.plot(
            horizontal,
            vertical,
            style.marker,
            markerfacecolor=style.colour if outside else "white",
            **shape,
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))


def heat_figure(values: Mapping[tuple[str, str], float], title: str, subtitle: str) -> Figure:
    """Draw a number for each row and column, the larger the deeper its colour, and name the five largest."""
    rows, columns = (sorted({key[at] for key in values}) for at in (0, 1))
    worst = sorted(values, key=lambda key: -values[key])[:MOST_WORST]
    listed = ", ".join(f"{row} {column} ({values[row, column]:.1f})" for row, column in worst)
    figure = look.titled_figure(title, f"{subtitle}\nworst: {listed}", 0.22 * len(rows) + 0.2)
    axes = figure.subplots()
    most = max(values.values()) or 1.0
    for (row, column), value in values.items():
        x, y = columns.index(column), rows.index(row)
        depth = 0.8 * max(0.0, value) / most
        axes.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, color=look.VERMILLION, alpha=depth, linewidth=0)
        )
        axes.text(x, y, f"{value:.1f}", ha="center", va="center", size=7.5)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), [look.short(name, 20) for name in rows])
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return figure


def sites_figure(rows: Sequence[CalibrationRecord], metric: str, title: str) -> Figure | None:
    """Draw one metric for every predictor at the first places.

    The table of all metrics has the others.
    """
    names = {row.site: place_name(row.site) for row in rows if getattr(row, metric) is not None}
    if not (places := list(names)[:MAX_PLACES]):
        return None
    predictors = [name for name in PREDICTORS if any(row.predictor == name for row in rows)]
    row_inches = PREDICTOR_INCHES * (max(2, len(predictors)) + 0.7)
    unit = {"accuracy": "%", "nll": "nats per record"}.get(metric, "percentage points")
    cut = "" if len(places) == len(names) else f"; the first {len(places)} of {len(names)}"
    below = 0.3 + look.LEGEND_INCHES * math.ceil(len(predictors) / 2)
    figure = look.titled_figure(
        title, f"{unit}; line: 95% interval{cut}", below + row_inches * len(places)
    )
    axes = figure.subplots()
    look.quiet_grid(axes, "x")
    step = PREDICTOR_INCHES / row_inches
    for row in rows:
        if row.site in places and row.predictor in predictors:
            offset = (predictors.index(row.predictor) - (len(predictors) - 1) / 2) * step
            _draw_row(axes, row, metric, places.index(row.site) + offset)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_yticks(range(len(places)), [look.short(names[place], 22) for place in places])
    for label, place in zip(axes.get_yticklabels(), places, strict=True):
        label.set(color=INK, fontweight="bold" if place.startswith("pooled:") else "normal")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if metric not in ("accuracy", "nll"):
        axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    look.add_legend(figure)
    return figure


def _draw_row(axes: Axes, row: CalibrationRecord, metric: str, vertical: float) -> None:
    if (value := getattr(row, metric)) is None:
        return
    scale, style = 100 if METRICS[metric].unit == "share" else 1, predictor_style(row.predictor)
    if ends := known(row.intervals.get(metric)):
        axes.plot(
            [scale * ends[0], scale * ends[1]],
            [vertical, vertical],
            color=style.colour,
            linewidth=1.4,
        )
    shape: Any = {"color": style.colour, "markersize": 4, "linestyle": "", "zorder": 3}
    axes.plot(scale * value, vertical, style.marker, label=predictor_name(row), **shape)
