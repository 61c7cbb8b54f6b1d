"""One look for every figure.

Colours that colour-blind people tell apart, text kept as text, equal bytes each time.
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fl_dpbayes.files import write_atomically, written

INK = "#1f2933"
MUTED = "#5b6770"
GRID = "#e3e7ea"
BAND = "#dfe5ea"
PAPER = "#ffffff"
EDGE = "#b6bfc6"
# Okabe and Ito (2008), without yellow, which is too light on white.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
# The page gives these other values in the dark.
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    BAND: "band",
    PAPER: "paper",
    EDGE: "edge",
    BLUE: "blue",
    VERMILLION: "vermillion",
    GREEN: "green",
    PURPLE: "purple",
    ORANGE: "orange",
    SKY: "sky",
}
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
LEGEND_INCHES = 0.17
LINE_INCHES = 0.155
TITLE_CHARACTERS = 44
SUBTITLE_CHARACTERS = 62
# 346 CSS pixels: a telephone's width, so that text is never scaled down to unreadable.
WIDTH_INCHES = 3.6

FONT_STACK = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a site name may hold a dollar sign
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlepad": 4,
    "axes.edgecolor": EDGE,
    "axes.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
_NOT_FOR_INLINE = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<style.*?</style>", re.S)


@dataclass(frozen=True)
class PredictorStyle:
    """How a predictor is drawn: colour and shape both tell it apart, so that grey print does too.

    Attributes:
        colour: One of the colours above.
        marker: Matplotlib's name of a shape.
    """

    colour: str
    marker: str


PREDICTOR_STYLES: Mapping[str, PredictorStyle] = {
    "last": PredictorStyle(VERMILLION, "s"),
    "posterior": PredictorStyle(BLUE, "o"),
    "recalibrated": PredictorStyle(GREEN, "D"),
    "prior_corrected": PredictorStyle(ORANGE, "P"),
    "hierarchical": PredictorStyle(SKY, "h"),
    "site_only": PredictorStyle(PURPLE, "^"),
    "central": PredictorStyle(INK, "v"),
}


def predictor_style(predictor: str) -> PredictorStyle:
    """Return a predictor's colour and marker; an unknown predictor is a grey cross."""
    return PREDICTOR_STYLES.get(predictor, PredictorStyle(MUTED, "X"))


@dataclass(frozen=True)
class DrawnFigure:
    """One figure.

    Attributes:
        name: Stem of its file.
        svg: The drawing.
        description: What it shows, in words.
    """

    name: str
    svg: str
    description: str

    @property
    def inline(self) -> Markup:
        """The figure as part of a page that holds many.

        Its name stands before every identifier.
        """
        text = _NOT_FOR_INLINE.sub("", self.svg).strip()
        text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
        text = re.sub(r'(\sid="|\shref="#|url\(#)', rf"\g<1>{self.name}-", text)
        for colour, variable in VARIABLES.items():
            text = re.sub(colour, f"var(--{variable})", text, flags=re.IGNORECASE)
        end = text.index(">")
        # The page decides the size; the figure's shape is in its viewBox.
        opening = re.sub(r'\s(width|height)="[^"]*"', "", text[:end])
        # The SVG is ours, and Matplotlib escapes the text in it.
        return Markup(f'{opening} aria-hidden="true"{text[end:]}')


def drawn_figure(
    name: str, description: str, draw: Callable[[], Figure | None]
) -> DrawnFigure | None:
    """Draw a figure in the look above, equal ones as equal text.

    Args:
        name: Stem of its file.
        description: What it shows, in words.
        draw: Draws it, or returns None where there is nothing to draw.

    Returns:
        The figure, or None where there is nothing to draw.
    """
    with figure_settings(name):
        figure = draw()
        if figure is None:
            return None
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    # The measured font is part of matplotlib, so layout does not depend on the machine; the reader
    # may not have it.
    svg = buffer.getvalue().replace("'DejaVu Sans'", FONT_STACK)
    return DrawnFigure(name=name, svg=svg, description=description)


def save_figures(folder: Path, figures: Iterable[DrawnFigure]) -> None:
    """Save figures as SVG below `figures` of a run's or a study's folder.

    Raises:
        UserError: If they cannot be saved.
    """
    figures_folder = folder / "figures"
    with written(figures_folder):
        figures_folder.mkdir(exist_ok=True)
    for figure in figures:
        write_atomically(figures_folder / f"{figure.name}.svg", figure.svg)


def figure_name(*parts: str) -> str:
    """Join words to a file stem of letters, digits, `_` and `-`."""
    return "-".join(re.sub(r"[^A-Za-z0-9_]+", "_", part) for part in parts)


@contextmanager
def figure_settings(name: str) -> Iterator[None]:
    """Draw and save within: the look above, identifiers that depend on the figure's name only."""
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        yield


def titled_figure(title: str, subtitle: str, body_inches: float) -> Figure:
    """Begin a figure with a title and a quieter text below it.

    Args:
        title: Its title.
        subtitle: The quieter text; it may have several lines.
        body_inches: The height of what stands below, which is laid out to fit.
    """
    title_lines = textwrap.wrap(title, TITLE_CHARACTERS)
    subtitle_lines = [
        line for text in subtitle.split("\n") for line in textwrap.wrap(text, SUBTITLE_CHARACTERS)
    ]
    height = body_inches + LINE_INCHES * (len(title_lines) + len(subtitle_lines)) + 0.1
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, body_inches / height), w_pad=0.02, h_pad=0.02)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout=layout)
    figure.text(0, 1 - 0.02 / height, "\n".join(title_lines), size=9, weight="bold", va="top")
    depth = (0.05 + LINE_INCHES * len(title_lines)) / height
    figure.text(0, 1 - depth, "\n".join(subtitle_lines), size=7.5, color=MUTED, va="top")
    return figure


def quiet_grid(axes: Axes, direction: Literal["x", "y"]) -> None:
    """Draw light grid lines behind the data, across one axis."""
    axes.grid(axis=direction, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def add_legend(figure: Figure, columns: int = 2) -> None:
    """Name below a figure whatever has a label in it, each once, in its own colour."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower left",
        ncols=columns,
        labelcolor="linecolor",
        fontsize=7.5,
        frameon=False,
        borderaxespad=0,
    )


def short(text: str, most: int) -> str:
    """Cut a text to so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
