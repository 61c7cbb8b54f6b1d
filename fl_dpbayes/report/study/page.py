"""The report of a study: one page that needs no other file, no script and no network."""

from functools import partial
from pathlib import Path

from fl_dpbayes.report.figure_style import DrawnFigure, drawn_figure, save_figures
from fl_dpbayes.report.numbers import duration
from fl_dpbayes.report.page import PageFigure, page_figure, write_page
from fl_dpbayes.report.study.answer import study_answer
from fl_dpbayes.report.study.figures import study_figures
from fl_dpbayes.report.study.panels import draw_panels
from fl_dpbayes.report.study.quantities import place_words
from fl_dpbayes.report.study.results import label_text, read_study
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
from fl_dpbayes.report.template import STUDY


def write_study_report(folder: Path) -> Path:
    """Write `report.html` from `study.json`, `study.toml` and the tables of a study's folder, and its figures beside.

    Raises UserError if a file of the study is missing or damaged, or the folder cannot be written to.
    """
    study = read_study(folder)
    drawn: list[DrawnFigure] = []
    sections = []
    for heading, note, figures in study_figures(study):
        items: list[PageFigure] = []
        for content in figures:
            figure = drawn_figure(content.name, f"{content.title}; {content.subtitle}.", partial(draw_panels, content))
            if figure is not None:
                drawn.append(figure)
                items.append(page_figure(figure, figure_table(content)))
        sections.append((heading, note, items))
    save_figures(folder, drawn)
    return write_page(
        folder,
        STUDY,
        title=f"{study.record.study}: calibration of a grid of runs",
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
