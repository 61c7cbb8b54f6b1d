"""Figures of calibration: reliability diagrams, maps of errors, one metric at every site."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.calibration import METRICS, CalibrationRecord, ReliabilityRecord
from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.figure_style import BAND, INK, MUTED, predictor_style
from fl_dpbayes.report.numbers import known_ends
from fl_dpbayes.report.wording import place_name, predictor_name

PREDICTOR_INCHES = 0.1
MAX_PLACES = 40
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
PERCENT = ("0", "25", "50", "75", "100")
MOST_WORST = 5
# The widest part of the axis that a bin of the plain histogram takes is a fifteenth.
HISTOGRAM_BINS = 15
UNITS = {"share": "%; ", "nats": "nats per record; ", "": ""}


def reliability_figure(row: ReliabilityRecord, title: str, subtitle: str) -> Figure:
    """Draw one reliability diagram above the histogram of its confidences."""
    figure = look.titled_figure(title, subtitle, 3.85)
    axes, histogram = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    look.quiet_grid(axes, "y")
    draw_bins(axes, row, 4.2)
    axes.text(
        0.17, 0.19, "calibrated", color=MUTED, size=7.5, rotation=35, ha="center", va="bottom"
    )
    above = "risks too low" if row.risk else "too cautious"
    below = "risks too high" if row.risk else "too sure of itself"
    axes.text(0.03, 0.955, f"above the line: {above}", size=7.5, color=MUTED, va="top")
    axes.text(0.985, 0.03, f"below: {below}", size=7.5, color=MUTED, ha="right")
    axes.set(title="observed, %" if row.risk else "accuracy, %")
    axes.set_yticks(TICKS, PERCENT)
    look.quiet_grid(histogram, "y")
    draw_histogram(histogram, row)
    across = "confidence: probability of the predicted class, %"
    if row.risk:
        across = "predicted risk, %"
    histogram.set(xlim=(0, 1), xlabel=across, title="records, %")
    histogram.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
    histogram.set_xticks(TICKS, PERCENT)
    return figure


def draw_histogram(axes: Axes, row: ReliabilityRecord) -> None:
    """Draw what share of the records has which risk, or confidence."""
    total = sum(part.n for part in row.bins)
    colour = predictor_style(row.predictor).colour
    for part in row.bins:
        width = part.high - part.low
        # Ranges of unequal width: as many records as a fifteenth of the axis would hold.
        share = 100 * part.n / total / (HISTOGRAM_BINS * width) if total else 0.0
        axes.bar(part.low, share, width=0.92 * width, align="edge", color=colour)


def draw_bins(axes: Axes, row: ReliabilityRecord, marker_size: float) -> None:
    """Draw a calibrated model's band, the diagonal, and accuracy against confidence by bin."""
    for part in row.bins:
        if part.band_low is not None and part.band_high is not None:
            axes.fill_between(
                [part.low, part.high], part.band_low, part.band_high, color=BAND, linewidth=0.5
            )
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    style = predictor_style(row.predictor)
    points = _filled_points(row)
    axes.plot(
        [point.x for point in points],
        [point.y for point in points],
        color=style.colour,
        linewidth=1.3,
    )
    for point in points:
        axes.plot(
            point.x,
            point.y,
            style.marker,
            markerfacecolor=style.colour if point.outside_band else "white",
            color=style.colour,
            markersize=marker_size,
            zorder=3,
            clip_on=False,
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))


@dataclass(frozen=True)
class _Point:
    """A bin of a reliability diagram: mean confidence, accuracy."""

    x: float
    y: float
    outside_band: bool


def _filled_points(row: ReliabilityRecord) -> list[_Point]:
    """Return the bins that hold records."""
    points = []
    for part in row.bins:
        if not part.n or part.confidence is None or part.accuracy is None:
            continue
        outside = False
        if part.band_low is not None and part.band_high is not None:
            outside = not part.band_low <= part.accuracy <= part.band_high
        points.append(_Point(x=part.confidence, y=part.accuracy, outside_band=outside))
    return points


def heat_figure(values: Mapping[tuple[str, str], float], title: str, subtitle: str) -> Figure:
    """Draw a number for each row and column, and name the five largest.

    Args:
        values: (row, column) -> number, the larger the deeper its colour.
        title: The figure's title.
        subtitle: The quieter text below it.
    """
    rows = sorted({row for row, _ in values})
    columns = sorted({column for _, column in values})
    worst = sorted(values, key=lambda key: -values[key])[:MOST_WORST]
    listed = ", ".join(f"{row} {column} ({values[row, column]:.1f})" for row, column in worst)
    figure = look.titled_figure(title, f"{subtitle}\nworst: {listed}", 0.22 * len(rows) + 0.2)
    axes = figure.subplots()
    most = max(values.values()) or 1.0
    for (row, column), value in values.items():
        x = columns.index(column)
        y = rows.index(row)
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
    names = {row.site: place_name(row.site) for row in rows if row.metric(metric) is not None}
    places = list(names)[:MAX_PLACES]
    if not places:
        return None
    predictors = [name for name in PREDICTORS if any(row.predictor == name for row in rows)]
    row_inches = PREDICTOR_INCHES * (max(2, len(predictors)) + 0.7)
    legend_inches = 0.3 + look.LEGEND_INCHES * math.ceil(len(predictors) / 2)
    cut = "" if len(places) == len(names) else f"; the first {len(places)} of {len(names)}"
    is_error = METRICS[metric].calibration_error
    unit = "percentage points; " if is_error else UNITS[METRICS[metric].unit]
    figure = look.titled_figure(
        title,
        subtitle=f"{unit}line: 95% interval{cut}",
        body_inches=legend_inches + row_inches * len(places),
    )
    axes = figure.subplots()
    look.quiet_grid(axes, "x")
    step = PREDICTOR_INCHES / row_inches
    for row in rows:
        if row.site in places and row.predictor in predictors:
            offset = (predictors.index(row.predictor) - (len(predictors) - 1) / 2) * step
            _draw_row(axes, row, metric=metric, vertical=places.index(row.site) + offset)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_yticks(range(len(places)), [look.short(names[place], 22) for place in places])
    for label, place in zip(axes.get_yticklabels(), places, strict=True):
        label.set(color=INK, fontweight="bold" if place.startswith("pooled:") else "normal")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if is_error:
        axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    look.add_legend(figure)
    return figure


def _draw_row(axes: Axes, row: CalibrationRecord, *, metric: str, vertical: float) -> None:
    value = row.metric(metric)
    if value is None:
        return
    scale = 100 if METRICS[metric].unit == "share" else 1
    style = predictor_style(row.predictor)
    ends = known_ends(row.intervals.get(metric))
    if ends is not None:
        axes.plot(
            [scale * ends[0], scale * ends[1]],
            [vertical, vertical],
            color=style.colour,
            linewidth=1.4,
        )
    axes.plot(
        scale * value,
        vertical,
        style.marker,
        label=predictor_name(row),
        color=style.colour,
        markersize=4,
        linestyle="",
        zorder=3,
    )
