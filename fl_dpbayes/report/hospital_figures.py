"""Figures of hospitals: all in one, and the calibration of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

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
# In widths and heights of the axes: of a letter, half of a name's height, a dot with room around
# it, a dot's radius.
LETTER_WIDTH = 0.019
LABEL_HALF = 0.024
DOT = 0.016
RADIUS = 0.011
LABEL_DISTANCES = (0.05, 0.08, 0.12, 0.17, 0.23, 0.3, 0.37, 0.45)
# Away from the dashed line first.
LABEL_TURNS = tuple(
    middle + math.pi * step / 24
    for step in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6, 7, -7, 8, -8, 9, -9, 10, -10)
    for middle in (0.75 * math.pi, -0.25 * math.pi)
)


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
    dots = [(row.mean_risk or 0, row.event_rate or 0) for row in [*named, *rows]]
    names = [look.short(row.site, LONGEST_NAME) for row in named]
    for name, dot, place in zip(names, dots, label_places(names, dots), strict=False):
        if place is not None:
            axes.annotate(
                name,
                dot,
                xytext=place,
                ha="center",
                va="center",
                size=7,
                color=INK,
                arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkB": 2},
            )
    axes.text(0.03, 0.955, "above the line: risks too low", size=7.5, color=MUTED, va="top")
    axes.text(0.985, 0.03, "below: risks too high", size=7.5, color=MUTED, ha="right")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted, of 100 patients", title="happened")
    axes.set_xticks(TICKS, PERCENT)
    axes.set_yticks(TICKS, PERCENT)
    return figure


def label_places(
    names: Sequence[str], dots: Sequence[tuple[float, float]]
) -> list[tuple[float, float] | None]:
    """Choose where the names of dots stand: each near its dot, on no other dot or name.

    Args:
        names: Of the first dots.
        dots: (across, up) of all dots, in [0, 1].

    Returns:
        The middle of each name; None where there is no room.
    """
    places: list[tuple[float, float] | None] = []
    # Two texts stand in corners.
    taken = [_Box(0.0, 0.9, 0.62, 1.0), _Box(0.5, 0.0, 1.0, 0.08)]
    for name, dot in zip(names, dots, strict=False):
        half = len(name) * LETTER_WIDTH / 2
        place = None
        for distance, turn in product(LABEL_DISTANCES, LABEL_TURNS):
            # A name is wide and low, so it may stand nearer above its dot than beside it.
            across = dot[0] + math.cos(turn) * (distance + half)
            up = dot[1] + math.sin(turn) * distance
            box = _Box(across - half, up - LABEL_HALF, across + half, up + LABEL_HALF)
            edge = (min(max(dot[0], box.left), box.right), min(max(dot[1], box.low), box.high))
            if box.is_free(taken, dots) and not _passes(dot, edge, dots):
                place = (across, up)
                taken.append(box)
                break
        places.append(place)
    return places


@dataclass(frozen=True)
class _Box:
    """What a name covers."""

    left: float
    low: float
    right: float
    high: float

    def is_free(self, taken: Sequence["_Box"], dots: Sequence[tuple[float, float]]) -> bool:
        """Say whether it lies within the axes, on no other box and no dot."""
        return (
            self.left >= 0
            and self.right <= 1
            and self.low >= 0
            and self.high <= 1
            and not any(
                self.left < other.right
                and other.left < self.right
                and self.low < other.high
                and other.low < self.high
                for other in taken
            )
            and not any(
                self.left - DOT < across < self.right + DOT
                and self.low - DOT < up < self.high + DOT
                for across, up in dots
            )
        )


def _passes(
    start: tuple[float, float], end: tuple[float, float], dots: Sequence[tuple[float, float]]
) -> bool:
    """Say whether a line from a dot to its name passes over another dot."""
    length = math.dist(start, end)
    for dot in dots:
        # A dot that covers its own is passed whichever way the line goes.
        if math.dist(dot, start) < RADIUS or not length:
            continue
        along = sum(
            (there - here) * (at - here) for here, there, at in zip(start, end, dot, strict=True)
        )
        share = min(1.0, max(0.0, along / length**2))
        nearest = [here + share * (there - here) for here, there in zip(start, end, strict=True)]
        if math.dist(nearest, dot) < RADIUS:
            return True
    return False
