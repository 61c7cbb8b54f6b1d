"""The figures of `zhang-mnist`: what each posterior's draws say of one image, after the paper's figure 7."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from fl_dpbayes.run.reproduce.class_histogram_figure import class_histogram_figure
from fl_dpbayes.run.reproduce.experiment import CellResult, DrawFigure
from fl_dpbayes.run.reproduce.zhang_mnist_settings import (
    AUTHORS,
    BBP,
    GAUSSIAN,
    MC_DROPOUT,
    MLP,
    PLAIN,
    SGLD,
    SHOWN_CLASS,
)


def mnist_figures(results: Sequence[CellResult]) -> Mapping[str, DrawFigure]:
    """Draw the histograms of the three Bayesian methods on the MLP with a Gaussian prior, first seed.

    Args:
        results: finished cells.

    Returns:
        File stem -> function that draws; one for the private methods, one for the plain ones.
    """
    found = {
        tuple(result.cell.settings[key] for key in ("network", "method", "prior", "setting")): result
        for result in sorted(results, key=lambda one: -one.cell.seed)
    }
    figures: dict[str, DrawFigure] = {}
    for stem, setting, prefix in (("private", AUTHORS, "DP-"), ("non-private", PLAIN, "")):
        chosen = {
            f"{prefix}{method}": found[MLP, method, GAUSSIAN, setting]
            for method in (SGLD, BBP, MC_DROPOUT)
            if (MLP, method, GAUSSIAN, setting) in found
        }
        if chosen:
            figures[f"zhang-mnist-histograms-{stem}"] = partial(_figure, chosen)
    return figures


def _figure(chosen: Mapping[str, CellResult]) -> Figure:
    image = np.array(next(iter(chosen.values())).details["image"])
    draws = [(name, np.array(result.details["draws"])[:, None]) for name, result in chosen.items()]
    return class_histogram_figure(image[None], np.array([SHOWN_CLASS]), draws)
