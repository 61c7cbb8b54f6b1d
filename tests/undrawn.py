"""Figures that are not drawn: that takes most of a short run's time, and tests of the report hold what is drawn."""

from collections.abc import Callable

from fl_dpbayes.report.figure_style import DrawnFigure


def undrawn(name: str, description: str, draw: Callable[[], object]) -> DrawnFigure:
    """Take the place of `fl_dpbayes.report.figures.drawn_figure`."""
    return DrawnFigure(name=name, svg="<svg></svg>", description=description)
