"""The tidy tables of a study: one row per cell, place and predictor."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fl_dpbayes.config.files.atomic_file import replaced_atomically
from fl_dpbayes.config.study_file import SEED, Study
from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.run.study.cell import FinishedCell

PLACE_COLUMNS = ("site", "role", "shift", "severity", "predictor", "n")
Row = dict[str, Any]


def result_table(study: Study, cells: Sequence[FinishedCell]) -> pd.DataFrame:
    """Gather what every cell measured: one row per cell, place (site, `pooled:<role>`, `mean:<role>`) and predictor.

    Columns: `cell`, the axes, `seed`, the place, every number of the summary's calibration row, the ends of its
    intervals, and of the whole run the largest `epsilon` of a site, `heterogeneity`, `seconds` and the number of
    `warnings`.
    """
    rows = []
    for cell in cells:
        summary = parse_summary(cell.summary)
        spent = [row.largest_epsilon for row in summary.privacy if row.largest_epsilon is not None]
        run = {
            "epsilon": max(spent, default=None), "heterogeneity": summary.heterogeneity, "seconds": cell.seconds,
            "warnings": len(summary.warnings),
        }  # fmt: skip
        rows += [row | run for row in _rows(cell, "calibration")]
    return _frame(study, rows)


def further_table(study: Study, cells: Sequence[FinishedCell], name: str) -> pd.DataFrame:
    """Gather another list of rows of the cells' summaries (one of `cell.FURTHER_TABLES`), which may be empty."""
    return _frame(study, [row for cell in cells for row in _rows(cell, name)])


def write_tables(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV and as Parquet, `path` without suffix; a reader meets the old files or the new ones."""
    frame = _plain(frame)
    for suffix, write in ((".csv", frame.to_csv), (".parquet", frame.to_parquet)):
        with replaced_atomically(path.with_name(path.name + suffix)) as partial:
            write(partial, index=False)


def _rows(cell: FinishedCell, name: str) -> list[Row]:
    labels = cell.cell.shift_labels
    shifts = {
        site: (labels.get(site, spec.shift.kind), spec.shift.severity)
        for site, spec in cell.cell.scenario.sites.items()
        if spec.shift is not None
    }
    axes = {axis: label for axis, label in cell.cell.labels.items() if axis != SEED}
    first = {"cell": cell.cell.digest, **axes, "seed": cell.cell.scenario.seed}
    rows = []
    for row in cell.summary.get(name) or []:
        shift, severity = shifts.get(row.get("site"), (None, None))
        place = {"site": row.get("site"), "role": row.get("role"), "shift": shift, "severity": severity}
        rows.append(first | place | _flat(row, without=place))
    return rows


def _flat(row: Mapping[str, Any], without: Iterable[str]) -> Row:
    """Keep a row's numbers and texts; those of a table within it as `<table>_<key>`, ends as low and high."""
    found: Row = {}
    for key, value in row.items():
        if key in without or isinstance(value, list):
            if key == "interval" and value:
                first = "interval_" if "low" in row else ""  # low and high of an AUROC are its bounds
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
    # What no row defines, such as the truth where nobody knows it.
    empty = [name for name in frame.columns if name not in PLACE_COLUMNS and frame[name].isna().all()]
    frame = frame.drop(columns=empty)
    ends = [name for name in frame.columns if name.endswith(("_low", "_high"))]
    run = [name for name in ("epsilon", "heterogeneity", "seconds", "warnings") if name in frame.columns]
    first = ["cell", *(axis.name for axis in study.axes if axis.name != SEED), "seed"]
    first += [name for name in PLACE_COLUMNS if name in frame.columns]
    metrics = [name for name in frame.columns if name not in {*first, *ends, *run}]
    return frame[[*first, *metrics, *ends, *run]]


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Make every column of one type, as Parquet needs it: numbers, or texts."""
    frame = frame.copy()
    if "severity" in frame.columns:
        frame["severity"] = frame["severity"].astype("Int64")
    for name in frame.columns:
        if frame[name].dtype != object:
            continue
        values = [value for value in frame[name] if not _undefined(value)]
        if not values:
            frame[name] = pd.to_numeric(frame[name])
        elif all(isinstance(value, bool) for value in values):
            frame[name] = frame[name].astype("boolean")
        elif all(isinstance(value, int | float) for value in values):
            frame[name] = pd.to_numeric(frame[name])
        else:
            frame[name] = [None if _undefined(value) else str(value) for value in frame[name]]
    return frame


def _undefined(value: object) -> bool:
    return value is None or value != value
