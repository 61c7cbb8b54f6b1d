"""What a study prints at its end."""

from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table

from fl_dpbayes.config.study_file import PREDICTOR, SEED, Study
from fl_dpbayes.report.numbers import interval
from fl_dpbayes.report.study.quantities import over_seeds, quantity
from fl_dpbayes.report.terminal_table import TerminalColumn, fitted_table, folded, name_width

MOST_ROWS = 60


def show_study(study: Study, results: pd.DataFrame, console: Console) -> None:
    """Print the first metric by axes."""
    if study.section.question:
        console.print(study.section.question, style="bold", markup=False)
    where, metric = study.section.where, study.section.metrics[0]
    if results.empty or metric not in results.columns or not (results["site"] == where).any():
        console.print(f"nothing was measured by {metric} at {where}", markup=False)
        return
    console.print(_metric_table(study, results[results["site"] == where], metric, console.width))


def _metric_table(study: Study, results: pd.DataFrame, metric: str, width: int) -> Table:
    names = [*(axis.name for axis in study.axes if axis.name != SEED), PREDICTOR]
    groups = results.groupby(names, sort=False)[metric]
    rows = [(key, [[float(value)] for value in values.dropna()]) for key, values in groups]
    shown, means = rows[:MOST_ROWS], [over_seeds(values) for _, values in rows[:MOST_ROWS]]
    said = quantity(metric)
    texts = {name: [folded(str(key[at]), name_width(width)) for key, _ in shown] for at, name in enumerate(names)}
    columns = [
        *(TerminalColumn(name, cells, number=False) for name, cells in texts.items()),
        TerminalColumn(metric, [said.value(one.mean if one else None) for one in means]),
        TerminalColumn("95% interval", [said.ends(one) for one in means], number=False, expendable=2),
        *_bounds_column(results, names, metric),
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
    said = ["" if low != low else interval((low, high), quantity(metric).value) for low, high in means]
    return [TerminalColumn("bounds", said, number=False)]
