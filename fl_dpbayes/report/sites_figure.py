"""One metric at every site: a dot with its interval for each predictor."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.config.metrics import METRICS
from fl_dpbayes.config.names import PREDICTORS
from fl_dpbayes.config.summary import CalibrationRecord
from fl_dpbayes.report.figure_style import BAND, INK, WIDTH_INCHES, predictor_style, quiet_grid, set_title
from fl_dpbayes.report.wording import place_name, predictor_name

PREDICTOR_INCHES = 0.1
LEGEND_INCHES = 0.17
GUTTER = 0.345
MAX_PLACES = 40


def _value(row: CalibrationRecord, metric: str) -> float | None:
    return getattr(row, metric)


def drawn_places(rows: Sequence[CalibrationRecord], metric: str) -> list[str]:
    """Choose which places are drawn: all, or the pooled ones and the sites with the worst values."""
    places = list(dict.fromkeys(row.site for row in rows if _value(row, metric) is not None))
    if len(places) <= MAX_PLACES:
        return places
    sign = -1 if metric == "accuracy" else 1
    worst: dict[str, float] = {}
    for row in rows:
        value = _value(row, metric)
        if value is not None:
            worst[row.site] = max(worst.get(row.site, -math.inf), math.inf if row.pooled else sign * value)
    kept = set(sorted(places, key=lambda place: -worst[place])[:MAX_PLACES])
    return [place for place in places if place in kept]


def sites_figure(rows: Sequence[CalibrationRecord], metric: str, title: str) -> Figure | None:
    """Draw one metric for every place and predictor."""
    places = drawn_places(rows, metric)
    if not places:
        return None
    names = {row.site: place_name(row) for row in rows}
    predictors = [name for name in PREDICTORS if any(row.predictor == name for row in rows)]
    legend = LEGEND_INCHES * -(-len(predictors) // 2)
    row_inches = PREDICTOR_INCHES * (max(2, len(predictors)) + 0.7)
    height = 0.86 + legend + row_inches * len(places)
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, title, _unit(metric, len(places), len({row.site for row in rows})))
    axes = figure.add_axes((GUTTER, (0.30 + legend) / height, 0.99 - GUTTER, row_inches * len(places) / height))
    quiet_grid(axes, "x")
    step = PREDICTOR_INCHES / row_inches
    for row in rows:
        if row.site in places and row.predictor in predictors:
            offset = (predictors.index(row.predictor) - (len(predictors) - 1) / 2) * step
            _draw_row(axes, row, metric, places.index(row.site) + offset)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_yticks(range(len(places)), [_short(names[place]) for place in places])
    for label, place in zip(axes.get_yticklabels(), places, strict=True):
        label.set(color=INK, fontweight="bold" if place.startswith("pooled:") else "normal")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if metric not in ("accuracy", "nll"):
        axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    words = {row.predictor: predictor_name(row) for row in rows}
    _name_predictors(figure, {name: words[name] for name in predictors}, height, legend)
    return figure


def _draw_row(axes: Axes, row: CalibrationRecord, metric: str, vertical: float) -> None:
    value = _value(row, metric)
    if value is None:
        return
    scale, style = 100 if METRICS[metric].unit == "share" else 1, predictor_style(row.predictor)
    if metric == "ece" and row.ece_if_calibrated_high is not None:
        axes.barh(vertical, scale * row.ece_if_calibrated_high, height=0.22, color=BAND, zorder=1)
    ends = row.intervals.get(metric)
    if ends is not None and ends[0] is not None and ends[1] is not None:
        axes.plot([scale * ends[0], scale * ends[1]], [vertical, vertical], color=style.colour, linewidth=1.4)
    axes.plot(scale * value, vertical, style.marker, color=style.colour, markersize=4, zorder=3)


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:15]}…"


def _unit(metric: str, drawn: int, places: int) -> str:
    unit = {"accuracy": "%", "nll": "nats per record"}.get(metric, "percentage points")
    extra = "grey: 95% if calibrated" if metric == "ece" else "line: 95% interval"
    return f"{unit}; {extra}" + ("" if drawn == places else f"; the {drawn} worst of {places}")


def _name_predictors(figure: Figure, predictors: Mapping[str, str], height: float, legend: float) -> None:
    """Write the predictors' names in their colours below the axis, two in a line."""
    for index, (predictor, words) in enumerate(predictors.items()):
        style = predictor_style(predictor)
        left, bottom = (index % 2) * 0.5, legend - LEGEND_INCHES * (index // 2 + 1) + 0.02
        dot = figure.add_axes((left, bottom / height, 0.03, 0.13 / height))
        dot.plot(0, 0, style.marker, color=style.colour, markersize=4)
        dot.set_axis_off()
        figure.text(left + 0.04, (bottom + 0.065) / height, words, color=style.colour, size=7.5, va="center")
