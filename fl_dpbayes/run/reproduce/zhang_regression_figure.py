"""The figure of `zhang-regression`: predictive mean with its two bands, one panel per method."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fl_dpbayes.report.figure_style import BLUE, INK, MUTED, ORANGE, WIDTH_INCHES, quiet_grid, set_title
from fl_dpbayes.run.reproduce.experiment import CellResult, DrawFigure
from fl_dpbayes.run.reproduce.zhang_regression_settings import DP, PLAIN

METHODS = ("SGLD", "BBP", "MC dropout")
HEIGHT_PER_ROW = 1.5


def regression_figures(results: Sequence[CellResult]) -> Mapping[str, DrawFigure]:
    """Draw the bands of the first simulation of the first seed, plain beside private.

    Args:
        results: finished cells.

    Returns:
        File stem -> function that draws.
    """
    bands = {
        (row.method, row.privacy is not None): result.details["bands"]
        for result in reversed(results)
        for row in result.rows
        if result.details.get("bands") and row.setting in (PLAIN, DP)
    }
    methods = [method for method in METHODS if (method, True) in bands and (method, False) in bands]
    return {"zhang-regression-bands": lambda: _figure(methods, bands)} if methods else {}


def _figure(methods: Sequence[str], bands: Mapping[tuple[str, bool], Mapping[str, Any]]) -> Figure:
    rows = len(methods)
    height = HEIGHT_PER_ROW * rows + 0.85
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, "Predictive bands of each posterior", "one standard deviation, one simulation")
    grid = figure.subplots(
        rows, 2, sharex=True, sharey=True, squeeze=False,
        gridspec_kw={
            "left": 0.07, "right": 0.985, "top": 1 - 0.72 / height, "bottom": 0.48 / height, "hspace": 0.3,
            "wspace": 0.08,
        },
    )  # fmt: skip
    for row, method in enumerate(methods):
        for column, private in enumerate((False, True)):
            _draw(grid[row, column], bands[method, private])
            grid[row, column].set_title(f"{'DP-' if private else ''}{method}")
    handles = [
        Line2D([], [], color=INK, linewidth=1.2, label="mean"),
        Patch(color=ORANGE, alpha=0.45, linewidth=0, label="noise (aleatoric)"),
        Patch(color=BLUE, alpha=0.3, linewidth=0, label="+ posterior (epistemic)"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=7, handlelength=1.2)
    return figure


def _draw(axes: Axes, band: Mapping[str, Any]) -> None:
    quiet_grid(axes, "y")
    x, records = band["x"], band["records"]
    triples = list(zip(band["mean"], band["aleatoric"], band["total"], strict=True))
    for sign in (-1, 1):
        inner = [mean + sign * noise for mean, noise, _ in triples]
        outer = [mean + sign * total for mean, _, total in triples]
        axes.fill_between(x, inner, outer, color=BLUE, alpha=0.3, linewidth=0)
    low = [mean - noise for mean, noise, _ in triples]
    high = [mean + noise for mean, noise, _ in triples]
    axes.fill_between(x, low, high, color=ORANGE, alpha=0.45, linewidth=0)
    axes.plot(*records, "x", color=MUTED, markersize=1.8, markeredgewidth=0.4, alpha=0.7)
    axes.plot(x, band["mean"], color=INK, linewidth=1.2)
    axes.set(xlim=(-5, 5), ylim=(-5, 5))
