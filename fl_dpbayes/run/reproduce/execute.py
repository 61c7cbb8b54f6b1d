"""Runs the cells that are missing, here or in several processes; each writes its own file at its end."""

import contextlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fl_dpbayes.report.numbers import duration
from fl_dpbayes.run.reproduce.cell_file import cell_path, read_cell, write_cell
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, Experiment, Measurement

# Read by torch, OpenBLAS and MKL when a process loads them.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """How one cell ended: `error` is empty where it is finished, else says in one line what went wrong."""

    cell: Cell
    seconds: float
    error: str = ""


def run_cells(
    experiment: Experiment, cells: Sequence[Cell], folder: Path, data_dir: Path | None, workers: int, console: Console
) -> tuple[list[CellResult], list[Outcome]]:
    """Run the cells whose files are missing and read all that are there.

    A cell that fails leaves its traceback beside its missing file and does not stop the others.

    Args:
        experiment: what is measured.
        cells: all cells that are wanted.
        folder: the experiment's output folder.
        data_dir: the data folder.
        workers: number of processes, >= 1; 1 is this process, more have one thread each.
        console: where progress goes.

    Returns:
        Finished cells in the order of `cells`, and the failures.
    """
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    paths = {id(cell): cell_path(folder, experiment.name, cell) for cell in cells}
    missing = [cell for cell in cells if read_cell(paths[id(cell)]) is None]
    for path in (paths[id(cell)] for cell in missing):
        if path.is_file():
            text = f"{path} has no checksum or another one, so it is not what a cell wrote here: that cell runs again"
            console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
    if len(missing) < len(cells):
        console.print(f"{len(cells) - len(missing)} of {len(cells)} cells are already in {folder}", markup=False)
    jobs = [_Job(experiment.measure, cell, paths[id(cell)], data_dir) for cell in missing]
    failures = []
    with _progress(console, experiment.name) as progress:
        task = progress.add_task(experiment.name, total=len(jobs))
        for outcome in _outcomes(jobs, workers):
            progress.advance(task)
            ending = f"failed: {outcome.error}" if outcome.error else duration(outcome.seconds)
            progress.console.print(f"{outcome.cell.label}, seed {outcome.cell.seed}: {ending}", markup=False)
            if outcome.error:
                failures.append(outcome)
    results = [read_cell(paths[id(cell)]) for cell in cells]
    return [result for result in results if result is not None], failures


@dataclass(frozen=True)
class _Job:
    measure: Callable[[Cell, Path | None], Measurement]
    cell: Cell
    path: Path
    data_dir: Path | None


def _run(job: _Job) -> Outcome:
    started = time.perf_counter()
    trace = job.path.with_suffix(".error.txt")
    try:
        measurement = job.measure(job.cell, job.data_dir)
        write_cell(job.path, job.cell, measurement, time.perf_counter() - started)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        # On a full disk it cannot be written either.
        with contextlib.suppress(OSError):
            trace.write_text(traceback.format_exc(), encoding="utf-8")
            what += f" (traceback in {trace})"
        return Outcome(job.cell, time.perf_counter() - started, what)
    trace.unlink(missing_ok=True)
    return Outcome(job.cell, time.perf_counter() - started)


def _outcomes(jobs: Sequence[_Job], workers: int) -> Iterator[Outcome]:
    if workers == 1 or len(jobs) < 2:
        yield from map(_run, jobs)
        return
    others = set(multiprocessing.active_children())
    # Forking a process in which torch has run can hang its thread pool.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), context) as pool:
        try:
            with _one_thread_for_children():
                futures = {pool.submit(_run, job): job.cell for job in jobs}
            for future in as_completed(futures):
                yield _outcome(future, futures[future])
        except BaseException:
            # An interrupted run must not wait for the cells under way, which may take many minutes.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


def _outcome(future: Future[Outcome], cell: Cell) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return Outcome(cell, 0.0, "its process ended, perhaps for want of memory: try --workers 1")


@contextlib.contextmanager
def _one_thread_for_children() -> Iterator[None]:
    """Let processes that start within have one thread each in torch and in NumPy's linear algebra."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _progress(console: Console, name: str) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"),
        TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
