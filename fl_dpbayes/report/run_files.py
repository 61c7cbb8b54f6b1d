"""The records of a run directory: `summary.json` and its tables as CSV."""

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fl_dpbayes.calibration import METRICS, CalibrationRecord, SummaryPart
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import STORE_FILE, atomic_file, json_values
from fl_dpbayes.report.summary import Summary, parse_summary

SUMMARY_FILE = "summary.json"
PRIVACY_FILE = "privacy.csv"
ROUNDS_FILE = "rounds.csv"


class PrivacyRow(SummaryPart):
    """A row of `privacy.csv`: how a site answered, and what it states of its spending.

    Attributes:
        site: The site's name.
        round: Of the training; None where the site paid for something else.
        noise_multiplier_first: Of the first steps of its history.
        noise_multiplier_last: Of the last steps of its history.
        temperature: The mean over the steps of its reply, weighted by step size.
        status: How it answered.
        reason: Why its reply is not used.
        budget: The most epsilon that the site allows.
        purpose: What was paid for.
    """

    site: str
    round: int | None = None
    steps: int | None = None
    epsilon: float | None = None
    epsilon_method: str = ""
    delta: float | None = None
    mu: float | None = None
    mu_kind: str = ""
    adjacency: str = ""
    noise_multiplier_first: float | None = None
    noise_multiplier_last: float | None = None
    temperature: float | None = None
    status: str
    reason: str = ""
    budget: float | None = None
    purpose: str


class RoundRow(SummaryPart):
    """A row of `rounds.csv`: how a training round went.

    Attributes:
        round: Its number, from 1.
        seconds: How long it took.
        sites_asked: How many sites got a request; then how many of them had each status.
        bytes_up: Size of the arrays of all replies.
        bytes_down: Size of the arrays of all requests.
        samples_kept: Number of the samples in replies that are used.
    """

    round: int
    seconds: float
    sites_asked: int
    sites_ok: int
    sites_partial: int
    sites_refused: int
    sites_failed: int
    sites_rejected: int
    bytes_up: int
    bytes_down: int
    samples_kept: int


PRIVACY_COLUMNS = tuple(PrivacyRow.model_fields)
ROUND_COLUMNS = tuple(RoundRow.model_fields)
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
    """Write `summary.json` with checksums of itself and of `privacy.csv`.

    Args:
        summary: What was given of it is written, in order: NaN as null, infinite as "inf".
        run_dir: The run directory; it is made if need be.

    Returns:
        The file's path.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SUMMARY_FILE
    if isinstance(summary, Summary):
        summary = summary.model_dump(exclude_unset=True)
    parts = dict(summary)
    # One part at a time is held twice.
    content = {key: json_values(parts.pop(key)) for key in list(parts)}
    atomic_file.write_sealed_json(path, content, indent=2, beside=[PRIVACY_FILE])
    return path


# Cells by column.
CsvRow = Mapping[str, object] | SummaryPart


def write_csv(path: Path | str, rows: Iterable[CsvRow], columns: Sequence[str]) -> Path:
    """Write a table as CSV: undefined, as an absent column is, is an empty cell, infinite "inf".

    Args:
        path: Of the file; its folder is made.
        rows: Column -> cell.
        columns: All of them, in order.

    Returns:
        The path.

    Raises:
        ValueError: If a row has a key that is no column.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write_atomically(path, _csv_lines(rows, columns, header=True))
    return path


def append_csv(path: Path, rows: Iterable[CsvRow], columns: Sequence[str]) -> None:
    """Append rows to a table of `write_csv`; what it holds is not written again.

    Raises:
        UserError: If the file cannot be written to.
    """
    with atomic_file.written(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(_csv_lines(rows, columns, header=False))


def _csv_lines(rows: Iterable[CsvRow], columns: Sequence[str], *, header: bool) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", restval="")
    if header:
        writer.writeheader()
    # None is written as an empty cell.
    writer.writerows({key: json_values(value) for key, value in dict(row).items()} for row in rows)
    return buffer.getvalue()


def read_csv(path: Path | str) -> list[dict[str, str]]:
    """Read a table of `write_csv`; every cell is text, a missing file is an empty table."""
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
        ends = row.intervals.get(metric.key)
        if not ends and metric.bounded:
            ends = row.bounds(metric.key)
        if ends is not None:
            cells[f"{metric.key}_low"], cells[f"{metric.key}_high"] = ends
    return cells


def write_calibration(summary: Summary, run_dir: Path) -> None:
    """Write `calibration.csv`, a row for each site or role and predictor."""
    rows = map(calibration_csv_row, summary.calibration)
    write_csv(run_dir / "calibration.csv", rows, CALIBRATION_COLUMNS)


def check_not_cut_off(run_dir: Path | str) -> None:
    """Say how to go on with a run of which the result is missing.

    Raises:
        UserError: If the folder holds a run that is not finished.
    """
    begun_files = ("scenario.toml", STORE_FILE)
    if any((Path(run_dir) / name).is_file() for name in begun_files):
        raise UserError(
            f"the run in {run_dir} is not finished: go on with  {_resume_command(run_dir)}"
        )


def _resume_command(run_dir: Path | str) -> str:
    return f"fl-dpbayes simulate --resume {shlex.quote(str(run_dir))}"


def read_summary(run_dir: Path | str) -> Summary:
    """Read and check `summary.json` of a run directory, and `privacy.csv` beside it.

    Raises:
        UserError: If the folder is not a run directory, or a file of the two is damaged.
    """
    return _read_checked(run_dir).parsed


def stored_summary(run_dir: Path | str) -> dict[str, Any]:
    """Read and check a summary, and return it as written: undefined is None, infinite is "inf".

    Raises:
        UserError: If the folder is not a run directory, or a file of the two is damaged.
    """
    return _read_checked(run_dir).stored


@dataclass(frozen=True)
class _CheckedSummary:
    """A summary as it was written, and as a record."""

    stored: dict[str, Any]
    parsed: Summary


def _read_checked(run_dir: Path | str) -> _CheckedSummary:
    path = Path(run_dir) / SUMMARY_FILE
    if not path.is_file():
        check_not_cut_off(run_dir)
        raise UserError(
            f"{run_dir} is not a run directory: it holds no summary.json. "
            "Give the folder that `fl-dpbayes simulate` printed at its end, for instance "
            "runs/quickstart-1"
        )
    current = path
    try:
        summary = atomic_file.read_sealed_json(path)
        parsed = parse_summary(summary)
        current = path.with_name(PRIVACY_FILE)
        atomic_file.check_beside(path, summary, PRIVACY_FILE)
        return _CheckedSummary(stored=summary, parsed=parsed)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        reason = f"{field}: {first['msg']}"
    except atomic_file.DamagedError as error:
        reason = str(error)
    except OSError as error:
        reason = error.strerror or str(error)
    raise UserError(
        f"{current} is not as a run writes it: {reason}. Put back a copy of it, or "
        f"write it again with  {_resume_command(run_dir)}  (for a folder of an older version, "
        "run the scenario again)"
    )


@dataclass(frozen=True)
class EpsilonCurve:
    """Epsilon spent at one site after each of its rounds.

    Attributes:
        site: The site's name.
        rounds: Numbers of the rounds, rising.
        epsilons: Epsilon after each.
        budget: None where none was stated.
    """

    site: str
    rounds: tuple[int, ...]
    epsilons: tuple[float, ...]
    budget: float | None


def read_epsilon_curves(run_dir: Path | str) -> list[EpsilonCurve]:
    """Read the curves of a run from its `privacy.csv`; without the file there are none.

    Raises:
        UserError: If the file is damaged.
    """
    path = Path(run_dir) / PRIVACY_FILE
    spent: dict[str, dict[int, float]] = {}
    budgets: dict[str, float | None] = {}
    try:
        for row in read_csv(path):
            if row.get("round") and row.get("epsilon"):
                spent.setdefault(row["site"], {})[int(row["round"])] = float(row["epsilon"])
                budgets[row["site"]] = float(row["budget"]) if row.get("budget") else None
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        reason = f"it has no column {error}" if isinstance(error, KeyError) else error
        raise UserError(
            f"{path} is damaged ({reason}): remove it to report without epsilon per round, or "
            "run again"
        ) from None
    curves = []
    for site, by_round in spent.items():
        rounds = sorted(by_round)
        curves.append(
            EpsilonCurve(
                site=site,
                rounds=tuple(rounds),
                epsilons=tuple(by_round[number] for number in rounds),
                budget=budgets[site],
            )
        )
    return curves
