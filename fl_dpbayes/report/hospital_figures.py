"""Figures of hospitals: all in one, and the calibration of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.calibration import CalibrationRecord, ReliabilityRecord, wilson_interval
from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.calibration_figures import PERCENT, TICKS, draw_histogram
from fl_dpbayes.report.figure_style import BAND, INK, MUTED, predictor_style
from fl_dpbayes.report.measure_tables import signed, two_places
from fl_dpbayes.report.numbers import count, known_ends, unbroken
from fl_dpbayes.report.page_tables import metric_cell

MOST_NAMED = 6
LONGEST_NAME = 18
# Of names beside the axes, in heights of these.
NAMES_APART = 0.055


@dataclass(frozen=True)
class HospitalPanel:
    """What is drawn of a hospital's calibration.

    Attributes:
        row: Its measures.
        words: What they show of level and spread.
        diagram: Its curve and the histogram of its risks; None where it sent noised sums.
    """

    row: CalibrationRecord
    words: str
    diagram: ReliabilityRecord | None


def hospital_figure(panel: HospitalPanel, title: str) -> Figure:
    """Draw how often the event happens at each risk, above the histogram of risks.

    A smooth curve with its band where enough records tell one, else bins with their intervals, else
    the hospital's mean alone.
    """
    row = panel.row
    intercept = " ".join(metric_cell(row, "calibration_intercept", signed))
    slope = " ".join(metric_cell(row, "calibration_slope", two_places))
    subtitle = unbroken(
        f"intercept {intercept.strip()}; slope {slope.strip()}\nn = {count(row.n)}. {panel.words}"
    )
    figure = look.titled_figure(title, subtitle, 3.0 if panel.diagram else 2.4)
    if panel.diagram is None:
        axes = figure.subplots()
    else:
        axes, histogram = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
        _draw_risks(histogram, panel.diagram)
    look.quiet_grid(axes, "y")
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    _draw_calibration(axes, panel)
    axes.set(xlim=(0, 1), ylim=(0, 1), title="happened, %")
    axes.set_yticks(TICKS, PERCENT)
    figure.axes[-1].set_xlabel("predicted risk, %")
    figure.axes[-1].set_xticks(TICKS, PERCENT)
    return figure


def _draw_risks(axes: Axes, diagram: ReliabilityRecord) -> None:
    look.quiet_grid(axes, "y")
    draw_histogram(axes, diagram)
    axes.set(xlim=(0, 1), title="patients, %")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))


def _draw_calibration(axes: Axes, panel: HospitalPanel) -> None:
    colour = predictor_style(panel.row.predictor).colour
    diagram = panel.diagram
    if diagram is not None and diagram.curve:
        risks = [point.risk for point in diagram.curve]
        axes.fill_between(
            risks,
            [point.low for point in diagram.curve],
            [point.high for point in diagram.curve],
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(risks, [point.observed for point in diagram.curve], color=colour, linewidth=1.5)
        return
    if diagram is not None:
        for part in diagram.bins:
            if part.n and part.confidence is not None and part.accuracy is not None:
                within = wilson_interval(part.accuracy * part.n, part.n)
                _draw_point(axes, part.confidence, part.accuracy, within, colour)
        return
    if panel.row.mean_risk is not None and panel.row.event_rate is not None:
        ends = known_ends(panel.row.intervals.get("event_rate"))
        _draw_point(axes, panel.row.mean_risk, panel.row.event_rate, ends, colour)


def _draw_point(
    axes: Axes, risk: float, share: float, ends: tuple[float, float] | None, colour: str
) -> None:
    if ends is not None:
        axes.plot([risk, risk], ends, color=BAND, linewidth=1.6, zorder=1)
    axes.plot(risk, share, "o", color=colour, markersize=4)


def hospitals_figure(rows: Sequence[CalibrationRecord], title: str, subtitle: str) -> Figure:
    """Draw each hospital's mean risk against the share of its patients with the event.

    Args:
        rows: Of single hospitals, with both.
        title: Of the figure.
        subtitle: Below it.
    """
    figure = look.titled_figure(title, subtitle, 3.4)
    axes = figure.subplots()
    look.quiet_grid(axes, "x")
    look.quiet_grid(axes, "y")
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    for row in rows:
        if row.mean_risk is None or row.event_rate is None:
            continue
        ends = known_ends(row.intervals.get("event_rate"))
        colour = predictor_style(row.predictor).colour
        if ends is not None:
            axes.plot([row.mean_risk] * 2, ends, color=BAND, linewidth=1.4, zorder=1)
        axes.plot(
            row.mean_risk,
            row.event_rate,
            "o",
            color=colour,
            markersize=5,
            markerfacecolor="none" if row.role == "train" else colour,
        )
    farthest = sorted(rows, key=lambda row: -abs((row.mean_risk or 0) - (row.event_rate or 0)))
    unseen = [row for row in farthest if row.role != "train"]
    named = (unseen or farthest)[:MOST_NAMED]
    _name_beside(axes, named)
    axes.text(0.03, 0.955, "above the line: risks too low", size=7.5, color=MUTED, va="top")
    axes.text(0.985, 0.03, "below: risks too high", size=7.5, color=MUTED, ha="right")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted, of 100 patients", title="happened")
    axes.set_xticks(TICKS, PERCENT)
    axes.set_yticks(TICKS, PERCENT)
    return figure


def _name_beside(axes: Axes, rows: Sequence[CalibrationRecord]) -> None:
    """Write names to the right of the axes, where no dot is, with a line to each one's dot."""
    by_height = sorted(rows, key=lambda row: row.event_rate or 0)
    heights = heights_apart([row.event_rate or 0 for row in by_height])
    for row, height in zip(by_height, heights, strict=True):
        axes.annotate(
            look.short(row.site, LONGEST_NAME),
            (row.mean_risk or 0, row.event_rate or 0),
            xytext=(1.04, height),
            va="center",
            size=7,
            color=INK,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkB": 2},
            annotation_clip=False,
        )


def heights_apart(heights: Sequence[float]) -> list[float]:
    """Move heights apart as far as names need, none above the axes.

    Args:
        heights: From low to high, in [0, 1].

    Returns:
        The same order, `NAMES_APART` or more from each other, at most 1.
    """
    apart: list[float] = []
    for height in heights:
        apart.append(max(height, apart[-1] + NAMES_APART) if apart else height)
    highest = 1.0
    for place in reversed(range(len(apart))):
        apart[place] = min(apart[place], highest)
        highest = apart[place] - NAMES_APART
    return apart
