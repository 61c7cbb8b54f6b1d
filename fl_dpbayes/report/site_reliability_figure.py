"""Reliability at every site as small multiples: one predictor, one panel for each site."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from fl_dpbayes.config.summary import ReliabilityRecord
from fl_dpbayes.report.figure_style import INK, MUTED, WIDTH_INCHES, quiet_grid, set_title
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.reliability_figure import draw_bins

ROLE_WORDS = {"held_out": "held out", "shifted": "shifted", "train": "trained"}
TICKS, PERCENT = (0.0, 0.5, 1.0), ("0", "50", "100")
TITLE_INCHES, LABEL_INCHES, HEAD_INCHES, TICK_INCHES = 0.5, 0.36, 0.36, 0.22
GUTTER_INCHES = 0.3
MAX_NAME = {2: 22, 3: 15}


@dataclass(frozen=True)
class _Grid:
    """Where the panels of a figure stand, in inches from its lower left corner."""

    columns: int
    rows: int

    @property
    def panel(self) -> float:
        return (WIDTH_INCHES - 0.14) / self.columns - GUTTER_INCHES

    @property
    def step(self) -> float:
        return HEAD_INCHES + self.panel + TICK_INCHES

    @property
    def height(self) -> float:
        return TITLE_INCHES + self.rows * self.step + LABEL_INCHES - TICK_INCHES

    def corner(self, number: int) -> tuple[float, float]:
        row, column = divmod(number, self.columns)
        left = GUTTER_INCHES + column * (self.panel + GUTTER_INCHES)
        return left, self.height - TITLE_INCHES - HEAD_INCHES - self.panel - row * self.step


def site_reliability_figure(rows: Sequence[ReliabilityRecord], title: str) -> Figure:
    """Draw a reliability diagram for each site."""
    columns = 2 if len(rows) <= 4 else 3
    grid = _Grid(columns, math.ceil(len(rows) / columns))
    figure = Figure(figsize=(WIDTH_INCHES, grid.height))
    set_title(figure, title, "accuracy, %, against confidence, %; grey: 95% if calibrated")
    for number, row in enumerate(rows):
        left, bottom = grid.corner(number)
        axes = figure.add_axes(
            (left / WIDTH_INCHES, bottom / grid.height, grid.panel / WIDTH_INCHES, grid.panel / grid.height)
        )
        quiet_grid(axes, "y")
        draw_bins(axes, row, 2.6)
        axes.set_xticks(TICKS, PERCENT if number + columns >= len(rows) else [""] * len(TICKS))
        axes.set_yticks(TICKS, PERCENT if number % columns == 0 else [""] * len(TICKS))
        records = count(sum(part.n for part in row.bins))
        top = bottom + grid.panel
        for words, above, colour, size in (
            (_short(row.site, MAX_NAME[columns]), 0.21, INK, 7.5),
            (f"{ROLE_WORDS[row.role]}, n = {records}", 0.08, MUTED, 7.0),
        ):
            figure.text(left / WIDTH_INCHES, (top + above) / grid.height, words, color=colour, size=size)
    figure.text(0.5, 0.04 / grid.height, "confidence, %", color=MUTED, size=7.5, ha="center")
    return figure


def _short(name: str, most: int) -> str:
    # Long names of hospitals often differ at their end only.
    return name if len(name) <= most else f"{name[: most // 2]}…{name[most // 2 + 1 - most :]}"
