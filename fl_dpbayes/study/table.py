"""The tidy tables of a study: one row per cell, place and predictor."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import pandas as pd

from fl_dpbayes.config import PREDICTOR, SEED, Study
from fl_dpbayes.files import replaced_atomically
from fl_dpbayes.report import over_seeds, parse_summary
from fl_dpbayes.report.study.results import rows_at
from fl_dpbayes.study.cell import CellOutcome

PLACE_COLUMNS = ("site", "role", "shift", "severity", "predictor", "n")
# Lists of flat rows that a summary may hold beside its calibration.
FURTHER_TABLES = ("subgroups", "conformal", "shift_detection")
BIN_COLUMNS = ("low", "high", "n", "confidence", "accuracy")
RUN_COLUMNS = ("epsilon", "heterogeneity", "seconds", "warnings")
Row: TypeAlias = dict[str, Any]


def result_table(study: Study, cells: Sequence[CellOutcome]) -> pd.DataFrame:
    """Gather what every cell measured.

    Args:
        study: The study.
        cells: Its finished cells.

    Returns:
        One row per cell, place (site, `pooled:<role>`, `mean:<role>`) and predictor: every number
        of the summary's calibration rows, with the ends of their intervals, and of the whole run
        the largest `epsilon` of a site, `heterogeneity`, `seconds` and the number of `warnings`.
    """
    rows: list[Row] = []
    for cell in cells:
        summary = parse_summary(cell.summary)
        epsilons = [
            row.largest_epsilon for row in summary.privacy if row.largest_epsilon is not None
        ]
        run = {
            "epsilon": max(epsilons, default=None),
            "heterogeneity": summary.heterogeneity,
            "seconds": cell.seconds,
            "warnings": len(summary.warnings),
        }
        rows += [row | run for row in _rows(cell, "calibration")]
    return _frame(study, rows)


def further_table(study: Study, cells: Sequence[CellOutcome], name: str) -> pd.DataFrame:
    """Gather another list of rows of the cells' summaries, which may be empty.

    Args:
        study: The study.
        cells: Its finished cells.
        name: One of `FURTHER_TABLES`.

    Returns:
        One row per cell and row of the list.
    """
    return _frame(study, [row for cell in cells for row in _rows(cell, name)])


def reliability_table(study: Study, cells: Sequence[CellOutcome]) -> pd.DataFrame:
    """Gather the bins of the reliability diagrams at the study's place.

    Args:
        study: The study.
        cells: Its finished cells.

    Returns:
        One row per cell, predictor and bin: the bin's ends `low` and `high`, `n`, mean
        `confidence` (or risk, where `risk`) and `accuracy`.
    """
    rows = []
    for cell in cells:
        place = _place_of_diagrams(study, cell)
        labels = {axis: label for axis, label in cell.cell.labels.items() if axis != SEED}
        for diagram in cell.summary.get("reliability") or []:
            if diagram.get("site") != place:
                continue
            rows += [
                {
                    "cell": cell.cell.digest,
                    **labels,
                    "seed": cell.cell.scenario.seed,
                    "site": study.section.where,
                    "predictor": diagram.get("predictor"),
                    "risk": diagram.get("risk"),
                    **{key: part.get(key) for key in BIN_COLUMNS},
                }
                for part in diagram["bins"]
            ]
    return _frame(study, rows)


def _place_of_diagrams(study: Study, cell: CellOutcome) -> str:
    """Return the place in a summary that has a diagram of every predictor at the study's place.

    A site has one of the main predictor alone; what is pooled over its role has all, and is the
    same where no other site has that role.
    """
    where = study.section.where
    sites = cell.cell.scenario.sites
    if where not in sites:
        return where
    role = sites[where].role
    is_alone = sum(spec.role == role for spec in sites.values()) == 1
    return f"pooled:{role}" if is_alone else where


def paper_table(study: Study, results: pd.DataFrame) -> pd.DataFrame:
    """Set each published value beside ours.

    Args:
        study: The study of a paper's table.
        results: Its rows, as `result_table` gathers them.

    Returns:
        A row per value: its labels, `column`, `paper`, the mean `measured` over seeds, within a
        seed over the axes that the value leaves open, `low` and `high` (95 %, Student's t),
        `seeds`.
    """
    rows = []
    for labels, column, value in study.published:
        matching = rows_at(results, labels)
        measured = []
        if column in matching.columns:
            measured = matching.groupby(SEED)[column].mean().dropna().tolist()
        over = over_seeds([mean] for mean in measured)
        low, high = (over and over.ends) or (None, None)
        axes = {axis.name: labels.get(axis.name) for axis in study.axes if axis.name != SEED}
        rows.append(
            {
                **axes,
                PREDICTOR: labels[PREDICTOR],
                "site": labels["site"],
                "column": column,
                "paper": value,
                "measured": fmean(measured) if measured else None,
                "low": low,
                "high": high,
                "seeds": len(measured),
            }
        )
    return pd.DataFrame(rows)


def write_tables(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV and as Parquet; a reader meets the old files or the new ones.

    Args:
        frame: The table.
        path: Where to write it, without suffix.
    """
    frame = _plain(frame)
    for suffix, write in ((".csv", frame.to_csv), (".parquet", frame.to_parquet)):
        with replaced_atomically(path.with_name(path.name + suffix)) as partial:
            write(partial, index=False)


def _rows(outcome: CellOutcome, name: str) -> list[Row]:
    """Return a list of a cell's summary as rows, each with its cell, axes and place."""
    cell = outcome.cell
    axes = {axis: label for axis, label in cell.labels.items() if axis != SEED}
    rows = []
    for row in outcome.summary.get(name) or []:
        spec = cell.scenario.sites.get(row.get("site"))
        place = {"site": row.get("site"), "role": row.get("role"), "shift": None, "severity": None}
        if spec is not None and spec.shift is not None:
            place["shift"] = cell.shift_labels.get(row["site"], spec.shift.kind)
            place["severity"] = spec.shift.severity
        rows.append(
            {
                "cell": cell.digest,
                **axes,
                "seed": cell.scenario.seed,
                **place,
                **_flat(row, without=place),
            }
        )
    return rows


def _flat(row: Mapping[str, Any], without: Iterable[str]) -> Row:
    """Flatten a row: tables in it become `<table>_<key>`, intervals their low and high ends."""
    flat: Row = {}
    for key, value in row.items():
        if key == "interval" and isinstance(value, list):
            if value:
                # Low and high of an AUROC are its bounds already.
                prefix = "interval_" if "low" in row else ""
                flat |= _ends(prefix, value)
        elif key.endswith("_bounds") and isinstance(value, list):
            if len(value) == 2:
                flat |= _ends(f"{key.removesuffix('_bounds')}_", value)
        elif key in without or isinstance(value, list):
            continue
        elif key == "intervals":
            for metric, ends in (value or {}).items():
                if ends is not None:
                    flat |= _ends(f"{metric}_", ends)
        elif isinstance(value, Mapping):
            flat |= {f"{key}_{name}": item for name, item in _flat(value, without=()).items()}
        else:
            flat[key] = float(value) if value in ("inf", "-inf") else value
    return flat


def _ends(prefix: str, ends: Sequence[Any]) -> Row:
    return {f"{prefix}low": ends[0], f"{prefix}high": ends[1]}


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
