"""The figure of class-probability histograms: how a posterior's draws spread over the classes of single images."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_dpbayes.posterior.draws import Floats, class_histogram
from fl_dpbayes.report.figure_style import BLUE, MUTED, VERMILLION, WIDTH_INCHES, quiet_grid, set_title

BINS = 10
HEIGHT_PER_ROW = 1.35


def class_histogram_figure(
    images: npt.NDArray, labels: npt.NDArray[np.int64], draws: Sequence[tuple[str, Floats]]
) -> Figure:
    """Draw, for each image and method, the histogram of each class's probability over posterior draws.

    Each panel has a row per class; a cell's darkness is the share of draws that gave that class a probability in that
    bin. The true class is marked. (Zhang et al., figure 7, draws clusters of bars; with ten classes cells are easier
    to read.)

    Args:
        images: grey levels, shape (N, height, width).
        labels: true classes, shape (N,).
        draws: name of a method and its class probabilities, shape (M, N, classes).

    Returns:
        The figure: a row per image, a column per method after the image itself.
    """
    count = len(images)
    height = HEIGHT_PER_ROW * count + 0.8
    figure = Figure(figsize=(WIDTH_INCHES, height))
    set_title(figure, "What the draws of each posterior say", f"class by probability, {len(draws[0][1])} draws")
    grid = figure.subplots(
        count, 1 + len(draws), squeeze=False,
        gridspec_kw={
            "left": 0.01, "right": 0.985, "top": 1 - 0.68 / height, "bottom": 0.42 / height, "hspace": 0.3,
            "wspace": 0.28, "width_ratios": [0.7, *([1.0] * len(draws))],
        },
    )  # fmt: skip
    for row in range(count):
        grid[row, 0].imshow(images[row], cmap="gray_r")
        grid[row, 0].set_axis_off()
        for column, (name, probabilities) in enumerate(draws):
            counts = class_histogram(probabilities[:, row : row + 1], BINS)[0]
            _draw(grid[row, column + 1], counts / len(probabilities), int(labels[row]), name if row == 0 else "")
    for axes in grid[-1, 1:]:
        axes.set_xlabel("probability")
    return figure


def _draw(axes: Axes, shares: Floats, label: int, name: str) -> None:
    classes = len(shares)
    quiet_grid(axes, "y")
    # The usual share of draws is far from 1, so the root makes single draws visible.
    axes.imshow(
        np.sqrt(shares), extent=(0, 1, classes - 0.5, -0.5), aspect="auto", cmap="Blues", vmin=0, vmax=1,
        interpolation="nearest",
    )  # fmt: skip
    axes.axhline(label, color=VERMILLION, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(classes), [str(number) for number in range(classes)], size=6)
    axes.get_yticklabels()[label].set(color=VERMILLION, weight="bold")
    axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    axes.set_title(name, color=BLUE if name else MUTED)
