"""One file per finished cell, whose name holds a digest of all that its result depends on."""

import hashlib
import importlib.metadata
import json
import math
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fl_dpbayes
from fl_dpbayes.config.files.sealed_json import read_sealed_json, write_sealed_json
from fl_dpbayes.config.json_values import json_values
from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.events import write_history
from fl_dpbayes.run.account_tables import account_json
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, Measurement, Row, StoredRow, Values


def cell_path(folder: Path, experiment: str, cell: Cell) -> Path:
    """Name the file of a cell's result.

    Args:
        folder: the experiment's output folder.
        experiment: the experiment's name.
        cell: the cell.

    Returns:
        `FOLDER/cells/LABEL-SEED-DIGEST.json`; another label, seed, setting or release of this library is another file.
    """
    identity = [experiment, cell.label, cell.seed, json_values(dict(cell.settings)), fl_dpbayes.__version__]
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    name = re.sub(r"[^A-Za-z0-9.]+", "_", cell.label).strip("_")
    return folder / "cells" / f"{name}-{cell.seed}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def write_cell(path: Path, cell: Cell, measurement: Measurement, seconds: float) -> None:
    """Write a finished cell, its histories turned into accounts, so that no reader ever meets half of it.

    Args:
        path: from `cell_path`; its folder exists.
        cell: the cell.
        measurement: what it found.
        seconds: how long it took.

    Raises:
        ValueError: if a row has a history but no delta.
    """
    content = {
        "label": cell.label,
        "seed": cell.seed,
        "settings": dict(cell.settings),
        "rows": [
            {
                "method": row.method,
                "setting": row.setting,
                "values": dict(row.values),
                "privacy": _account_of(row),
            }
            for row in measurement.rows
        ],
        "configurations_tried": measurement.configurations_tried,
        "details": dict(measurement.details),
        "seconds": seconds,
        "versions": versions(),
    }
    write_sealed_json(path, {key: json_values(value) for key, value in content.items()}, indent=1)


def read_cell(path: Path) -> CellResult | None:
    """Read a finished cell.

    Args:
        path: from `cell_path`.

    Returns:
        The cell; None if the file is absent, or is not as it was written, so that the cell is to be run.
    """
    try:
        content = read_sealed_json(path)
        return CellResult(
            cell=Cell(content["label"], content["seed"], content["settings"]),
            rows=tuple(
                StoredRow(row["method"], row["setting"], _read_values(row["values"]), row["privacy"])
                for row in content["rows"]
            ),
            configurations_tried=content["configurations_tried"],
            details=content["details"],
            seconds=content["seconds"],
            versions=content["versions"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def versions() -> dict[str, str]:
    """Return the versions of this library, of Python and of what the numbers come from."""
    packages = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    return {"fl-dpbayes": fl_dpbayes.__version__, "python": platform.python_version(), **packages}


def _account_of(row: Row) -> dict[str, Any] | None:
    if row.history is None:
        return None
    if row.delta is None:
        raise ValueError(f"row {row.method!r}, {row.setting!r} has a history but no delta: give both")
    return {**account_json(account(row.history, row.delta)), "history": write_history(row.history)}


def _read_values(values: Mapping[str, Any]) -> Values:
    return {name: math.inf if value == "inf" else value for name, value in values.items()}
