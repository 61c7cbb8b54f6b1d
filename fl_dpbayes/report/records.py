"""The records of a run directory: `summary.json` and its tables as CSV."""

import csv
import io
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from fl_dpbayes.errors import UserError
from fl_dpbayes.report.json_values import json_values
from fl_dpbayes.report.summary import parse_summary

METRICS = (
    "accuracy", "nll", "brier", "ece", "rms_debiased", "mce", "ace", "sce", "auroc", "ece_10", "ece_20",
    "ece_equal_mass", "ece_binary", "aurc", "aurc_excess", "calibration_intercept", "calibration_slope",
)  # fmt: skip
# What depends on the order of records, which sums do not hold: bounds stand in for an interval.
BOUNDED = ("auroc", "aurc")
PRIVACY_COLUMNS = (
    "site", "round", "steps", "epsilon", "epsilon_method", "delta", "mu", "mu_kind", "adjacency",
    "noise_multiplier_first", "noise_multiplier_last", "temperature", "status", "reason", "budget", "purpose",
)  # fmt: skip
ROUND_COLUMNS = (
    "round", "seconds", "sites_asked", "sites_ok", "sites_partial", "sites_refused", "sites_failed", "sites_rejected",
    "bytes_up", "bytes_down", "samples_kept",
)  # fmt: skip
CALIBRATION_COLUMNS = (
    "site", "role", "predictor", "n", *METRICS, "ece_if_calibrated", "ece_if_calibrated_high", "ece_true",
    "rms_true", "epistemic", "aleatoric",
    *(f"{metric}_{end}" for metric in METRICS for end in ("low", "high")),
)  # fmt: skip


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader, or a crash, meets the old file or the whole new one.

    Args:
        path: the file; its folder exists.
        text: the content, written as UTF-8 with line ends unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_summary(summary: Mapping[str, object], run_dir: Path | str) -> Path:
    """Write `summary.json`: NaN becomes null, an infinite value the string "inf".

    Args:
        summary: the keys of DESIGN's `summary.json`; values may be NumPy scalars and arrays.
        run_dir: the run directory; made where absent.

    Returns:
        The path of the file.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "summary.json"
    text = json.dumps(json_values(summary), indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text + "\n")
    return path


def write_csv(path: Path | str, rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> Path:
    """Write a table as CSV: undefined is an empty cell, infinite is "inf".

    Args:
        path: the file; its folder is made where absent.
        rows: column -> value; an absent column is undefined.
        columns: the header, in order.

    Returns:
        The path of the file.

    Raises:
        ValueError: if a row has a key that is no column.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", restval="")
    writer.writeheader()
    for row in rows:
        cells = {key: json_values(value) for key, value in row.items()}
        writer.writerow({key: "" if value is None else value for key, value in cells.items()})
    write_atomically(path, buffer.getvalue())
    return path


def read_csv(path: Path | str) -> list[dict[str, str]]:
    """Read a table that `write_csv` wrote; every cell is text, a missing file is an empty table."""
    path = Path(path)
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def calibration_csv_row(row: Mapping[str, object]) -> dict[str, object]:
    """Flatten one entry of the summary's `calibration` list to the columns of `calibration.csv`.

    Args:
        row: an entry; `intervals` maps a metric to [low, high].

    Returns:
        Column -> value; `<metric>_low` and `<metric>_high` are the ends of its interval, of AUROC and AURC (which have
        none) its bounds.
    """
    cells = {column: row.get(column) for column in CALIBRATION_COLUMNS}
    intervals = row.get("intervals")
    bounds = {metric: row.get(f"{metric}_bounds") for metric in BOUNDED}
    for metric, ends in [*bounds.items(), *(intervals if isinstance(intervals, Mapping) else {}).items()]:
        if metric in METRICS and isinstance(ends, Sequence):
            cells[f"{metric}_low"], cells[f"{metric}_high"] = ends
    return cells


def check_not_cut_off(run_dir: Path | str) -> None:
    """Say how to go on with a run of which the result is missing.

    Args:
        run_dir: a folder without a result.

    Raises:
        UserError: if a run was begun in it.
    """
    if any((Path(run_dir) / name).is_file() for name in ("scenario.toml", "checkpoint.safetensors")):
        command = f"fl-dpbayes simulate --resume {shlex.quote(str(run_dir))}"
        raise UserError(f"the run in {run_dir} is not finished: go on with  {command}")


def read_summary(run_dir: Path | str) -> dict:
    """Read and check `summary.json` of a run directory.

    Args:
        run_dir: the run directory.

    Returns:
        The summary as written: undefined is None, infinite is "inf".

    Raises:
        UserError: if the folder is not a run directory, or its summary is damaged.
    """
    path = Path(run_dir) / "summary.json"
    if not path.is_file():
        check_not_cut_off(run_dir)
        raise UserError(
            f"{run_dir} is not a run directory: it holds no summary.json. Give the folder that `fl-dpbayes simulate` "
            "printed at its end, for instance runs/quickstart-1"
        )
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(summary, dict):
            raise UserError(f"{path} is not a summary: expected a JSON object. Run the scenario again to write it")
        parse_summary(summary)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{path} is not a whole summary: {field}: {first['msg']}. Run the scenario again to write it"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON ({error}). Run the scenario again to write it") from None
    return summary
