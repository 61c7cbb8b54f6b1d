"""The figure of `interval-coverage`: coverage and mean width against the number of records."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from fl_dpbayes.report.figure_style import CYCLE, INK, MUTED, WIDTH_INCHES, quiet_grid, set_title
from fl_dpbayes.run.reproduce.experiment import CellResult, DrawFigure

MARKERS = "osD^vX"


def coverage_figures(results: Sequence[CellResult]) -> Mapping[str, DrawFigure]:
    """Choose what can be drawn from the finished cells.

    Args:
        results: finished cells.

    Returns:
        File stem -> function that draws.
    """
    exact = [result for result in results if result.cell.settings["noise_std"] == 0]
    return {"interval-coverage": lambda: _coverage(exact)} if exact else {}


def _coverage(results: Sequence[CellResult]) -> Figure:
    """Draw one point per model and n, coverage above and width below."""
    figure = Figure(figsize=(WIDTH_INCHES, 4.9))
    set_title(
        figure,
        "How often the RMS interval holds the truth",
        "each point: one distortion; exact sums; dashes: 93 and 99 %",
    )
    above, below = figure.add_axes((0.11, 0.52, 0.85, 0.34)), figure.add_axes((0.11, 0.24, 0.85, 0.2))
    laws = list(dict.fromkeys(result.cell.settings["confidences"] for result in results))
    for axes in (above, below):
        quiet_grid(axes, "y")
        axes.set_xscale("log")
    for position, law in enumerate(laws):
        own = sorted((one for one in results if one.cell.settings["confidences"] == law), key=_records)
        colour, marker = CYCLE[position], MARKERS[position]
        nudge = 1.05 ** (position - (len(laws) - 1) / 2)
        for name, axes in (("coverage", above), ("width", below)):
            points = [(_records(one) * nudge, 100 * (row.values.get(name) or 0.0)) for one in own for row in one.rows]
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker, color=colour, linestyle="none", markersize=2.8, alpha=0.8, label=law)
    above.axhline(95, color=INK, linewidth=0.8)
    for bound in (93, 99):
        above.axhline(bound, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    ticks = sorted({_records(result) for result in results})
    for axes in (above, below):
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
    above.set(title="coverage, %")
    below.set(title="mean width, points", xlabel="records n")
    below.set_ylim(bottom=0)
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower left", ncols=2, frameon=False, fontsize=7)
    return figure


def _records(result: CellResult) -> int:
    return int(result.cell.settings["records"])
