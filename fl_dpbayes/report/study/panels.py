"""Small multiples: panels of lines and points with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.calibration_figures import heat_figure
from fl_dpbayes.report.figure_style import PredictorStyle
from fl_dpbayes.report.study.quantities import Estimate

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MOST_PANELS = 16
# Characters that fit side by side below a panel, and above it, with one, two or three in a row.
TICK_CHARACTERS = (50, 24, 15)
TITLE_CHARACTERS = (60, 26, 17)
MOST_TICK_CHARACTERS = 14
# Of a legend's entry: with more of them, entries stand below each other, and are cut.
ENTRY_CHARACTERS = 30
MOST_ENTRY_CHARACTERS = 62
# How far apart lines stand at one place, in places.
LINE_SPREAD = 0.11


@dataclass(frozen=True)
class Line:
    """One method in one panel.

    Attributes:
        method: The key of its colour and marker.
        words: Its name in the legend.
        values: Place -> what is drawn there.
        joined: Whether a line goes through them.
    """

    method: str
    words: str
    values: Mapping[str, Estimate]
    joined: bool = True


@dataclass(frozen=True)
class Panel:
    """One small picture.

    Attributes:
        title: Stands above it.
        lines: What is drawn.
        places: Names on the horizontal axis, from left to right.
    """

    title: str
    lines: tuple[Line, ...]
    places: tuple[str, ...]


@dataclass(frozen=True)
class PanelFigure:
    """Panels with one vertical axis; without panels there is nothing to draw.

    Attributes:
        name: Stem of its file.
        title: What is drawn.
        subtitle: Unit, and how to read it.
        panels: From left to right, row by row.
        scale: What values are multiplied by as they are drawn.
        from_zero: Whether the vertical axis begins at 0.
        level: A value drawn as a grey line.
        grey: What the legend calls grey lines.
        heat: Whether one line's means are shown as a map, a row for each panel.
    """

    name: str
    title: str
    subtitle: str
    panels: tuple[Panel, ...]
    scale: float = 1.0
    from_zero: bool = False
    level: float | None = None
    grey: str = ""
    heat: bool = False


def draw_panels(content: PanelFigure) -> Figure:
    """Draw small multiples, two or three in a row, so that they can be read on a telephone.

    Panels beyond `MOST_PANELS` are left out.
    """
    if content.heat:
        return _draw_map(content)
    panels = content.panels[:MOST_PANELS]
    if len(panels) == 1:
        columns = 1
    elif len(panels) <= 6:
        columns = 2
    else:
        columns = 3
    rows = math.ceil(len(panels) / columns)
    lines = [line for panel in panels for line in panel.lines]
    methods = list(dict.fromkeys(line.method for line in lines))
    entries = {line.words for line in lines}
    legend_columns = 2 if all(len(text) <= ENTRY_CHARACTERS for text in entries) else 1
    legend_rows = math.ceil((len(entries) + bool(content.grey)) / legend_columns)
    height = rows * _row_inches(panels, columns) + look.LEGEND_INCHES * legend_rows
    figure = look.titled_figure(content.title, content.subtitle, height)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel, content=content, methods=methods, columns=columns)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.axes[0].set_ylim(_limits(content, panels))
    look.add_legend(figure, legend_columns)
    return figure


def _draw_map(content: PanelFigure) -> Figure:
    values = {
        (panel.title, place): content.scale * value.mean
        for panel in content.panels
        for line in panel.lines
        for place, value in line.values.items()
    }
    return heat_figure(values, content.title, content.subtitle)


def _row_inches(panels: Sequence[Panel], columns: int) -> float:
    """Return the height of a row of panels, with room for tilted names of places."""
    tilted = [place for panel in panels if _tilted(panel, columns) for place in panel.places]
    longest = min(MOST_TICK_CHARACTERS, max(map(len, tilted), default=0))
    return (2.2 if columns == 1 else 1.55) + 0.036 * longest


def _tilted(panel: Panel, columns: int) -> bool:
    """Say whether a panel's names of places do not fit side by side."""
    space = TICK_CHARACTERS[columns - 1] / max(1, len(panel.places))
    return any(min(MOST_TICK_CHARACTERS, len(place)) > space for place in panel.places)


def _draw_panel(
    axes: Axes, panel: Panel, *, content: PanelFigure, methods: Sequence[str], columns: int
) -> None:
    look.quiet_grid(axes, "y")
    axes.set_title(look.short(panel.title, TITLE_CHARACTERS[columns - 1]), color=look.INK)
    if content.level is not None:
        axes.axhline(
            content.scale * content.level,
            zorder=1,
            color=look.MUTED,
            linewidth=0.9,
            linestyle=(0, (4, 2)),
            label=content.grey,
        )
    spread = LINE_SPREAD if len(panel.lines) > 1 else 0.0
    for line in panel.lines:
        position = methods.index(line.method) - (len(methods) - 1) / 2
        shift = spread * position * min(1.0, 5 / max(1, len(methods)))
        style = _style(line.method, methods)
        xs = [panel.places.index(place) + shift for place in line.values]
        _draw_line(axes, line, xs=xs, scale=content.scale, style=style)
    axes.set_xlim(-0.5, len(panel.places) - 0.5)
    axes.set_xticks(
        range(len(panel.places)),
        [look.short(place, MOST_TICK_CHARACTERS) for place in panel.places],
    )
    if _tilted(panel, columns):
        axes.tick_params(axis="x", labelrotation=35, pad=1)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))


def _draw_line(
    axes: Axes, line: Line, *, xs: Sequence[float], scale: float, style: PredictorStyle
) -> None:
    for x, value in zip(xs, line.values.values(), strict=True):
        if value.ends is not None:
            ends = [scale * end for end in value.ends]
            axes.plot([x, x], ends, color=style.colour, linewidth=0.9)
    axes.plot(
        xs,
        [scale * value.mean for value in line.values.values()],
        color=style.colour,
        zorder=3,
        label=look.short(line.words, MOST_ENTRY_CHARACTERS),
        marker=style.marker,
        markersize=3.2,
        linewidth=1.2,
        linestyle="-" if line.joined else "",
    )


def _limits(content: PanelFigure, panels: Sequence[Panel]) -> tuple[float, float]:
    """Choose one range for all panels that shows every mean.

    An interval may be cut off where it is very wide.
    """
    lines = [line for panel in panels for line in panel.lines]
    values = [value for line in lines for value in line.values.values()]
    means = [value.mean for value in values]
    if content.level is not None:
        means.append(content.level)
    ends = [end for value in values for end in value.ends or ()]
    low = min(means)
    high = max(means)
    space = max(high - low, 0.1 * abs(high), 1e-3)
    low = max(min([low, *ends]), low - space)
    high = min(max([high, *ends]), high + space)
    margin = 0.06 * max(high - low, 1e-3)
    bottom = 0.0 if content.from_zero else content.scale * (low - margin)
    return bottom, content.scale * (high + margin)


def _style(method: str, methods: Sequence[str]) -> PredictorStyle:
    if method in look.PREDICTOR_STYLES:
        return look.PREDICTOR_STYLES[method]
    position = methods.index(method)
    return PredictorStyle(
        colour=look.CYCLE[position % len(look.CYCLE)], marker=MARKERS[position % len(MARKERS)]
    )
