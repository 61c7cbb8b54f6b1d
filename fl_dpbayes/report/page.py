"""What every report page is made of: one template environment, and figures with their numbers."""

import re
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fl_dpbayes.report.figures import DrawnFigure
from fl_dpbayes.report.inline_svg import inline_svg
from fl_dpbayes.report.page_tables import PageTable
from fl_dpbayes.report.stylesheet import STYLESHEET


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page, with its numbers."""

    svg: Markup
    description: str
    table: PageTable


def render_page(template: str, **content: object) -> str:
    """Fill a page's template; every value is escaped unless it is one of our own figures."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["unbroken"] = _unbroken
    return environment.from_string(template).render(stylesheet=Markup(STYLESHEET), **content)


def page_figure(figure: DrawnFigure, table: PageTable) -> PageFigure:
    """Put a figure and its numbers on a page."""
    # The SVG is ours, and Matplotlib escapes the text in it.
    return PageFigure(Markup(inline_svg(figure.svg, figure.name)), figure.description, table)


def _unbroken(text: str) -> str:
    """Keep each "[low, high]" and "n = 450" on one line."""
    return re.sub(r"\[[^\[\]]*\]|\bn = \d+", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
