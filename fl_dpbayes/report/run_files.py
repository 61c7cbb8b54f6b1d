"""The records of a run directory: `summary.json` and its tables as CSV."""

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fl_dpbayes.config import METRICS, CalibrationRecord, Summary, parse_summary
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import atomic_file, json_values

SUMMARY_FILE, PRIVACY_FILE, ROUNDS_FILE = "summary.json", "privacy.csv", "rounds.csv"

PRIVACY_COLUMNS = (
    "site",
    "round",
    "steps",
    "epsilon",
    "epsilon_method",
    "delta",
    "mu",
    "mu_kind",
    "adjacency",
    "noise_multiplier_first",
    "noise_multiplier_last",
    "temperature",
    "status",
    "reason",
    "budget",
    "purpose",
)
ROUND_COLUMNS = (
    "round",
    "seconds",
    "sites_asked",
    "sites_ok",
    "sites_partial",
    "sites_refused",
    "sites_failed",
    "sites_rejected",
    "bytes_up",
    "bytes_down",
    "samples_kept",
)
_RANKED = [metric for rank in (1, 2) for metric in METRICS.values() if metric.rank == rank]
CALIBRATION_COLUMNS = (
    "site",
    "role",
    "predictor",
    "n",
    *(metric.key for metric in _RANKED),
    "ece_if_calibrated",
    "ece_if_calibrated_high",
    *(metric.key for metric in METRICS.values() if metric.rank == 3),
    *(f"{metric.key}_{end}" for metric in _RANKED for end in ("low", "high")),
)


def write_summary(summary: Summary | Mapping[str, object], run_dir: Path | str) -> Path:
    """Write `summary.json` with checksums of itself and of `privacy.csv`: NaN becomes null, infinite is "inf".

    Of a summary what was given, in order.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SUMMARY_FILE
    given = (
        summary.model_dump(exclude_unset=True) if isinstance(summary, Summary) else dict(summary)
    )
    # One part at a time is held twice.
    content = {key: json_values(given.pop(key)) for key in list(given)}
    atomic_file.write_sealed_json(path, content, indent=2, beside=[PRIVACY_FILE])
    return path


def write_csv(
    path: Path | str, rows: Iterable[Mapping[str, object]], columns: Sequence[str]
) -> Path:
    """Write a table as CSV: undefined, as an absent column is, is an empty cell, infinite is "inf".

    Raises ValueError if a row has a key that is no column.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write_atomically(path, _csv_lines(rows, columns, header=True))
    return path


def append_csv(path: Path, rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Append rows to a table of `write_csv`; what it holds is not written again.

    Raises UserError if it cannot be.
    """
    with atomic_file.written(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(_csv_lines(rows, columns, header=False))


def _csv_lines(
    rows: Iterable[Mapping[str, object]], columns: Sequence[str], *, header: bool
) -> str:
    writer = csv.DictWriter(buffer := io.StringIO(), columns, lineterminator="\n", restval="")
    if header:
        writer.writeheader()
    # None is written as an empty cell.
    writer.writerows({key: json_values(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def read_csv(path: Path | str) -> list[dict[str, str]]:
    """Read a table that `write_csv` wrote; every cell is text, a missing file is an empty table."""
    path = Path(path)
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def calibration_csv_row(row: CalibrationRecord) -> dict[str, object]:
    """Flatten a row of the summary to the columns of `calibration.csv`.

    Bounds stand in for an absent interval.
    """
    cells: dict[str, object] = {
        column: getattr(row, column, None) for column in CALIBRATION_COLUMNS
    }
    for metric in _RANKED:
        ends = row.intervals.get(metric.key) or (
            getattr(row, f"{metric.key}_bounds") if metric.bounded else None
        )
        if ends is not None:
            cells[f"{metric.key}_low"], cells[f"{metric.key}_high"] = ends
    return cells


def check_not_cut_off(run_dir: Path | str) -> None:
    """Say how to go on with a run of which the result is missing."""
    if any(
        (Path(run_dir) / name).is_file() for name in ("scenario.toml", "checkpoint.safetensors")
    ):
        raise UserError(f"the run in {run_dir} is not finished: go on with  {_resume(run_dir)}")


def _resume(run_dir: Path | str) -> str:
    return f"fl-dpbayes simulate --resume {shlex.quote(str(run_dir))}"


def read_summary(run_dir: Path | str) -> Summary:
    """Read and check `summary.json` of a run directory, and `privacy.csv` beside it.

    Raises as `stored_summary`.
    """
    return _checked(run_dir)[1]


def stored_summary(run_dir: Path | str) -> dict[str, Any]:
    """Read and check a summary, and return it as written: undefined is None, infinite is "inf".

    Raises UserError if the folder is not a run directory, or a file of the two is damaged.
    """
    return _checked(run_dir)[0]


def _checked(run_dir: Path | str) -> tuple[dict[str, Any], Summary]:
    path = Path(run_dir) / SUMMARY_FILE
    if not path.is_file():
        check_not_cut_off(run_dir)
        given = (
            "Give the folder that `fl-dpbayes simulate` printed at its end, for instance "
            "runs/quickstart-1"
        )
        raise UserError(f"{run_dir} is not a run directory: it holds no summary.json. {given}")
    read = path
    try:
        summary = atomic_file.read_sealed_json(path)
        parsed = parse_summary(summary)
        read = path.with_name(PRIVACY_FILE)
        atomic_file.check_beside(path, summary, PRIVACY_FILE)
        return summary, parsed
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        reason = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except (atomic_file.DamagedError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    again = (
        f"write it again with  {_resume(run_dir)}  (for a folder of an older version, run the "
        "scenario again)"
    )
    raise UserError(
        f"{read} is not as a run writes it: {reason}. Put back a copy of it, or {again}"
    )


class EpsilonCurve(NamedTuple):
    """Epsilon spent at one site after each of its rounds.

    `budget` is None where none was stated.
    """

    site: str
    rounds: tuple[int, ...]
    epsilons: tuple[float, ...]
    budget: float | None


def read_epsilon_curves(run_dir: Path | str) -> list[EpsilonCurve]:
    """Read the curves of a run from its `privacy.csv`; without the file there are none."""
    path = Path(run_dir) / PRIVACY_FILE
    points: dict[str, dict[int, float]] = {}
    budgets: dict[str, float | None] = {}
    try:
        for row in read_csv(path):
            if row.get("round") and row.get("epsilon"):
                points.setdefault(row["site"], {})[int(row["round"])] = float(row["epsilon"])
                budgets[row["site"]] = float(row["budget"]) if row.get("budget") else None
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        reason = f"it has no column {error}" if isinstance(error, KeyError) else error
        remedy = "remove it to report without epsilon per round, or run again"
        raise UserError(f"{path} is damaged ({reason}): {remedy}") from None
    ordered = {site: dict(sorted(spent.items())) for site, spent in points.items()}
    return [
        EpsilonCurve(site, tuple(of), tuple(of.values()), budgets[site])
        for site, of in ordered.items()
    ]
