"""The figures of `aggregation`: what each method reaches at held-out hospitals, by partition and budget."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from fl_dpbayes.report.figure_style import CYCLE, WIDTH_INCHES, quiet_grid, set_title
from fl_dpbayes.run.reproduce.aggregation_predictors import METHODS
from fl_dpbayes.run.reproduce.aggregation_settings import EPSILONS, PARTITIONS, SCENARIOS
from fl_dpbayes.run.reproduce.experiment import CellResult, DrawFigure

METRICS: Mapping[str, str] = {"nll": "negative log-likelihood", "ece": "ECE"}
MARKERS = ("o", "s", "D")

# Partition, epsilon, method -> value of each seed.
Values = Mapping[tuple[str, float, str], Sequence[float]]


def aggregation_figures(results: Sequence[CellResult]) -> Mapping[str, DrawFigure]:
    """Choose what can be drawn.

    Args:
        results: finished cells.

    Returns:
        File stem -> function that draws: one figure per data set and metric at held-out hospitals.
    """
    drawn: dict[str, DrawFigure] = {}
    for dataset in SCENARIOS:
        for metric, meaning in METRICS.items():
            values = _values(results, dataset, f"held-out_{metric}")
            if values:
                stem = f"aggregation-{metric}-{dataset.lower()}"
                drawn[stem] = partial(rules_figure, values, f"{dataset}, held-out hospitals", meaning)
    return drawn


def rules_figure(values: Values, title: str, meaning: str) -> Figure:
    """Draw a metric by method, a panel per partition and a colour per budget, mean and range over seeds.

    Args:
        values: partition, epsilon and method -> value of each seed, above zero.
        title: data set and sites.
        meaning: what the metric is, on the axis.

    Returns:
        The figure.
    """
    methods = [method for method in METHODS if any(key[2] == method for key in values)]
    height = 0.15 * len(methods) * len(PARTITIONS) + 1.5
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, title, f"{meaning}: mean and range over seeds")
    share = (1 - 1.35 / height) / len(PARTITIONS)
    first = None
    for panel, partition in enumerate(PARTITIONS):
        bottom = 0.75 / height + (len(PARTITIONS) - 1 - panel) * share
        axes = figure.add_axes((0.4, bottom, 0.56, share - 0.25 / height), sharex=first)
        first = first or axes
        quiet_grid(axes, "x")
        axes.set_title(partition)
        for position, (epsilon, colour, marker) in enumerate(zip(EPSILONS, CYCLE, MARKERS, strict=False)):
            present = [
                (row, values[partition, epsilon, method])
                for row, method in enumerate(methods)
                if (partition, epsilon, method) in values
            ]
            axes.errorbar(
                [fmean(found) for _, found in present], [row + 0.22 * (position - 1) for row, _ in present],
                xerr=[
                    [fmean(found) - min(found) for _, found in present],
                    [max(found) - fmean(found) for _, found in present],
                ],
                fmt=marker, color=colour, markersize=2.8, linewidth=0.7, label=f"epsilon {epsilon:g}",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
        axes.tick_params(axis="x", labelbottom=panel == len(PARTITIONS) - 1)
        axes.set_yticks(range(len(methods)), methods, size=5.5)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        if panel == 0:
            figure.legend(*axes.get_legend_handles_labels(), loc="lower left", ncols=3, frameon=False, fontsize=6.5)
    return figure


def _values(results: Sequence[CellResult], dataset: str, metric: str) -> Values:
    found: dict[tuple[str, float, str], list[float]] = {}
    for result in results:
        settings = result.cell.settings
        if settings["dataset"] != dataset:
            continue
        for row in result.rows:
            value = row.values.get(metric)
            if value is not None and value > 0:
                found.setdefault((settings["partition"], settings["epsilon"], row.method), []).append(value)
    return found
