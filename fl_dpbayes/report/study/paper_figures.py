"""Figures of a paper's table: what it prints beside ours, and reliability of each method."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.report import figure_style as look
from fl_dpbayes.report.figure_style import DrawnFigure, drawn_figure, figure_name
from fl_dpbayes.report.study.comparisons import groups
from fl_dpbayes.report.study.quantities import place_words, quantity
from fl_dpbayes.report.study.results import PREDICTOR, StudyResults

LABEL_CHARACTERS = 25
LABEL_LINE_INCHES = 0.125
MOST_PANELS = 24
PANELS_IN_ROW = 3
PANEL_INCHES = 1.3
TITLE_CHARACTERS = 22
# Below so many records the chance of a bin hides what it shows.
FEW_RECORDS = 30


def beside_paper_figures(study: StudyResults) -> list[DrawnFigure]:
    """Draw each metric that the paper prints, its value and ours in one row."""
    measured = study.paper
    if measured.empty:
        return []
    measured = measured[(measured["seeds"] > 0) & (measured["column"] != "epsilon")]
    figures = []
    for column, rows in measured.groupby("column", sort=False):
        name = quantity(str(column)).metric.name
        figure = drawn_figure(
            name=figure_name("paper", str(column)),
            description=f"{name}: what the paper prints beside what was measured.",
            draw=partial(_draw_beside_paper, study, str(column), rows),
        )
        if figure is not None:
            figures.append(figure)
    return figures


def _draw_beside_paper(study: StudyResults, column: str, rows: pd.DataFrame) -> Figure:
    records = rows.to_dict("records")
    labels = [_row_label(study, row, predictors=rows[PREDICTOR].nunique()) for row in records]
    lines = sum(label.count("\n") + 1.4 for label in labels)
    what = quantity(column)
    figure = look.titled_figure(
        f"{what.metric.name}, here and in the paper",
        f"{place_words(study.record.where)}; line: 95% interval over seeds",
        body_inches=LABEL_LINE_INCHES * lines + 0.6,
    )
    axes = figure.subplots()
    look.quiet_grid(axes, "x")
    for position, row in enumerate(records):
        _draw_row(axes, row, position)
    axes.set_ylim(len(records) - 0.5, -0.5)
    axes.set_yticks(range(len(records)), labels)
    axes.tick_params(axis="y", length=0, labelsize=6.5, labelcolor=look.INK)
    axes.spines["left"].set_visible(False)
    if what.metric.calibration_error:
        axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    look.add_legend(figure)
    return figure


def _row_label(study: StudyResults, row: Mapping[str, Any], *, predictors: int) -> str:
    """Name a row by what varies; the predictor too where the figure has several."""
    parts = [str(row[axis]) for axis in _varied(study) if _is_text(row.get(axis))]
    if predictors > 1:
        parts.append(study.words(PREDICTOR, row[PREDICTOR]))
    return "\n".join(textwrap.wrap(", ".join(parts) or "all", LABEL_CHARACTERS))


def _varied(study: StudyResults) -> list[str]:
    return [axis for axis, labels in study.axes.items() if len(labels) > 1]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _draw_row(axes: Axes, row: Mapping[str, Any], position: int) -> None:
    if row["seeds"] > 1 and not math.isnan(row["low"]):
        axes.plot([row["low"], row["high"]], [position, position], color=look.BLUE, linewidth=1.4)
    for column, marker, colour, label in (
        ("paper", "D", look.VERMILLION, "the paper"),
        ("measured", "o", look.BLUE, "here"),
    ):
        axes.plot(row[column], position, marker, color=colour, label=label, markersize=4, zorder=3)


def reliability_figure(study: StudyResults) -> DrawnFigure | None:
    """Draw accuracy by confidence at the study's place, a panel for each setting.

    Bins of equal ends are pooled over seeds. A study of more settings than panels has none.
    """
    frame = study.reliability
    if frame.empty:
        return None
    settings = list(_settings(study, frame))
    if len(settings) > MOST_PANELS:
        return None
    return drawn_figure(
        name="reliability",
        description=f"Accuracy by confidence, {place_words(study.record.where)}.",
        draw=partial(_draw_reliability, study, settings),
    )


def _settings(study: StudyResults, frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield what each setting is called, and its bins."""
    for labels, rows in groups(study, frame, _varied(study)):
        yield ", ".join(labels.values()) or "all", rows


def _draw_reliability(study: StudyResults, settings: Sequence[tuple[str, pd.DataFrame]]) -> Figure:
    columns = min(PANELS_IN_ROW, len(settings))
    rows = math.ceil(len(settings) / columns)
    predictors = study.predictors(study.reliability)
    is_risk = bool(study.reliability["risk"].any())
    seen, foretold = ("observed", "risk") if is_risk else ("accuracy", "confidence")
    figure = look.titled_figure(
        f"{seen.capitalize()} by {foretold}",
        f"{place_words(study.record.where)}, %; dashed: calibrated; bins pooled over seeds; "
        f"hollow: fewer than {FEW_RECORDS} records",
        body_inches=PANEL_INCHES * rows + look.LEGEND_INCHES * (1 + len(predictors)),
    )
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for axes, (title, bins) in zip(grid, settings, strict=False):
        axes.set_title("\n".join(textwrap.wrap(title, TITLE_CHARACTERS)), color=look.INK, size=6.5)
        _draw_bins(axes, study, bins)
    for axes in grid[len(settings) :]:
        axes.set_axis_off()
    look.add_legend(figure, columns=1)
    return figure


def _draw_bins(axes: Axes, study: StudyResults, bins: pd.DataFrame) -> None:
    axes.plot([0, 100], [0, 100], color=look.MUTED, linewidth=0.7, linestyle=(0, (4, 3)))
    for predictor in study.predictors(bins):
        pooled = pooled_bins(bins[bins[PREDICTOR] == predictor])
        style = look.predictor_style(predictor)
        across = 100 * pooled["confidence"]
        up = 100 * pooled["accuracy"]
        axes.plot(
            across,
            up,
            color=style.colour,
            linewidth=0.9,
            marker=style.marker,
            markersize=2.4,
            label=study.words(PREDICTOR, predictor),
        )
        few = pooled["n"] < FEW_RECORDS
        axes.plot(
            across[few],
            up[few],
            style.marker,
            color=style.colour,
            markerfacecolor="white",
            markersize=2.4,
            zorder=3,
        )
    axes.set(xlim=(0, 100), ylim=(0, 100))
    axes.set_xticks((0, 50, 100))
    axes.set_yticks((0, 50, 100))


def pooled_bins(bins: pd.DataFrame) -> pd.DataFrame:
    """Pool bins of equal ends over cells: confidence = sum n_i confidence_i / sum n_i.

    Args:
        bins: Rows of the table `reliability` of one predictor at one setting.

    Returns:
        A row for each bin that holds records, from low to high: `n`, `confidence`, `accuracy`.
    """
    held = bins[bins["n"] > 0]
    sums = pd.DataFrame(
        {
            "low": held["low"],
            "high": held["high"],
            "n": held["n"],
            "confidence": held["n"] * held["confidence"],
            "accuracy": held["n"] * held["accuracy"],
        }
    )
    pooled = sums.groupby(["low", "high"], as_index=False).sum()
    for column in ("confidence", "accuracy"):
        pooled[column] /= pooled["n"]
    return pooled
