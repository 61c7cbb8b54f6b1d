"""Runs one cell of a study, and keeps the summary of its run."""

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

CELLS_FOLDER = "cells"
WORK_FOLDER = "work"
RUNS_FOLDER = "runs"
CACHE_FOLDER = "cache"


class CellJob(NamedTuple):
    """What a worker is to run.

    Attributes:
        cell: The cell.
        folder: The study's folder.
        data_dir: The folder of data sets; None: the default one.
        keep_run: Whether the run directory stays.
    """

    cell: StudyCell
    folder: Path
    data_dir: Path | None
    keep_run: bool


class CellOutcome(NamedTuple):
    """How a cell ended.

    Attributes:
        cell: The cell.
        seconds: How long it took.
        summary: Its run's summary; empty where it failed.
        error: Why it failed, in one line; "" where it did not.
        trace: The error's traceback.
    """

    cell: StudyCell
    seconds: float
    summary: Mapping[str, Any] = {}
    error: str = ""
    trace: str = ""


def run_cell(job: CellJob) -> CellOutcome:
    """Run a cell, here or on another machine, in a folder of its own.

    Args:
        job: What to run. The run directory stays where the run failed, or if it is to be kept.

    Returns:
        The outcome, also of a cell that failed: no exception leaves this function.
    """
    started = time.perf_counter()
    work = job.folder / WORK_FOLDER / job.cell.digest
    scenario = job.cell.scenario
    try:
        # A run that a killed worker left is not resumed: its ledgers hold reservations that no
        # summary shows.
        shutil.rmtree(work, ignore_errors=True)
        plan = plan_sites(scenario, job.data_dir)
        prepare_simulation(scenario, plan, work, cache_folder=job.folder / CACHE_FOLDER)
        run_inline(work, len(scenario.sites), threading.Event(), report=job.keep_run)
        summary = stored_summary(work)
        if job.keep_run:
            run_folder = job.folder / RUNS_FOLDER / job.cell.digest
            run_folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(run_folder, ignore_errors=True)
            work.rename(run_folder)
        else:
            shutil.rmtree(work)
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - started
        trace = traceback.format_exc()
        return CellOutcome(cell=job.cell, seconds=seconds, error=text, trace=trace)
    seconds = time.perf_counter() - started
    return CellOutcome(cell=job.cell, seconds=seconds, summary=summary)


def cell_file(folder: Path, cell: StudyCell) -> Path:
    """Return where a study's folder keeps a finished cell."""
    return folder / CELLS_FOLDER / f"{cell.digest}.json"


def keep_outcome(folder: Path, outcome: CellOutcome) -> None:
    """Write a finished cell's file, or the error of one that failed, whole or not at all."""
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
    """Read a finished cell; None if its file is absent or damaged, so that it is to be run."""
    try:
        content = read_sealed_json(cell_file(folder, cell))
        summary = dict(content["summary"])
        parse_summary(summary)
        return CellOutcome(cell=cell, seconds=float(content["seconds"]), summary=summary)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
