"""The report of a run: one page that needs no other file, no script and no network."""

import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.curve_figures import read_epsilon_curves
from fl_dpbayes.report.figure_style import DrawnFigure, figure_name
from fl_dpbayes.report.figures import (
    SITE_METRICS,
    SITE_RELIABILITY,
    decision_curves,
    draw_figures,
    net_benefit_name,
    pooled_reliability,
    site_reliability,
)
from fl_dpbayes.report.headline import key_figures, median_rows
from fl_dpbayes.report.measure_tables import measure_tables, net_benefit_table, site_reliability_table
from fl_dpbayes.report.page_tables import (
    PageTable,
    all_metrics_table,
    calibration_table,
    cost_table,
    epsilon_table,
    facts,
    metric_table,
    participation_table,
    privacy_table,
    release_table,
    reliability_table,
    settings_table,
    site_table,
)
from fl_dpbayes.report.run_files import read_summary
from fl_dpbayes.report.stylesheet import STYLESHEET
from fl_dpbayes.report.template import RUN
from fl_dpbayes.report.wording import neighbours, small_delta_text, temperature_notes

PAGE = "report.html"
_NOT_FOR_INLINE = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<style.*?</style>", re.S)


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page, with its numbers."""

    svg: Markup
    description: str
    table: PageTable


def write_report(run_dir: Path | str) -> Path:
    """Write `report.html` from a run directory's `summary.json` and `privacy.csv`, and its figures beside it.

    Raises UserError if the folder is not a run directory, a record in it is damaged, or it cannot be written to.
    """
    folder = Path(run_dir)
    run, curves = read_summary(folder), read_epsilon_curves(folder)
    figures = draw_figures(folder, run, curves)

    def with_table(name: str, table: PageTable) -> list[PageFigure]:
        return [page_figure(figures[name], table)] if name in figures else []

    return write_page(
        folder,
        RUN,
        title=f"{run.scenario}: privacy and calibration",
        run=run,
        answer=answer(run),
        key_figures=key_figures(run),
        adjacency=neighbours(run),
        small_delta=small_delta_text(run),
        approximate_mu=run.private and any(row.mu_kind == "clt" for row in run.privacy),
        temperatures=temperature_notes(run),
        settings=settings_table(run),
        privacy=privacy_table(run),
        epsilon=with_table("epsilon", epsilon_table(curves)),
        releases=release_table(run),
        calibration=calibration_table(
            [*median_rows(run), *(row for row in run.calibration if row.pooled or row.mean_of_sites)]
        ),
        all_metrics=all_metrics_table(run.calibration),
        reliability=[
            page_figure(figures[figure_name("reliability", row.role, row.predictor)], reliability_table(row))
            for row in pooled_reliability(run)
        ],
        sites_figures=[
            item
            for metric in SITE_METRICS
            for item in with_table(figure_name("sites", metric), metric_table(run.places, metric))
        ],
        site_reliability=with_table(SITE_RELIABILITY, site_reliability_table(site_reliability(run))),
        net_benefit=[
            page_figure(figures[net_benefit_name(role)], net_benefit_table(rows))
            for role, rows in decision_curves(run).items()
        ],
        sites=site_table(run),
        participation=participation_table(run),
        cost=cost_table(run),
        facts=facts(run),
        **measure_tables(run),
    )


def write_page(folder: Path, template: str, **content: object) -> Path:
    """Fill a page's template, with `title` and what else it names, and write it as `report.html` of a folder.

    Every value is escaped unless it is one of our own figures.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["unbroken"] = _unbroken
    page = environment.from_string(template).render(stylesheet=Markup(STYLESHEET), **content)
    write_atomically(folder / PAGE, page)
    return folder / PAGE


def page_figure(figure: DrawnFigure, table: PageTable) -> PageFigure:
    """Put a figure drawn by this package and its numbers on a page."""
    # The SVG is ours, and Matplotlib escapes the text in it.
    return PageFigure(Markup(_inline_svg(figure.svg, figure.name)), figure.description, table)


def _unbroken(text: str) -> str:
    """Keep each "[low, high]" and "n = 450" on one line."""
    return re.sub(r"\[[^\[\]]*\]|\bn = \d+", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def _inline_svg(svg: str, name: str) -> str:
    """Make an SVG document of Matplotlib part of a page that holds many: its name stands before every identifier."""
    text = _NOT_FOR_INLINE.sub("", svg).strip()
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href=", "href=")
    text = re.sub(r'(\sid=")', rf"\g<1>{name}-", text)
    text = re.sub(r'(\shref="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"(url\(#)", rf"\g<1>{name}-", text)
    # The page decides the size; the figure's shape is in its viewBox.
    opening = re.sub(r'\s(width|height)="[^"]*"', "", text[: text.index(">")])
    return opening + ' aria-hidden="true"' + text[text.index(">") :]
