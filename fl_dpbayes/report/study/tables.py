"""The tables of a study's page."""

from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import pandas as pd

from fl_dpbayes.report.numbers import (
    UNDEFINED,
    decimal,
    interval,
    probability,
    rounded_up,
    significant,
)
from fl_dpbayes.report.page_tables import Cell, PageTable, page_table
from fl_dpbayes.report.study.comparisons import (
    beside_baseline,
    differences,
    estimate,
    setting_words,
)
from fl_dpbayes.report.study.panels import PanelFigure
from fl_dpbayes.report.study.quantities import Estimate, Quantity, axis_name, quantity
from fl_dpbayes.report.study.results import PREDICTOR, SEED, StudyResults, label_text, rows_at

MOST_ROWS = 2_000
ASKED = "privacy.epsilon"


def study_tables(study: StudyResults) -> dict[str, PageTable]:
    """Gather the tables of a study's page, by its names."""
    failed = [
        (", ".join(f"{axis} {label_text(label)}" for axis, label in one.labels.items()), one.error)
        for one in study.record.failed
    ]
    return {
        "failures": page_table(("Cell", "Error"), failed[:MOST_ROWS], range(2)),
        "spent": privacy_table(study, [axis for axis in study.axes if axis == ASKED]),
        "privacy": privacy_table(study, study.axes),
        "beside": baseline_table(study),
        "paper": paper_table(study),
        "differences": differences_table(study),
        "settings": settings_table(study, study.record.metrics),
    }


def figure_table(figure: PanelFigure) -> PageTable:
    """List the numbers of a figure: each mean, its interval, and over how many seeds and settings it goes."""

    def write(value: float | None) -> str:
        return decimal(None if value is None else figure.scale * value, figure.places)

    rows = []
    marks = (
        (panel, line, mark)
        for panel in figure.panels
        for line in panel.lines
        for mark in line.marks
    )
    for panel, line, mark in marks:
        value = mark.value
        cells = (
            panel.title,
            mark.where,
            line.words,
            write(value.mean),
            interval(value.ends, write),
        )
        rows.append((*cells, str(value.seeds), str(value.settings)))
    columns = ("Panel", "At", "Line", figure.quantity, "95% interval", "Seeds", "Settings")
    return page_table(columns, rows[:MOST_ROWS], range(3))


def differences_table(study: StudyResults) -> PageTable:
    """List the paired differences of all metrics over all settings, or at each that the study keeps apart."""
    rows, apart = [], bool(study.baseline)
    for measured in map(quantity, study.record.metrics):
        for one in differences(study, measured.key):
            method, baseline = (
                study.words(one.axis, label) for label in (one.method, one.baseline)
            )
            at = (one.at,) if apart else ()
            names = (axis_name(one.axis), *at, f"{method} – {baseline}", measured.metric.name)
            value = (measured.value(one.value.mean), _ends(measured, one.value))
            rows.append((*names, *value, str(one.value.seeds), str(one.value.settings)))
    first = ("Compared", "At", "Difference") if apart else ("Compared", "Difference")
    columns = (*first, "Metric", "Mean", "95% interval", "Seeds", "Settings")
    return page_table(columns, rows, range(4 if apart else 3))


def baseline_table(study: StudyResults) -> PageTable:
    """List every method at every setting that the study keeps apart, by all metrics, beside the declared baseline."""
    measured = [quantity(metric) for metric in study.record.metrics]
    columns: dict[tuple[str, str], list[str | Cell]] = {}
    for one in measured if study.baseline else ():
        for row in beside_baseline(study, one.key):
            cells = columns.setdefault(
                (setting_words(study, row.at), setting_words(study, row.method)), []
            )
            less = UNDEFINED if row.difference is None else one.value(row.difference.mean)
            cells.append((one.value(row.value.mean), _ends(one, row.value)))
            cells.append(
                "baseline" if row.method == study.baseline else (less, _ends(one, row.difference))
            )
    heads = [head for one in measured for head in (one.metric.name, "less baseline")]
    rows = [(at, method, *cells) for (at, method), cells in columns.items()]
    return page_table(("At", "Method", *heads), rows, range(2))


def _bounds(frame: pd.DataFrame, measured: Quantity) -> str:
    """Write what sums leave open of a metric that ranks records: the mean of each end."""
    ends = [f"{measured.key}_{end}" for end in ("low", "high")]
    if not measured.metric.bounded or not set(ends) <= set(frame.columns):
        return ""
    low, high = (float(frame[end].mean()) for end in ends)
    return f", bounds {interval((low, high), measured.value)}"


def _ends(measured: Quantity, value: Estimate | None) -> str:
    return "" if value is None else interval(value.ends, measured.value)


def settings_table(study: StudyResults, metrics: Sequence[str]) -> PageTable:
    """List every setting and predictor at the study's place by some metrics: means over seeds with intervals."""
    frame, axes = study.headline, study.axes
    measured = [quantity(metric) for metric in metrics if metric in frame.columns]
    rows: list[tuple[str | Cell, ...]] = []
    for labels in product(*axes.values()):
        here = rows_at(frame, dict(zip(axes, labels, strict=True)))
        for predictor in study.predictors(here):
            of_predictor = here[here[PREDICTOR] == predictor]
            values = [(one, estimate(of_predictor, one.key)) for one in measured]
            cells: list[Cell] = [
                (
                    one.value(value.mean) if value else UNDEFINED,
                    f"{_ends(one, value)}{_bounds(of_predictor, one)}",
                )
                for one, value in values
            ]
            rows.append(
                (
                    *labels,
                    study.words(PREDICTOR, predictor),
                    *cells,
                    str(of_predictor[SEED].nunique()),
                )
            )
    columns = (*map(axis_name, axes), "Predictor", *(one.metric.name for one in measured), "Seeds")
    return page_table(columns, rows[:MOST_ROWS], range(len(axes) + 1))


def paper_table(study: StudyResults) -> PageTable:
    """List what the paper prints beside the mean of ours over seeds, in the paper's units."""
    rows = []
    for row in study.paper.to_dict("records"):
        first = (
            *(str(row[axis] or "all") for axis in study.axes),
            study.words(PREDICTOR, row[PREDICTOR]),
            row["site"],
        )
        values = (decimal(row[name], 4) for name in ("paper", "measured"))
        ends = (
            interval((row["low"], row["high"]), lambda end: decimal(end, 4))
            if row["seeds"] > 1
            else ""
        )
        rows.append([str(text) for text in (*first, row["column"], *values, ends, row["seeds"])])
    columns = (
        *map(axis_name, study.axes),
        "Predictor",
        "At",
        "Column",
        "Paper",
        "Measured",
        "95% interval",
        "Seeds",
    )
    return page_table(columns, rows, range(len(study.axes) + 3))


def privacy_table(study: StudyResults, axes: Collection[str]) -> PageTable:
    """List the epsilon asked and the largest one that any site of any run spent, by these axes.

    Rounded up.
    """
    frame = study.results
    if frame.empty or "epsilon" not in frame.columns:
        return page_table(("Setting",), [])
    cells = frame.drop_duplicates("cell")
    privacy: dict[str, Any] = study.settings.get("privacy") or {}
    delta = privacy.get("delta")
    rows = []
    for labels in product(*(study.axes[axis] for axis in axes)):
        setting = dict(zip(axes, labels, strict=True))
        here = rows_at(cells, setting)
        if here.empty:
            continue
        # A run whose largest epsilon is not known must not look cheap.
        spent = rounded_up(float(here["epsilon"].max(skipna=False)))
        shown = probability(float(delta)) if isinstance(delta, int | float) else UNDEFINED
        seconds = f"{here['seconds'].mean():.0f}" if "seconds" in here.columns else UNDEFINED
        others = (label for axis, label in setting.items() if axis != ASKED)
        asked = pd.to_numeric(str(setting.get(ASKED, privacy.get("epsilon"))), errors="coerce")
        rows.append((*others, significant(float(asked)), spent, shown, seconds, str(len(here))))
    names = [axis_name(axis) for axis in axes if axis != ASKED]
    columns = (*names, "ε asked", "Largest ε of a site", "δ", "Seconds of a cell", "Cells")
    return page_table(columns, rows[:MOST_ROWS], range(len(names)))
