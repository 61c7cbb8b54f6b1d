"""The figures of `closer-recalibration`: how much each method lowers DP's ECE, and reliability before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev

from matplotlib.figure import Figure

from fl_dpbayes.report.figure_style import CYCLE, MUTED, WIDTH_INCHES, quiet_grid, set_title
from fl_dpbayes.run.reproduce.closer_recalibration_paper import RATIO
from fl_dpbayes.run.reproduce.closer_recalibration_settings import (
    DP_PART,
    DP_PS,
    DP_TS,
    EPSILONS,
    GLOBAL,
    LANGEVIN,
    LANGEVIN_TS,
    MEAN,
    MODELS,
    task_setting,
)
from fl_dpbayes.run.reproduce.closer_recalibration_sites import MNIST, PNEUMONIA
from fl_dpbayes.run.reproduce.experiment import CellResult, DrawFigure
from fl_dpbayes.run.reproduce.reliability_figures import reliability_figures

NAME = "closer-recalibration"
SHOWN = (DP_TS, DP_PS, LANGEVIN_TS, LANGEVIN, GLOBAL)
MARKERS = ("o", "s", "D", "^", "v")
SETTINGS = tuple(
    task_setting(model, task, epsilon) for model in MODELS for epsilon in EPSILONS for task in (MNIST, PNEUMONIA, MEAN)
)
DIAGRAMS = {
    (method, task_setting(model, task, EPSILONS[0]))
    for method in (DP_PART, DP_TS)
    for model in MODELS
    for task in (MNIST, PNEUMONIA)
}

# Setting, method -> ratio of each seed.
Ratios = Mapping[tuple[str, str], Sequence[float]]


def recalibration_figures(results: Sequence[CellResult]) -> Mapping[str, DrawFigure]:
    """Choose what can be drawn.

    Args:
        results: finished cells.

    Returns:
        File stem -> function that draws: the ratios in-domain and at shifted sites, and reliability diagrams of the
        first seed before and after private temperature scaling.
    """
    drawn: dict[str, DrawFigure] = {}
    for metric, where in (("ratio", "in-domain"), ("shifted_ratio", "shifted sites")):
        ratios = _ratios(results, metric)
        if ratios:
            drawn[f"{NAME}-{metric.replace('_', '-')}"] = partial(ratio_figure, ratios, where)
    diagrams = [
        replace(
            result,
            rows=tuple(row for row in result.rows if (row.method, row.setting) in DIAGRAMS),
            details={
                "reliability": [
                    result.details["by_row"][f"{row.method}, {row.setting}"]["reliability"]
                    for row in result.rows
                    if (row.method, row.setting) in DIAGRAMS
                ]
            },
        )
        for result in results
    ]
    return {**drawn, **reliability_figures(diagrams, experiment=NAME)}


def ratio_figure(ratios: Ratios, where: str) -> Figure:
    """Draw DP's ECE over each method's, mean and standard deviation over seeds, a row per task.

    Args:
        ratios: setting and method -> ratio of each seed, all above zero.
        where: at which sites.

    Returns:
        The figure.
    """
    settings = [setting for setting in SETTINGS if any(key[0] == setting for key in ratios)]
    height = 0.36 * len(settings) + 1.25
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, "How many times smaller than DP's the error is", f"ECE of DP over ECE of the method, {where}")
    axes = figure.add_axes((0.43, 0.8 / height, 0.53, 1 - 1.3 / height))
    quiet_grid(axes, "x")
    for value, style in ((1.0, "-"), (RATIO, "--")):
        axes.axvline(value, color=MUTED, linewidth=0.8, linestyle=style)
    for position, (method, colour, marker) in enumerate(zip(SHOWN, CYCLE, MARKERS, strict=False)):
        present = [
            (row, ratios[setting, method]) for row, setting in enumerate(settings) if (setting, method) in ratios
        ]
        axes.errorbar(
            [fmean(values) for _, values in present],
            [row + 0.13 * (position - 2) for row, _ in present],
            xerr=[stdev(values) if len(values) > 1 else 0.0 for _, values in present],
            fmt=marker, color=colour, markersize=3.4, linewidth=0.8, label=method,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
    axes.minorticks_off()
    axes.set_yticks(range(len(settings)), settings, size=6)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    figure.legend(loc="lower left", ncols=2, frameon=False, fontsize=6.5, handlelength=1.2)
    return figure


def _ratios(results: Sequence[CellResult], metric: str) -> Ratios:
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for row in result.rows:
            value = row.values.get(metric)
            if row.method in SHOWN and row.setting in SETTINGS and value is not None and value > 0:
                found.setdefault((row.setting, row.method), []).append(value)
    return found
