"""The report of a study: one page that needs no other file, no script and no network."""

from pathlib import Path

from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.report.figure_style import figure_settings, figure_svg
from fl_dpbayes.report.figures import DrawnFigure, save_figures
from fl_dpbayes.report.numbers import duration
from fl_dpbayes.report.page import PageFigure, page_figure, render_page
from fl_dpbayes.report.study.answer import study_answer
from fl_dpbayes.report.study.method_figures import (
    axis_figures,
    heterogeneity_figures,
    seconds_figure,
)
from fl_dpbayes.report.study.panels import PanelFigure, draw_panels
from fl_dpbayes.report.study.place_figures import sites_figure, subgroup_figure, truth_figure
from fl_dpbayes.report.study.quantities import place_words
from fl_dpbayes.report.study.results import StudyResults, label_text, read_study
from fl_dpbayes.report.study.shift_figures import conformal_figures, detection_figure, epistemic_figure, shift_figures
from fl_dpbayes.report.study.tables import (
    baseline_table,
    differences_table,
    failures_table,
    figure_table,
    paper_table,
    privacy_table,
    settings_table,
    spent_table,
)
from fl_dpbayes.report.study.template import TEMPLATE

PAGE = "report.html"


def study_figures(study: StudyResults) -> list[tuple[str, str, list[PanelFigure]]]:
    """Gather a study's figures by section, in reading order.

    Args:
        study: its folder's content.

    Returns:
        (heading, note, figures); sections without a figure are left out.
    """
    where = f"At {place_words(study.record.where)}."
    sections: list[tuple[str, str, list[PanelFigure | None]]] = [
        ("Methods", where, [*axis_figures(study), *heterogeneity_figures(study)]),
        ("Sites", "", [sites_figure(study), subgroup_figure(study)]),
        ("Shift", "Severity 0 is the same site's records as they are.", [*shift_figures(study)]),
        ("Uncertainty at new sites", "", [detection_figure(study), epistemic_figure(study)]),
        (
            "Conformal prediction sets",
            "Calibrated on the training sites' test records: the promise holds for sites like those only.",
            [*conformal_figures(study)],
        ),
        ("Estimates against known truth", "", [truth_figure(study)]),
        ("Cost", "", [seconds_figure(study)]),
    ]
    kept = [(heading, note, [item for item in items if item is not None]) for heading, note, items in sections]
    return [section for section in kept if section[2]]


def write_study_report(folder: Path) -> Path:
    """Write `report.html` from a study's folder, and its figures beside it.

    Args:
        folder: holds `study.json`, `study.toml` and the study's tables.

    Returns:
        The path of the page.

    Raises:
        UserError: if a file of the study is missing or damaged, or the folder cannot be written to.
    """
    study = read_study(folder)
    drawn: list[DrawnFigure] = []
    sections = []
    for heading, note, figures in study_figures(study):
        items: list[PageFigure] = []
        for content in figures:
            with figure_settings(content.name):
                svg = figure_svg(draw_panels(content))
            drawn.append(DrawnFigure(content.name, svg, f"{content.title}; {content.subtitle}."))
            items.append(page_figure(drawn[-1], figure_table(content)))
        sections.append((heading, note, items))
    save_figures(folder, drawn)
    page = render_page(
        TEMPLATE,
        record=study.record,
        answer=study_answer(study),
        axes={name: ", ".join(map(label_text, values)) for name, values in study.record.axes.items()},
        failures=failures_table(study),
        spent=spent_table(study),
        privacy=privacy_table(study),
        sections=sections,
        beside=baseline_table(study) if study.baseline else None,
        paper=paper_table(study),
        differences=differences_table(study),
        settings=settings_table(study),
        place=place_words(study.record.where),
        facts={
            "Time of all cells": duration(study.record.seconds),
            "Tables": "results.csv, differences.csv and their Parquet twins beside this page",
            "Versions": ", ".join(f"{name} {version}" for name, version in study.record.versions.items()),
        },
    )
    path = folder / PAGE
    write_atomically(path, page)
    return path
