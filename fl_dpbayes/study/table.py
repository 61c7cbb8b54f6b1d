"""The tidy tables of a study: one row per cell, place and predictor."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from fl_dpbayes.config import PREDICTOR, SEED, Study
from fl_dpbayes.files import replaced_atomically
from fl_dpbayes.report import over_seeds, parse_summary
from fl_dpbayes.report.study.results import rows_at
from fl_dpbayes.study.cell import CellOutcome

PLACE_COLUMNS = ("site", "role", "shift", "severity", "predictor", "n")
# Lists of flat rows that a summary may hold beside its calibration.
FURTHER_TABLES = ("subgroups", "conformal", "shift_detection")
RUN_COLUMNS = ("epsilon", "heterogeneity", "seconds", "warnings")
Row = dict[str, Any]


def result_table(study: Study, cells: Sequence[CellOutcome]) -> pd.DataFrame:
    """Gather what every cell measured: one row per cell, place (site, `pooled:<role>`, `mean:<role>`) and predictor.

    Beside every number of the summary's calibration rows, with the ends of their intervals, of the
    whole run the largest `epsilon` of a site, `heterogeneity`, `seconds` and the number of
    `warnings`.
    """
    rows = list[Row]()
    for cell in cells:
        summary = parse_summary(cell.summary)
        spent = [row.largest_epsilon for row in summary.privacy if row.largest_epsilon is not None]
        run = {"epsilon": max(spent, default=None), "heterogeneity": summary.heterogeneity}
        run |= {"seconds": cell.seconds, "warnings": len(summary.warnings)}
        rows += [row | run for row in _rows(cell, "calibration")]
    return _frame(study, rows)


def further_table(study: Study, cells: Sequence[CellOutcome], name: str) -> pd.DataFrame:
    """Gather another list of rows of the cells' summaries (one of `FURTHER_TABLES`), which may be empty."""
    return _frame(study, [row for cell in cells for row in _rows(cell, name)])


def paper_table(study: Study, results: pd.DataFrame) -> pd.DataFrame:
    """Set each published value beside the mean of ours over seeds, within a seed over the axes that it leaves open.

    Returns a row per value: its labels, `column`, `paper`, `measured`, `low` and `high` (95 %,
    Student's t), `seeds`.
    """
    rows = []
    for labels, column, value in study.published:
        here = rows_at(results, labels)
        found = (
            here.groupby(SEED)[column].mean().dropna().tolist() if column in here.columns else []
        )
        over = over_seeds([each] for each in found)
        axes = {axis.name: labels.get(axis.name) for axis in study.axes if axis.name != SEED}
        place = {
            PREDICTOR: labels[PREDICTOR],
            "site": labels["site"],
            "column": column,
            "paper": value,
        }
        ends = dict(zip(("low", "high"), (over and over.ends) or (None, None), strict=True))
        rows.append(
            axes
            | place
            | {"measured": fmean(found) if found else None}
            | ends
            | {"seeds": len(found)}
        )
    return pd.DataFrame(rows)


def write_tables(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV and as Parquet, `path` without suffix.

    A reader meets the old files or the new ones.
    """
    frame = _plain(frame)
    for suffix, write in ((".csv", frame.to_csv), (".parquet", frame.to_parquet)):
        with replaced_atomically(path.with_name(path.name + suffix)) as partial:
            write(partial, index=False)


def _rows(cell: CellOutcome, name: str) -> list[Row]:
    labels = cell.cell.shift_labels
    kinds = {
        site: spec.shift
        for site, spec in cell.cell.scenario.sites.items()
        if spec.shift is not None
    }
    shifts = {site: (labels.get(site, shift.kind), shift.severity) for site, shift in kinds.items()}
    axes = {axis: label for axis, label in cell.cell.labels.items() if axis != SEED}
    first = {"cell": cell.cell.digest, **axes, "seed": cell.cell.scenario.seed}
    rows = []
    for row in cell.summary.get(name) or []:
        shift, severity = shifts.get(row.get("site"), (None, None))
        place = {
            "site": row.get("site"),
            "role": row.get("role"),
            "shift": shift,
            "severity": severity,
        }
        rows.append(first | place | _flat(row, without=place))
    return rows


def _flat(row: Mapping[str, Any], without: Iterable[str]) -> Row:
    """Keep a row's numbers and texts.

    Those of a table within it as `<table>_<key>`, ends as low and high.
    """
    found: Row = {}
    for key, value in row.items():
        if key in without or isinstance(value, list):
            if key == "interval" and value:
                first = (
                    "interval_" if "low" in row else ""
                )  # low and high of an AUROC are its bounds
                found |= {f"{first}low": value[0], f"{first}high": value[1]}
            elif key.endswith("_bounds") and value and len(value) == 2:
                metric = key.removesuffix("_bounds")
                found |= {f"{metric}_low": value[0], f"{metric}_high": value[1]}
        elif key == "intervals":
            for metric, ends in (value or {}).items():
                if ends is not None:
                    found |= {f"{metric}_low": ends[0], f"{metric}_high": ends[1]}
        elif isinstance(value, Mapping):
            found |= {f"{key}_{name}": item for name, item in _flat(value, without=()).items()}
        else:
            found[key] = float(value) if value in ("inf", "-inf") else value
    return found


def _frame(study: Study, rows: Sequence[Row]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows))
    if frame.empty:
        return frame
    first = [
        "cell",
        *(axis.name for axis in study.axes if axis.name != SEED),
        "seed",
        *PLACE_COLUMNS,
    ]
    # What no row defines, such as the truth where nobody knows it, is left out.
    defined = [name for name in frame.columns if name in first or frame[name].notna().any()]
    ends = [name for name in defined if name.endswith(("_low", "_high"))]
    metrics = [name for name in defined if name not in {*first, *ends, *RUN_COLUMNS}]
    return frame[[name for name in (*first, *metrics, *ends, *RUN_COLUMNS) if name in defined]]


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Make every column of one type, as Parquet needs it: numbers, or texts."""
    frame = frame.infer_objects()
    if "severity" in frame.columns:
        frame["severity"] = frame["severity"].astype("Int64")
    for name in frame.columns:
        if frame[name].dtype == object:
            is_truth = all(isinstance(value, bool) for value in frame[name].dropna())
            frame[name] = frame[name].astype("boolean" if is_truth else "string")
    return frame
