"""The tables of a study's page."""

from collections.abc import Sequence
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
from fl_dpbayes.report.page_tables import Cell, Cells, PageTable, page_table
from fl_dpbayes.report.study.comparisons import (
    BASELINE,
    BesideBaseline,
    beside_baseline,
    differences,
    estimate,
    groups,
    setting_words,
)
from fl_dpbayes.report.study.quantities import Quantity, axis_name, quantity
from fl_dpbayes.report.study.results import (
    PREDICTOR,
    SEED,
    FailedCell,
    StudyResults,
    label_text,
)

MOST_ROWS = 2_000
EPSILON_ASKED = "privacy.epsilon"


def study_tables(study: StudyResults) -> dict[str, PageTable]:
    """Gather the tables of a study's page, by the names that its template gives them."""
    failed = [(_cell_words(cell), cell.error) for cell in study.record.failed]
    return {
        "failures": page_table(("Cell", "Error"), rows=failed[:MOST_ROWS], text_columns=range(2)),
        "spent": privacy_table(study),
        "beside": baseline_table(study),
        "paper": paper_table(study),
        "differences": differences_table(study),
        "settings": settings_table(study, study.record.metrics),
    }


def _cell_words(cell: FailedCell) -> str:
    return ", ".join(f"{axis} {label_text(label)}" for axis, label in cell.labels.items())


def differences_table(study: StudyResults) -> PageTable:
    """List the paired differences of all metrics over all settings, or at each kept apart."""
    by_setting = bool(study.baseline)
    rows = []
    for measured in map(quantity, study.record.metrics):
        for difference in differences(study, measured.key):
            if difference.axis == BASELINE:
                # The table beside the baseline has them.
                continue
            method = study.words(difference.axis, difference.method)
            baseline = study.words(difference.axis, difference.baseline)
            setting = (difference.setting,) if by_setting else ()
            rows.append(
                (
                    axis_name(difference.axis),
                    *setting,
                    f"{method} – {baseline}",
                    measured.metric.name,
                    measured.value(difference.value.mean),
                    measured.ends(difference.value),
                    str(difference.value.seeds),
                    str(difference.value.settings),
                )
            )
    first = ("Compared", "At", "Difference") if by_setting else ("Compared", "Difference")
    columns = (*first, "Metric", "Mean", "95% interval", "Seeds", "Settings")
    return page_table(columns, rows=rows, text_columns=range(len(first) + 1))


def baseline_table(study: StudyResults) -> PageTable:
    """List every method at every setting kept apart, by all metrics, beside the baseline."""
    quantities = [quantity(metric) for metric in study.record.metrics]
    rows: dict[tuple[str, str], list[str | Cell]] = {}
    for measured in quantities if study.baseline else ():
        for row in beside_baseline(study, measured.key):
            key = (setting_words(study, row.setting), setting_words(study, row.method))
            cells = rows.setdefault(key, [])
            cells.append((measured.value(row.value.mean), measured.ends(row.value)))
            cells.append(_difference_cell(study, measured, row))
    heads = []
    for measured in quantities:
        heads += [measured.metric.name, "less baseline"]
    return page_table(
        ("At", "Method", *heads),
        rows=[(*key, *cells) for key, cells in rows.items()],
        text_columns=range(2),
    )


def _difference_cell(study: StudyResults, measured: Quantity, row: BesideBaseline) -> str | Cell:
    if row.method == study.baseline:
        return "baseline"
    if row.difference is None:
        return UNDEFINED, ""
    return measured.value(row.difference.mean), measured.ends(row.difference)


def settings_table(study: StudyResults, metrics: Sequence[str]) -> PageTable:
    """List every setting and predictor at the study's place by some metrics.

    Cells are means over seeds with intervals.
    """
    frame = study.headline
    axes = study.axes
    quantities = [quantity(metric) for metric in metrics if metric in frame.columns]
    rows: list[Cells] = []
    for labels, of_setting in groups(study, frame, [*axes, PREDICTOR]) if len(frame) else ():
        *setting, predictor = labels.values()
        rows.append(
            (
                *setting,
                study.words(PREDICTOR, predictor),
                *(_estimate_cell(of_setting, measured) for measured in quantities),
                str(of_setting[SEED].nunique()),
            )
        )
    columns = (
        *map(axis_name, axes),
        "Predictor",
        *(measured.metric.name for measured in quantities),
        "Seeds",
    )
    return page_table(columns, rows=rows[:MOST_ROWS], text_columns=range(len(axes) + 1))


def _estimate_cell(frame: pd.DataFrame, measured: Quantity) -> Cell:
    value = estimate(frame, measured.key)
    text = UNDEFINED if value is None else measured.value(value.mean)
    return text, f"{measured.ends(value)}{_bounds(frame, measured)}"


def _bounds(frame: pd.DataFrame, measured: Quantity) -> str:
    """Write what sums leave open of a metric that ranks records: the mean of each end."""
    low_column = f"{measured.key}_low"
    high_column = f"{measured.key}_high"
    if not measured.metric.bounded or not {low_column, high_column} <= set(frame.columns):
        return ""
    ends = (float(frame[low_column].mean()), float(frame[high_column].mean()))
    return f", bounds {interval(ends, measured.value)}"


def paper_table(study: StudyResults) -> PageTable:
    """List what the paper prints beside the mean of ours over seeds, in the paper's units."""

    def write(value: float | None) -> str:
        return decimal(value, 4)

    rows = []
    for row in study.paper.to_dict("records"):
        ends = interval((row["low"], row["high"]), write) if row["seeds"] > 1 else ""
        rows.append(
            (
                *(str(row[axis] or "all") for axis in study.axes),
                study.words(PREDICTOR, row[PREDICTOR]),
                str(row["site"]),
                str(row["column"]),
                write(row["paper"]),
                write(row["measured"]),
                ends,
                str(row["seeds"]),
            )
        )
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
    return page_table(columns, rows=rows, text_columns=range(len(study.axes) + 3))


def privacy_table(study: StudyResults) -> PageTable:
    """List each epsilon asked and the largest that any site of any run spent, rounded up."""
    if study.results.empty or "epsilon" not in study.results.columns:
        return page_table(("Setting",), rows=[])
    cells = study.results.drop_duplicates("cell")
    privacy: dict[str, Any] = study.settings.get("privacy") or {}
    delta = privacy.get("delta")
    delta_text = probability(float(delta)) if isinstance(delta, int | float) else UNDEFINED
    rows = []
    axes = [axis for axis in study.axes if axis == EPSILON_ASKED]
    for labels, asked_cells in groups(study, cells, axes):
        asked = labels.get(EPSILON_ASKED, str(privacy.get("epsilon")))
        seconds = UNDEFINED
        if "seconds" in asked_cells.columns:
            seconds = f"{asked_cells['seconds'].mean():.0f}"
        rows.append(
            (
                significant(float(pd.to_numeric(asked, errors="coerce"))),
                # A run whose largest epsilon is not known must not look cheap.
                rounded_up(float(asked_cells["epsilon"].max(skipna=False))),
                delta_text,
                seconds,
                str(len(asked_cells)),
            )
        )
    columns = ("ε asked", "Largest ε of a site", "δ", "Seconds of a cell", "Cells")
    return page_table(columns, rows=rows)
