"""Small multiples: panels of lines and points with intervals, and the same numbers as a table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.calibration_figures import heat_figure
from fl_dpbayes.report.study.quantities import Estimate

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MOST_PANELS = 16
TICK_CHARACTERS = (
    50,
    24,
    15,
)  # that fit side by side below a panel, of one, two and three in a row
TITLE_CHARACTERS = (60, 26, 17)  # likewise, of its title
ENTRY_CHARACTERS, MOST_ENTRY_CHARACTERS, MOST_TICK_CHARACTERS = 30, 62, 14


class Mark(NamedTuple):
    """A point of a line; `where` is its place on the horizontal axis in words, `x` in numbers."""

    x: float
    where: str
    value: Estimate


@dataclass(frozen=True)
class Line:
    """One method in one panel."""

    method: str
    words: str
    marks: tuple[Mark, ...]
    joined: bool = True


@dataclass(frozen=True)
class Panel:
    """One small picture; `ticks` names places on the horizontal axis."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[str, ...]


@dataclass(frozen=True)
class PanelFigure:
    """Panels with one vertical axis; without panels there is nothing to draw.

    `name`: stem of its file. `title`: what is drawn. `subtitle`: unit, and how to read it.
    `quantity`: heads the values in the table. `scale`: what values are multiplied by as they are
    drawn and listed. `places`: decimal places in the table. `from_zero`: whether the vertical axis
    begins at 0. `level`: a value drawn as a grey line. `grey`: what the legend calls grey lines.
    `heat`: whether one line's means are shown as a map, a row for each panel.
    """

    name: str
    title: str
    subtitle: str
    quantity: str
    panels: tuple[Panel, ...]
    scale: float = 1.0
    places: int = 3
    from_zero: bool = False
    level: float | None = None
    grey: str = ""
    heat: bool = False


def draw_panels(content: PanelFigure) -> Figure:
    """Draw small multiples, two or three in a row, so that they can be read on a telephone.

    `content`: what is drawn; panels beyond `MOST_PANELS` are in the table only.
    """
    panels = content.panels[:MOST_PANELS]
    if content.heat:
        values = {
            (panel.title, mark.where): content.scale * mark.value.mean
            for panel in content.panels
            for line in panel.lines
            for mark in line.marks
        }
        return heat_figure(values, content.title, content.subtitle)
    columns = 1 if len(panels) == 1 else 2 if len(panels) <= 6 else 3
    rows = math.ceil(len(panels) / columns)
    methods = list(dict.fromkeys(line.method for panel in panels for line in panel.lines))
    entries = {line.words for panel in panels for line in panel.lines}
    in_line = 2 if all(len(text) <= ENTRY_CHARACTERS for text in entries) else 1
    ticks = [tick for panel in panels if _tilted(panel, columns) for tick in panel.ticks]
    longest = min(MOST_TICK_CHARACTERS, max(map(len, ticks), default=0))
    row_inches = (2.2 if columns == 1 else 1.55) + 0.036 * longest
    legend_inches = look.LEGEND_INCHES * math.ceil((len(entries) + bool(content.grey)) / in_line)
    figure = look.titled_figure(content.title, content.subtitle, rows * row_inches + legend_inches)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, content, panel, methods, columns)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.axes[0].set_ylim(_limits(content, panels))
    look.add_legend(figure, in_line)
    return figure


def _tilted(panel: Panel, columns: int) -> bool:
    space = TICK_CHARACTERS[columns - 1] / max(1, len(panel.ticks))
    return any(min(MOST_TICK_CHARACTERS, len(tick)) > space for tick in panel.ticks)


def _draw_panel(
    axes: Axes, content: PanelFigure, panel: Panel, order: Sequence[str], columns: int
) -> None:
    look.quiet_grid(axes, "y")
    axes.set_title(look.short(panel.title, TITLE_CHARACTERS[columns - 1]), color=look.INK)
    if content.level is not None:
        grey: Any = {
            "color": look.MUTED,
            "linewidth": 0.9,
            "linestyle": (0, (4, 2)),
            "label": content.grey,
        }
        axes.axhline(content.scale * content.level, zorder=1, **grey)
    spread = 0.11 if len(panel.lines) > 1 else 0.0
    for line in panel.lines:
        colour, marker = _style(line.method, order)
        shift = (
            spread
            * (order.index(line.method) - (len(order) - 1) / 2)
            * min(1.0, 5 / max(1, len(order)))
        )
        xs = [mark.x + shift for mark in line.marks]
        for x, mark in zip(xs, line.marks, strict=True):
            if mark.value.ends is not None:
                axes.plot(
                    [x, x],
                    [content.scale * end for end in mark.value.ends],
                    color=colour,
                    linewidth=0.9,
                )
        shape: Any = {
            "marker": marker,
            "markersize": 3.2,
            "linewidth": 1.2,
            "linestyle": "-" if line.joined else "",
        }
        ys = [content.scale * mark.value.mean for mark in line.marks]
        axes.plot(
            xs,
            ys,
            color=colour,
            zorder=3,
            label=look.short(line.words, MOST_ENTRY_CHARACTERS),
            **shape,
        )
    axes.set_xlim(-0.5, len(panel.ticks) - 0.5)
    axes.set_xticks(
        range(len(panel.ticks)), [look.short(tick, MOST_TICK_CHARACTERS) for tick in panel.ticks]
    )
    if _tilted(panel, columns):
        axes.tick_params(axis="x", labelrotation=35, pad=1)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))


def _limits(content: PanelFigure, panels: Sequence[Panel]) -> tuple[float, float]:
    """Choose one range for all panels that shows every mean.

    An interval may be cut off where it is very wide.
    """
    values = [mark.value for panel in panels for line in panel.lines for mark in line.marks]
    ends = [end for value in values for end in value.ends or ()]
    means = [value.mean for value in values] + ([] if content.level is None else [content.level])
    low, high = min(means), max(means)
    space = max(high - low, 0.1 * abs(high), 1e-3)
    low = max(min([low, *ends]), low - space)
    high = min(max([high, *ends]), high + space)
    margin = 0.06 * max(high - low, 1e-3)
    return 0.0 if content.from_zero else content.scale * (low - margin), content.scale * (
        high + margin
    )


def _style(method: str, methods: Sequence[str]) -> tuple[str, str]:
    if method in look.PREDICTOR_STYLES:
        return look.PREDICTOR_STYLES[method]
    index = methods.index(method)
    return look.CYCLE[index % len(look.CYCLE)], MARKERS[index % len(MARKERS)]
