"""What a paper prints beside what its study measured."""

from functools import partial
from statistics import fmean

import pandas as pd
from rich.table import Table

from fl_dpbayes.config.study_file import PREDICTOR, SEED, Study
from fl_dpbayes.report.numbers import decimal, interval
from fl_dpbayes.report.study.quantities import over_seeds
from fl_dpbayes.report.study.results import rows_at
from fl_dpbayes.report.terminal_table import TerminalColumn, fitted_table, folded, name_width

_four = partial(decimal, places=4)


def paper_table(study: Study, results: pd.DataFrame) -> pd.DataFrame:
    """Set each published value beside the mean of ours over seeds, within a seed over the axes that it leaves open.

    Returns a row per value: its labels, `column`, `paper`, `measured`, `low` and `high` (95 %, Student's t), `seeds`.
    """
    rows = []
    for labels, column, value in study.published:
        here = rows_at(results, labels)
        found = here.groupby(SEED)[column].mean().dropna().tolist() if column in here.columns else []
        over = over_seeds([each] for each in found)
        axes = {axis.name: labels.get(axis.name) for axis in study.axes if axis.name != SEED}
        place = {PREDICTOR: labels[PREDICTOR], "site": labels["site"], "column": column, "paper": value}
        ends = {"low": over.low if over else None, "high": over.high if over else None}
        rows.append(axes | place | {"measured": fmean(found) if found else None} | ends | {"seeds": len(found)})
    return pd.DataFrame(rows)


def shown_paper(study: Study, table: pd.DataFrame, width: int) -> Table:
    """Lay the table out for a terminal of `width` characters."""
    rows = table.to_dict("records")
    axes = [axis.name for axis in study.axes if axis.name != SEED]
    settings = [", ".join(str(row[name]) for name in (*axes, PREDICTOR) if row[name] is not None) for row in rows]
    ends = [interval((row["low"], row["high"]), _four) if row["seeds"] > 1 else "" for row in rows]
    columns = [
        TerminalColumn("setting", [folded(text, 2 * name_width(width)) for text in settings], number=False),
        TerminalColumn("at", [str(row["site"]) for row in rows], number=False, expendable=2),
        TerminalColumn("column", [str(row["column"]) for row in rows], number=False),
        *(TerminalColumn(name, [_four(row[name]) for row in rows]) for name in ("paper", "measured")),
        TerminalColumn("95% interval", ends, number=False, expendable=1),
    ]
    source = study.paper.source if study.paper else ""
    caption = "Measured: mean over seeds, interval by Student's t over them; epsilon: the largest of a site, by PLD."
    return fitted_table(f"Beside the paper: {source}", columns, width, caption=caption)
