"""One look for every figure: colours that colour-blind people tell apart, text kept as text, equal bytes each time."""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fl_dpbayes.files import write_atomically, written
from fl_dpbayes.report.page_tables import PageTable

INK, MUTED, GRID, BAND = "#1f2933", "#5b6770", "#e3e7ea", "#dfe5ea"
# Okabe and Ito (2008), without yellow, which is too light on white.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
PAPER, EDGE = "#ffffff", "#b6bfc6"
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
LEGEND_INCHES, LINE_INCHES = 0.17, 0.155
TITLE_CHARACTERS, SUBTITLE_CHARACTERS = 44, 62
WIDTH_INCHES = (
    3.6  # 346 CSS pixels: a telephone's width, so that text is never scaled down to unreadable
)

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


class PredictorStyle(NamedTuple):
    """How a predictor is drawn: colour and shape both tell it apart, so that grey print does too."""

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
    """One figure: `name` is its file's stem, `description` says in words what it shows.

    `table` holds its numbers; None where a table of the page does.
    """

    name: str
    svg: str
    description: str
    table: PageTable | None

    @property
    def inline(self) -> Markup:
        """The figure as part of a page that holds many: its name stands before every identifier."""
        text = _NOT_FOR_INLINE.sub("", self.svg).strip()
        text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
        text = re.sub(r'(\sid="|\shref="#|url\(#)', rf"\g<1>{self.name}-", text)
        for colour, name in VARIABLES.items():
            text = re.sub(colour, f"var(--{name})", text, flags=re.IGNORECASE)
        # The page decides the size; the figure's shape is in its viewBox.
        opening = re.sub(r'\s(width|height)="[^"]*"', "", text[: text.index(">")])
        # The SVG is ours, and Matplotlib escapes the text in it.
        return Markup(opening + ' aria-hidden="true"' + text[text.index(">") :])


def drawn_figure(
    name: str, description: str, table: PageTable | None, draw: Callable[[], Figure | None]
) -> DrawnFigure | None:
    """Draw a figure in the look above, equal ones as equal text.

    None where there is nothing to draw.
    """
    with figure_settings(name):
        if (figure := draw()) is None:
            return None
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    # The measured font is part of matplotlib, so layout does not depend on the machine; the reader
    # may not have it.
    return DrawnFigure(
        name, buffer.getvalue().replace("'DejaVu Sans'", FONT_STACK), description, table
    )


def save_figures(folder: Path, figures: Iterable[DrawnFigure]) -> None:
    """Save figures as SVG below `figures` of a run's or a study's folder.

    Raises UserError if it cannot be.
    """
    below = folder / "figures"
    with written(below):
        below.mkdir(exist_ok=True)
    for figure in figures:
        write_atomically(below / f"{figure.name}.svg", figure.svg)


def figure_name(*parts: str) -> str:
    """Join words to a file stem of letters, digits, `_` and `-`."""
    return "-".join(re.sub(r"[^A-Za-z0-9_]+", "_", part) for part in parts)


@contextmanager
def figure_settings(name: str) -> Iterator[None]:
    """Draw and save within: the look above, and identifiers that depend on the figure's name only."""
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        yield


def titled_figure(title: str, subtitle: str, body_inches: float) -> Figure:
    """Begin a figure with a title and a quieter text below it.

    The rest has so much height, and is laid out to fit.
    """
    heading = textwrap.wrap(title, TITLE_CHARACTERS)
    quiet = [
        line for text in subtitle.split("\n") for line in textwrap.wrap(text, SUBTITLE_CHARACTERS)
    ]
    height = body_inches + LINE_INCHES * (len(heading) + len(quiet)) + 0.1
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, body_inches / height), w_pad=0.02, h_pad=0.02)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout=layout)
    figure.text(0, 1 - 0.02 / height, "\n".join(heading), size=9, weight="bold", va="top")
    below = (0.05 + LINE_INCHES * len(heading)) / height
    figure.text(0, 1 - below, "\n".join(quiet), size=7.5, color=MUTED, va="top")
    return figure


def quiet_grid(axes: Axes, direction: Literal["x", "y"]) -> None:
    """Draw light grid lines behind the data, across one axis."""
    axes.grid(axis=direction, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def add_legend(figure: Figure, columns: int = 2) -> None:
    """Name below a figure whatever has a label in it, each once, in its own colour."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    look: Any = {"labelcolor": "linecolor", "fontsize": 7.5, "frameon": False, "borderaxespad": 0}
    figure.legend(
        list(found.values()), list(found), loc="outside lower left", ncols=columns, **look
    )


def short(text: str, most: int) -> str:
    """Cut a text to so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
