"""The work behind `fl-dpbayes study`: run what is missing of a grid, gather it, show it."""

import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fl_dpbayes.config import Study, counted, load_study, same_study, shipped_papers, write_study
from fl_dpbayes.data import load_unscaled
from fl_dpbayes.engine.simulate import check_machine, new_folder
from fl_dpbayes.errors import Stopped, UserError
from fl_dpbayes.files import digest, json_values, write_atomically
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.files.plain_files import check_plain
from fl_dpbayes.report import duration
from fl_dpbayes.report.study.page import write_study_report
from fl_dpbayes.report.study.results import read_study
from fl_dpbayes.report.study.show import show_study
from fl_dpbayes.study.cell import (
    CELLS_FOLDER,
    WORK_FOLDER,
    CellJob,
    CellOutcome,
    cell_file,
    finished_cell,
    keep_outcome,
)
from fl_dpbayes.study.differences import differences_table
from fl_dpbayes.study.grid import StudyCell, study_cells
from fl_dpbayes.study.table import (
    FURTHER_TABLES,
    further_table,
    paper_table,
    reliability_table,
    result_table,
    write_tables,
)
from fl_dpbayes.version import __version__

STUDY_FILE = "study.toml"
RECORD_FILE = "study.json"
# What is no federation, or needs an attacker's code: scripts of the source tree, which the package
# does not hold.
SCRIPTS = {
    "closer-training": "benchmarks/closer_training.py",
    "hostile-site": "benchmarks/hostile_site.py",
    "interval-coverage": "benchmarks/interval_coverage.py",
    "zhang-regression": "benchmarks/zhang_regression.py",
}
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")
# Keys of a study's section that its record repeats.
RECORDED_KEYS = {"question", "compare", "metrics", "where", "focus", "baseline", "separate"}


@dataclass(frozen=True)
class Workers:
    """Where cells run.

    Attributes:
        count: How many at a time on this machine; None: one per core.
        ray_address: The Ray cluster that runs them instead; None: this machine.
        keep_runs: Whether each run directory, with its posterior and report, stays beside the
            summary.
    """

    count: int | None = None
    ray_address: str | None = None
    keep_runs: bool = False


@dataclass(frozen=True)
class StudyInFolder:
    """A study, its cells, and the folder that holds their results."""

    study: Study
    cells: Sequence[StudyCell]
    folder: Path

    def finished(self) -> list[CellOutcome]:
        """Return the cells whose results are there and whole, in order."""
        outcomes = [finished_cell(self.folder, cell) for cell in self.cells]
        return [outcome for outcome in outcomes if outcome is not None]


def begin_study(
    study: Study, folder: Path | None, data_dir: Path | None, workers: Workers, console: Console
) -> bool:
    """Run a study from its beginning.

    Args:
        study: The study.
        folder: Where results go, absent or empty; None: `runs/<study>-<time>`.
        data_dir: The folder of data sets; None: the default one.
        workers: Where cells run.
        console: Where progress and results are shown.

    Returns:
        Whether every cell finished.

    Raises:
        UserError: If the study or a cell is wrong, or the folder not empty.
        Stopped: If an interrupt ended it.
    """
    cells = study_cells(study)
    folder = new_folder(folder, study.name, CELLS_FOLDER)
    with folder_lock(folder):
        write_study(study, folder / STUDY_FILE)
        return _run_missing(StudyInFolder(study, cells, folder), data_dir, workers, console)


def reproduce(
    name: str,
    full: bool,
    seeds: int | None,
    folder: Path | None,
    data_dir: Path | None,
    workers: Workers,
    console: Console,
) -> bool:
    """Run what is missing of a paper's table, which is a study of `scenarios/papers`.

    Args:
        name: The table's name.
        full: Whether to run it at the paper's own size.
        seeds: Number of repetitions; None: as the table's file says.
        folder: Where results go, and where finished cells are kept; None: `runs/reproduce/NAME`.
        data_dir: The folder of data sets; None: the default one.
        workers: Where cells run.
        console: Where progress and results are shown.

    Returns:
        Whether every cell finished.

    Raises:
        UserError: If there is no such table, it is a script of `benchmarks/`, or as for a study.
    """
    if name in SCRIPTS:
        raise UserError(
            f"{name} is no study: run its script in the source tree:  python {SCRIPTS[name]} --help"
        )
    if name not in shipped_papers():
        raise UserError(
            f"there is no experiment {name!r}: choose one of "
            f"{', '.join((*shipped_papers(), *SCRIPTS))}"
        )
    overrides = [f"axes.seed={list(range(1, seeds + 1))}"] if seeds else []
    study = load_study(name, overrides, full=full)
    if folder is None:
        folder = Path("runs") / "reproduce" / name
    if (folder / STUDY_FILE).is_file():
        return resume_study(folder, study, data_dir, workers, console)
    return begin_study(study, folder, data_dir, workers, console)


def resume_study(
    folder: Path, study: Study | None, data_dir: Path | None, workers: Workers, console: Console
) -> bool:
    """Run the cells of a study that are missing or failed.

    Args:
        folder: The study's folder.
        study: What the caller takes the study to be; None: whatever it is.
        data_dir: The folder of data sets; None: the default one.
        workers: Where cells run.
        console: Where progress and results are shown.

    Returns:
        Whether every cell finished.

    Raises:
        UserError: If the folder holds no study or another one, or another process works on it.
        Stopped: If an interrupt ended it.
    """
    folder = folder.resolve()
    study_file = folder / STUDY_FILE
    if not study_file.is_file():
        raise UserError(
            f"--resume {folder} holds no study: give the folder that it named as it began, "
            "or begin anew"
        )
    study_there = load_study(str(study_file))
    if study is not None and not same_study(study, study_there):
        raise UserError(
            f"{folder} holds a study with other settings than the one given: go on with the "
            f"folder's own by  {_resume_command(folder)}  alone, or another --out"
        )
    there = StudyInFolder(study_there, study_cells(study_there), folder)
    check_plain(folder)
    (folder / CELLS_FOLDER).mkdir(exist_ok=True)
    with folder_lock(folder):
        return _run_missing(there, data_dir, workers, console)


def _resume_command(folder: Path) -> str:
    return f"fl-dpbayes study --resume {shlex.quote(str(folder))}"


def _run_missing(
    there: StudyInFolder, data_dir: Path | None, workers: Workers, console: Console
) -> bool:
    cells = there.cells
    address = workers.ray_address or cells[0].scenario.resources.ray_address
    if address is None:
        for resources in dict.fromkeys(cell.scenario.resources for cell in cells):
            check_machine(resources)
    missing = [cell for cell in cells if finished_cell(there.folder, cell) is None]
    _warn_of_damaged(there.folder, missing, console)
    if address is None:
        _check_records(missing, data_dir)
    count = workers.count or len(os.sched_getaffinity(0))
    _print_start(there, len(missing), console)
    if missing:
        where = f"on the Ray cluster at {address}" if address else f"in {count} processes at a time"
        console.print(f"running {counted(len(missing), 'cell')} {where}", markup=False)
    data_folder = None if data_dir is None else data_dir.resolve()
    jobs = [
        CellJob(cell=cell, folder=there.folder, data_dir=data_folder, keep_run=workers.keep_runs)
        for cell in missing
    ]
    try:
        errors = _run_jobs(jobs, there.folder, count, address, console) if jobs else {}
    except KeyboardInterrupt:
        raise Stopped(
            f"{len(there.finished())} of {len(cells)} cells are in {there.folder}; to go on:  "
            f"{_resume_command(there.folder)}"
        ) from None
    if not errors:
        shutil.rmtree(there.folder / WORK_FOLDER, ignore_errors=True)
    _write_results(there, there.finished(), errors)
    _show_results(there, errors, console)
    return not errors


def _warn_of_damaged(folder: Path, missing: Sequence[StudyCell], console: Console) -> None:
    for cell in missing:
        path = cell_file(folder, cell)
        if path.is_file():
            console.print(
                f"warning: {path} has no checksum or another one, so it is not what a cell wrote "
                "here: that cell runs again",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )


def _check_records(missing: Sequence[StudyCell], data_dir: Path | None) -> None:
    """Load each source once: where records are missing, every cell would fail one by one."""
    sources = {digest(cell.scenario.data.source): cell.scenario.data.source for cell in missing}
    for source in sources.values():
        load_unscaled(source.located(data_dir), "train")


def _print_start(there: StudyInFolder, missing: int, console: Console) -> None:
    cells = len(there.cells)
    console.print(
        f"{there.study.name}: {counted(cells, 'cell')}, writing {there.folder}",
        markup=False,
        soft_wrap=True,
    )
    if missing < cells:
        console.print(f"{cells - missing} of {cells} cells are already there", markup=False)


def _run_jobs(
    jobs: Sequence[CellJob], folder: Path, workers: int, address: str | None, console: Console
) -> dict[str, str]:
    """Run cells, keep their outcomes, and return digest -> error of those that failed."""
    # Ray takes a fifth of a second, which a study that is only shown need not pay.
    from fl_dpbayes.study.ray_pool import run_on_ray

    errors: dict[str, str] = {}
    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells, {task.description}, elapsed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar as progress, contextlib.closing(run_on_ray(jobs, workers, address)) as outcomes:
        task = progress.add_task("0 failed", total=len(jobs))
        for outcome in outcomes:
            keep_outcome(folder, outcome)
            ending = duration(outcome.seconds)
            if outcome.error:
                errors[outcome.cell.digest] = outcome.error
                ending = f"failed: {outcome.error}"
            progress.update(task, advance=1, description=f"{len(errors)} failed")
            progress.console.print(
                f"{outcome.cell.title}: {ending}", markup=False, highlight=False, soft_wrap=True
            )
    return errors


def _write_results(
    there: StudyInFolder, finished: Sequence[CellOutcome], errors: Mapping[str, str]
) -> None:
    study = there.study
    folder = there.folder
    results = result_table(study, finished)
    write_tables(results, folder / "results")
    if study.section.compare:
        write_tables(differences_table(study, results), folder / "differences")
    for name in FURTHER_TABLES:
        table = further_table(study, finished, name)
        if not table.empty:
            write_tables(table, folder / name)
    diagrams = reliability_table(study, finished)
    if not diagrams.empty:
        write_tables(diagrams, folder / "reliability")
    record = json_values(_record(there, finished, errors))
    write_atomically(folder / RECORD_FILE, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    if study.published:
        write_tables(paper_table(study, results), folder / "paper")


def _record(
    there: StudyInFolder, finished: Sequence[CellOutcome], errors: Mapping[str, str]
) -> dict[str, Any]:
    """Return what `study.json` says of a study: its section, its cells, and what failed."""
    study = there.study
    failed = [cell for cell in there.cells if cell.digest in errors]
    axes = {
        axis.name: [value.label for value in axis.values]
        for axis in (*study.axes, *study.shift_axes)
    }
    notes = [f"Paper: {study.paper.source}.", *study.paper.notes] if study.paper else []
    versions = {"fl-dpbayes": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        versions[package] = importlib.metadata.version(package)
    return {
        "study": study.name,
        **study.section.model_dump(include=RECORDED_KEYS),
        "axes": axes,
        "cells": {"all": len(there.cells), "finished": len(finished), "failed": len(failed)},
        "seconds": sum(outcome.seconds for outcome in finished),
        "notes": notes,
        "versions": versions,
        "failed": [
            {"cell": cell.digest, "labels": dict(cell.labels), "error": errors[cell.digest]}
            for cell in failed
        ],
    }


def _show_results(there: StudyInFolder, errors: Mapping[str, str], console: Console) -> None:
    folder = there.folder
    show_study(read_study(folder), console)
    if errors:
        console.print(
            f"{counted(len(errors), 'cell')} of {len(there.cells)} failed: tracebacks are in "
            f"{folder / CELLS_FOLDER}; once the cause is removed, go on with  "
            f"{_resume_command(there.folder)}",
            style="red",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"tables: {folder / 'results.csv'}", soft_wrap=True, markup=False)
    console.print(f"report: {write_study_report(folder)}", soft_wrap=True, markup=False)
