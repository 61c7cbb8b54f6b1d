"""The report of a study: one page that needs no other file, no script and no network."""

from functools import partial
from pathlib import Path

from fl_dpbayes.report.figure_style import DrawnFigure, drawn_figure, save_figures
from fl_dpbayes.report.numbers import duration
from fl_dpbayes.report.page import write_page
from fl_dpbayes.report.study.answer import study_answer
from fl_dpbayes.report.study.figures import Section, study_figures
from fl_dpbayes.report.study.panels import PanelFigure, draw_panels
from fl_dpbayes.report.study.paper_figures import beside_paper_figures, reliability_figure
from fl_dpbayes.report.study.quantities import place_words
from fl_dpbayes.report.study.results import StudyResults, label_text, read_study
from fl_dpbayes.report.study.tables import study_tables
from fl_dpbayes.report.template import STUDY


def write_study_report(folder: Path) -> Path:
    """Write `report.html` and its figures from the record and tables of a study's folder.

    Raises:
        UserError: If a file of the study is missing or damaged, or the folder cannot be written
            to.
    """
    study = read_study(folder)
    sections = [
        *_paper_sections(study),
        *((section, _draw(section.figures)) for section in study_figures(study)),
    ]
    save_figures(folder, [figure for _, figures in sections for figure in figures])
    return write_page(
        folder,
        STUDY,
        title=f"{study.record.study}: calibration of a grid of runs",
        record=study.record,
        answer=study_answer(study),
        axes={
            name: ", ".join(map(label_text, values)) for name, values in study.record.axes.items()
        },
        sections=sections,
        place=place_words(study.record.where),
        **study_tables(study),
        facts={
            "Time of all cells": duration(study.record.seconds),
            "Tables": "results.csv, differences.csv and their Parquet twins beside this page",
            "Versions": ", ".join(
                f"{name} {version}" for name, version in study.record.versions.items()
            ),
        },
    )


def _paper_sections(study: StudyResults) -> list[tuple[Section, list[DrawnFigure]]]:
    """Return the sections on what a paper shows, without those that have no figure."""
    reliability = reliability_figure(study)
    sections = [
        (Section(heading="Beside the paper", note="", figures=[]), beside_paper_figures(study)),
        (
            Section(heading="Reliability", note="", figures=[]),
            [] if reliability is None else [reliability],
        ),
    ]
    return [section for section in sections if section[1]]


def _draw(figures: list[PanelFigure]) -> list[DrawnFigure]:
    drawn = [
        drawn_figure(
            name=content.name,
            description=f"{content.title}; {content.subtitle}.",
            draw=partial(draw_panels, content),
        )
        for content in figures
    ]
    return [figure for figure in drawn if figure is not None]
