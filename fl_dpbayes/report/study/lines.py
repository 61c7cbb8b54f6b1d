"""Lines and figures of a study's metrics."""

from collections.abc import Sequence

from fl_dpbayes.report.study.estimates import Estimate
from fl_dpbayes.report.study.panels import Line, Mark, Panel, PanelFigure
from fl_dpbayes.report.study.quantities import Quantity

OVER_SEEDS = "line: 95% interval over seeds"


def line_over(
    method: str, words: str, labels: Sequence[str], found: Sequence[Estimate | None], *, joined: bool = True
) -> Line | None:
    """Place estimates one beside the other.

    Args:
        method: key of the line.
        words: its name.
        labels: places on the horizontal axis.
        found: one estimate per place, None where undefined.
        joined: whether the points are joined.

    Returns:
        The line, or None where nothing is defined.
    """
    marks = [
        Mark(number, label, value)
        for number, (label, value) in enumerate(zip(labels, found, strict=True))
        if value is not None
    ]
    return Line(method, words, tuple(marks), joined=joined) if marks else None


def metric_figure(
    measured: Quantity, name: str, title: str, reading: str, panels: Sequence[Panel], grey: str = ""
) -> PanelFigure:
    """Make a figure of a metric.

    Args:
        measured: the metric.
        name: stem of the file.
        title: stands after the metric's name.
        reading: how to read it.
        panels: what is drawn.
        grey: what the legend calls grey lines.

    Returns:
        The figure.
    """
    return PanelFigure(
        name, f"{measured.short_name} {title}", "; ".join(part for part in (measured.drawn_unit, reading) if part),
        measured.heading, tuple(panels), measured.scale, measured.drawn_places, from_zero=measured.is_error, grey=grey,
    )  # fmt: skip
