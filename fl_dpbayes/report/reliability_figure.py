"""The reliability diagram: accuracy against confidence, with the band of a calibrated model and the confidences."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.config.summary import ReliabilityBin, ReliabilityRecord
from fl_dpbayes.report.figure_style import BAND, MUTED, WIDTH_INCHES, predictor_style, quiet_grid, set_title

TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
PERCENT = ("0", "25", "50", "75", "100")


def reliability_figure(row: ReliabilityRecord, title: str, subtitle: str) -> Figure:
    """Draw one reliability diagram above the histogram of its confidences."""
    figure = Figure(figsize=(WIDTH_INCHES, 4.3))
    set_title(figure, title, subtitle)
    diagram = figure.add_axes((0.085, 0.325, 0.865, 0.515))
    histogram = figure.add_axes((0.085, 0.105, 0.865, 0.135))
    _draw_diagram(diagram, row)
    _draw_histogram(histogram, row)
    return figure


def draw_bins(axes: Axes, row: ReliabilityRecord, marker_size: float) -> None:
    """Draw the band of a calibrated model, the diagonal, and accuracy against confidence in every bin."""
    for part in row.bins:
        if part.band_low is not None and part.band_high is not None:
            axes.fill_between(
                [part.low, part.high], part.band_low, part.band_high, facecolor=BAND, edgecolor=BAND, linewidth=0.5
            )
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    style = predictor_style(row.predictor)
    parts = [part for part in row.bins if part.n and part.confidence is not None and part.accuracy is not None]
    x = [part.confidence or 0.0 for part in parts]
    y = [part.accuracy or 0.0 for part in parts]
    axes.plot(x, y, color=style.colour, linewidth=1.3)
    for part, horizontal, vertical in zip(parts, x, y, strict=True):
        fill = style.colour if _outside(part) else "white"
        axes.plot(
            horizontal,
            vertical,
            style.marker,
            color=style.colour,
            markerfacecolor=fill,
            markersize=marker_size,
            zorder=3,
            clip_on=False,
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _draw_diagram(axes: Axes, row: ReliabilityRecord) -> None:
    quiet_grid(axes, "y")
    draw_bins(axes, row, 4.2)
    axes.text(0.17, 0.19, "calibrated", color=MUTED, size=7.5, rotation=35, ha="center", va="bottom")
    axes.text(0.03, 0.955, "above the line: too cautious", size=7.5, color=MUTED, va="top")
    axes.text(0.985, 0.03, "below: too sure of itself", size=7.5, color=MUTED, ha="right")
    axes.set(title="accuracy, %")
    axes.set_yticks(TICKS, PERCENT)
    axes.set_xticks(TICKS, [""] * len(TICKS))


def _outside(part: ReliabilityBin) -> bool:
    if part.accuracy is None or part.band_low is None or part.band_high is None:
        return False
    return not part.band_low <= part.accuracy <= part.band_high


def _draw_histogram(axes: Axes, row: ReliabilityRecord) -> None:
    quiet_grid(axes, "y")
    total = sum(part.n for part in row.bins)
    for part in row.bins:
        share = 100 * part.n / total if total else 0.0
        width = part.high - part.low
        axes.bar(part.low, share, width=0.92 * width, align="edge", color=predictor_style(row.predictor).colour)
    axes.set(xlim=(0, 1), xlabel="confidence: probability of the predicted class, %", title="records, %")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
    axes.set_xticks(TICKS, PERCENT)
