"""Runs one cell, and keeps what it found."""

import shutil
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fl_dpbayes.data import plan_sites, prepare_simulation
from fl_dpbayes.engine.inline_engine import run_inline
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import json_values, read_sealed_json, write_atomically, write_sealed_json
from fl_dpbayes.report import parse_summary, stored_summary
from fl_dpbayes.study.grid import StudyCell

CELLS_FOLDER, WORK_FOLDER, RUNS_FOLDER, CACHE_FOLDER = "cells", "work", "runs", "cache"


class CellJob(NamedTuple):
    """What a worker is told: the cell, the study's folder, where data lie, and whether to keep the run directory."""

    cell: StudyCell
    folder: Path
    data_dir: Path | None
    keep_run: bool


class CellOutcome(NamedTuple):
    """How a cell ended: with the summary of its run, or with an error in one line and its traceback."""

    cell: StudyCell
    seconds: float
    summary: Mapping[str, Any] = {}
    error: str = ""
    trace: str = ""


def run_cell(job: CellJob) -> CellOutcome:
    """Run a cell, here or on another machine, in a folder of its own.

    Nothing that goes wrong leaves this function.

    The run directory stays where the run failed, or if it is to be kept.
    """
    started = time.perf_counter()
    work = job.folder / WORK_FOLDER / job.cell.digest
    scenario = job.cell.scenario
    try:
        # What a killed worker left is not gone on with: its ledgers hold reservations that no
        # summary shows.
        shutil.rmtree(work, ignore_errors=True)
        prepare_simulation(
            scenario,
            plan_sites(scenario, job.data_dir),
            work,
            cache_folder=job.folder / CACHE_FOLDER,
        )
        run_inline(work, len(scenario.sites), threading.Event(), report=job.keep_run)
        summary = stored_summary(work)
        if job.keep_run:
            kept = job.folder / RUNS_FOLDER / job.cell.digest
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(kept, ignore_errors=True)
            work.rename(kept)
        else:
            shutil.rmtree(work)
    except Exception as error:
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return CellOutcome(
            job.cell, time.perf_counter() - started, error=what, trace=traceback.format_exc()
        )
    return CellOutcome(job.cell, time.perf_counter() - started, summary)


def cell_file(folder: Path, cell: StudyCell) -> Path:
    """Return where a study's folder keeps a finished cell."""
    return folder / CELLS_FOLDER / f"{cell.digest}.json"


def keep_outcome(folder: Path, outcome: CellOutcome) -> None:
    """Write a finished cell's file, or the error of one that failed.

    A reader meets the whole file or none.
    """
    path = cell_file(folder, outcome.cell)
    error_path = path.with_suffix(".error.txt")
    if outcome.error:
        write_atomically(error_path, f"{outcome.cell.title}\n{outcome.error}\n\n{outcome.trace}")
        return
    content = {
        "labels": dict(outcome.cell.labels),
        "seconds": outcome.seconds,
        "summary": outcome.summary,
    }
    write_sealed_json(path, {key: json_values(value) for key, value in content.items()})
    error_path.unlink(missing_ok=True)


def finished_cell(folder: Path, cell: StudyCell) -> CellOutcome | None:
    """Read a finished cell.

    None if its file is absent, or is not as it was written, so that it is to be run.
    """
    try:
        content = read_sealed_json(cell_file(folder, cell))
        summary = dict(content["summary"])
        parse_summary(summary)
        return CellOutcome(cell, float(content["seconds"]), summary)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
