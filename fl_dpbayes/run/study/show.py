"""What a study prints at its end."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from fl_dpbayes.config.study_file import PREDICTOR, SEED, Study
from fl_dpbayes.report.numbers import interval
from fl_dpbayes.report.study.quantities import over_seeds, quantity
from fl_dpbayes.report.terminal_table import TerminalColumn, fitted_table, folded, name_width
from fl_dpbayes.run.study.differences import EVERY_SETTING

MOST_ROWS = 60


def show_study(study: Study, results: pd.DataFrame, differences: pd.DataFrame, console: Console) -> None:
    """Print the first metric by axes, and the differences of the methods over all settings."""
    if study.section.question:
        console.print(study.section.question, style="bold", markup=False)
    where, metric = study.section.where, study.section.metrics[0]
    if results.empty or metric not in results.columns or not (results["site"] == where).any():
        console.print(f"nothing was measured by {metric} at {where}", markup=False)
        return
    console.print(_metric_table(study, results[results["site"] == where], metric, console.width))
    # A study with a baseline keeps settings apart, which the mean over all of them would hide.
    if not differences.empty and not study.section.baseline:
        console.print(_difference_table(differences[differences["site"] == where], where, console.width))


def _metric_table(study: Study, results: pd.DataFrame, metric: str, width: int) -> Table:
    axes = [axis.name for axis in study.axes if axis.name != SEED]
    groups = results.groupby([*axes, PREDICTOR], sort=False)[metric]
    rows = [(key, [[float(value)] for value in values.dropna()]) for key, values in groups]
    shown, means = rows[:MOST_ROWS], [over_seeds(values) for _, values in rows[:MOST_ROWS]]
    said = quantity(metric)
    columns = [
        *(
            TerminalColumn(name, [folded(str(key[at]), name_width(width)) for key, _ in shown], number=False)
            for at, name in enumerate([*axes, PREDICTOR])
        ),
        TerminalColumn(metric, [said.value(one.mean if one else None) for one in means]),
        TerminalColumn("95% interval", [said.ends(one) for one in means], number=False, expendable=2),
        *_bounds_column(results, [*axes, PREDICTOR], metric),
        TerminalColumn("seeds", [str(len(values)) for _, values in shown], expendable=1),
    ]
    rest = f" {len(rows) - len(shown)} more rows are in results.csv." if len(rows) > len(shown) else ""
    title = f"{said.metric.name}{', percentage points,' if said.share else ''} at {study.section.where}"
    return fitted_table(title, columns, width, caption=f"Mean over seeds, interval by Student's t over them.{rest}")


def _bounds_column(results: pd.DataFrame, keys: Sequence[str], metric: str) -> list[TerminalColumn]:
    """What sums leave open of a metric that ranks records: the mean of each end."""
    ends = [f"{metric}_low", f"{metric}_high"]
    if not quantity(metric).metric.bounded or not set(ends) <= set(results.columns):
        return []
    means = results.groupby(list(keys), sort=False)[ends].mean().to_numpy()[:MOST_ROWS]
    return [TerminalColumn("bounds", [_ends((low, high), metric) for low, high in means], number=False)]


def _difference_table(differences: pd.DataFrame, where: str, width: int) -> Table:
    rows: Sequence[Mapping[Any, Any]] = differences[differences["over"] == EVERY_SETTING].to_dict("records")
    rows = rows[:MOST_ROWS]
    names = [f"{row['method']} - {row['baseline']}" for row in rows]
    predictors = ["" if row[PREDICTOR] != row[PREDICTOR] else str(row[PREDICTOR] or "") for row in rows]
    columns = [
        TerminalColumn("difference", [folded(name, 2 * name_width(width)) for name in names], number=False),
        TerminalColumn("predictor", predictors, number=False),
        TerminalColumn("metric", [row["metric"] for row in rows], number=False),
        TerminalColumn("mean", [quantity(row["metric"]).value(row["mean"]) for row in rows]),
        TerminalColumn("95% interval", [_ends((row["low"], row["high"]), row["metric"]) for row in rows], number=False),
        TerminalColumn("seeds", [str(row["pairs"]) for row in rows], expendable=1),
    ]
    columns = [column for column in columns if any(column.cells) or not column.cells]
    caption = "Paired over common seeds, shares in points; within a seed averaged over all settings of the other axes."
    return fitted_table(f"Differences at {where}", columns, width, caption=caption)


def _ends(ends: tuple[float, float], metric: str) -> str:
    return "" if ends[0] != ends[0] else interval(ends, quantity(metric).value)
