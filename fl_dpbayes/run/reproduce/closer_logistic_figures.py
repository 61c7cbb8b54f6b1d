"""The figures of `closer-logistic`: what clipping does to calibration, and to the probabilities themselves."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.special import expit

from fl_dpbayes.config.summary import ReliabilityRecord
from fl_dpbayes.report.figure_style import BLUE, GREEN, INK, MUTED, VERMILLION, WIDTH_INCHES, quiet_grid, set_title
from fl_dpbayes.report.reliability_figure import reliability_figure
from fl_dpbayes.run.reproduce.experiment import CellResult, DrawFigure
from fl_dpbayes.run.reproduce.gaussian_classes import MEANS

DP, CLIP_ONLY, NOISE_ONLY, NON_PRIVATE = "DP-SGD", "clip only", "noise only", "SGD"
STYLES = {DP: (VERMILLION, "s"), CLIP_ONLY: (BLUE, "o"), NOISE_ONLY: (GREEN, "D")}


def logistic_figures(results: Sequence[CellResult]) -> Mapping[str, DrawFigure]:
    """Choose what can be drawn from the finished cells.

    Args:
        results: finished cells.

    Returns:
        File stem -> function that draws.
    """
    chosen: dict[str, DrawFigure] = {}
    if any("clip_norm" in result.cell.settings for result in results):
        chosen["closer-logistic-clipping"] = lambda: _clipping(results)
    private = _first(results, DP)
    plain = _first(results, NON_PRIVATE)
    if private and plain:
        chosen["closer-logistic-probability"] = lambda: _probability(private, plain)
    for stem, result in (("closer-logistic-reliability-dp", private), ("closer-logistic-reliability-sgd", plain)):
        if result:
            chosen[stem] = _reliability(result)
    return chosen


def _first(results: Sequence[CellResult], method: str) -> CellResult | None:
    """Return the first seed's cell of a method, at its smallest clip norm."""
    found = [result for result in results if result.cell.settings["method"] == method]
    return min(found, key=lambda one: (one.cell.seed, one.cell.settings.get("clip_norm", 0.0)), default=None)


def _clipping(results: Sequence[CellResult]) -> Figure:
    """Draw the exact calibration error against the clip norm: the paper's figure 4 (a) and (c) in one."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.0))
    set_title(figure, "Clipping, not noise, makes it overconfident", "logistic regression, epsilon 8, exact error")
    axes = figure.add_axes((0.11, 0.15, 0.84, 0.61))
    quiet_grid(axes, "y")
    for method, (colour, marker) in STYLES.items():
        by_norm: dict[float, list[float]] = {}
        for result in results:
            if result.cell.settings["method"] == method:
                error = result.rows[0].values["calibration_error"]
                by_norm.setdefault(result.cell.settings["clip_norm"], []).append(error or 0.0)
        norms = sorted(by_norm)
        errors = [100 * statistics.fmean(by_norm[norm]) for norm in norms]
        axes.plot(norms, errors, marker, color=colour, linestyle="-", linewidth=1.3, markersize=4.5, label=method)
    plain = [r.rows[0].values["calibration_error"] or 0.0 for r in results if r.cell.settings["method"] == NON_PRIVATE]
    if plain:
        axes.axhline(100 * statistics.fmean(plain), color=INK, linewidth=1, linestyle=(0, (5, 3)), label=NON_PRIVATE)
    axes.set_xscale("log")
    ticks = sorted({r.cell.settings["clip_norm"] for r in results if "clip_norm" in r.cell.settings})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="clip norm C", title="calibration error, points")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=7.5)
    return figure


def _probability(private: CellResult, plain: CellResult) -> Figure:
    """Draw each classifier's probability along the line through the two class means: the paper's figure 1 (a)."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.0))
    norm = private.cell.settings["clip_norm"]
    set_title(figure, "Probabilities pushed to 0 and 1", f"DP-SGD with C = {norm:g}, epsilon 8, against the truth")
    axes = figure.add_axes((0.11, 0.15, 0.84, 0.61))
    quiet_grid(axes, "y")
    middle, direction = MEANS.mean(axis=0), (MEANS[1] - MEANS[0]) / np.linalg.norm(MEANS[1] - MEANS[0])
    position = np.linspace(-3.0, 3.0, 121)
    line = middle + position[:, None] * direction
    axes.plot(position, expit(line @ (MEANS[1] - MEANS[0])), color=INK, linewidth=1.6, label="Bayes probability")
    for result, colour in ((plain, BLUE), (private, VERMILLION)):
        weight = np.array(result.details["weight"])
        curve = expit(line @ weight + result.details["bias"])
        axes.plot(position, curve, color=colour, linewidth=1.3, linestyle=(0, (5, 2)), label=result.rows[0].method)
    for sign, name in ((-1, "mean of class 0"), (1, "mean of class 1")):
        centre = sign * float(np.linalg.norm(MEANS[1] - MEANS[0])) / 2
        axes.vlines(centre, 0, 1, color=MUTED, linewidth=0.6, linestyle=":")
        axes.text(centre, 1.03, name, size=7, color=MUTED, ha="center")
    axes.set(xlabel="position on the line through the class means", title="probability of class 1", ylim=(0, 1.1))
    axes.legend(frameon=False, fontsize=7.5, loc="lower right")
    return figure


def _reliability(result: CellResult) -> DrawFigure:
    row = result.rows[0]
    record = ReliabilityRecord.model_validate(
        {"site": "test", "role": "train", "predictor": "last", "bins": result.details["reliability"]}
    )
    return lambda: reliability_figure(
        record,
        f"{row.method} {row.setting}".strip(),
        f"ECE {row.values['ece']:.3f}, accuracy {row.values['accuracy']:.3f}",
    )
