"""The work behind `fl-dpbayes study`: run what is missing of a grid, gather it in tables, show it."""

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
from fl_dpbayes.files import digest, journal, json_values, write_atomically
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.report import duration
from fl_dpbayes.report.study.page import write_study_report
from fl_dpbayes.report.study.results import read_study
from fl_dpbayes.report.study.show import show_study
from fl_dpbayes.study.cell import (
    CELLS_FOLDER,
    WORK_FOLDER,
    CellJob,
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
    result_table,
    write_tables,
)
from fl_dpbayes.version import __version__

STUDY_FILE, RECORD_FILE = "study.toml", "study.json"
# What is no federation, or needs an attacker's code: scripts of the source tree, which the package
# does not hold.
_SCRIPTS = ("hostile-site", "interval-coverage", "zhang-regression")
SCRIPTS = {name: f"benchmarks/{name.replace('-', '_')}.py" for name in _SCRIPTS}


@dataclass(frozen=True)
class Workers:
    """Where cells run: `count` at a time on this machine, or on the Ray cluster at `ray_address`.

    `keep_runs` keeps each run directory, with its posterior and report, beside the summary.
    """

    count: int | None = None
    ray_address: str | None = None
    keep_runs: bool = False


def begin_study(
    study: Study, folder: Path | None, data_dir: Path | None, workers: Workers, console: Console
) -> bool:
    """Run a study from its beginning, in `folder`, absent or empty (None: `runs/<study>-<time>`).

    Raises UserError if the study or a cell is wrong, or the folder not empty; Stopped if an
    interrupt ended it.
    """
    cells = study_cells(study)
    folder = new_folder(folder, study.name, CELLS_FOLDER)
    with folder_lock(folder):
        write_study(study, folder / STUDY_FILE)
        begun = journal.Journal(folder / journal.JOURNAL_FILE, journal.JournalMark())
        begun.append([journal.file_entry(STUDY_FILE, folder / STUDY_FILE)])
        return _run_missing(study, cells, folder, data_dir, workers, console)


def reproduce(
    name: str,
    full: bool,
    seeds: int | None,
    folder: Path | None,
    data_dir: Path | None,
    workers: Workers,
    console: Console,
) -> bool:
    """Run what is missing of a paper's table, a study of `scenarios/papers`, in `folder` or `runs/reproduce/NAME`.

    `full` asks for the paper's own size, `seeds` for so many repetitions (None: as its file says).
    Raises UserError if there is no such table, or it is a script of `benchmarks/`, or as for a
    study.
    """
    if script := SCRIPTS.get(name):
        raise UserError(
            f"{name} is no study: run its script in the source tree:  python {script} --help"
        )
    if name not in shipped_papers():
        raise UserError(
            f"there is no experiment {name!r}: choose one of "
            f"{', '.join((*shipped_papers(), *SCRIPTS))}"
        )
    study = load_study(name, [f"axes.seed={list(range(1, seeds + 1))}"] if seeds else [], full=full)
    folder = folder or Path("runs") / "reproduce" / name
    if (folder / STUDY_FILE).is_file():
        return resume_study(folder, study, data_dir, workers, console)
    return begin_study(study, folder, data_dir, workers, console)


def resume_study(
    folder: Path, study: Study | None, data_dir: Path | None, workers: Workers, console: Console
) -> bool:
    """Run the cells that are missing or failed of the study in `folder`, which is `study` (None: whatever it is).

    Raises UserError if the folder holds no study or another one, its file is damaged, or another
    process works on it. Raises Stopped if an interrupt ended it.
    """
    folder = folder.resolve()
    file = folder / STUDY_FILE
    if not file.is_file():
        raise UserError(
            f"--resume {folder} holds no study: give the folder that it named as it began, "
            "or begin anew"
        )
    own = load_study(str(file))
    if study is not None and not same_study(study, own):
        alone = (
            "go on with the folder's own by  fl-dpbayes study --resume "
            f"{shlex.quote(str(folder))}  alone"
        )
        raise UserError(
            f"{folder} holds a study with other settings than the one given: {alone}, or "
            "another --out"
        )
    cells = study_cells(own)
    (folder / CELLS_FOLDER).mkdir(exist_ok=True)
    with folder_lock(folder):
        listed = journal.listed_files(
            journal.read_journal(file := folder / journal.JOURNAL_FILE)[0]
        )
        if STUDY_FILE not in listed:
            remedy = "put back a copy of it, or start the study anew with --out"
            raise UserError(
                f"{file} is missing or damaged, or an older version began this study: {remedy}"
            )
        journal.check_files(folder, listed)
        return _run_missing(own, cells, folder, data_dir, workers, console)


def _run_missing(
    study: Study,
    cells: Sequence[StudyCell],
    folder: Path,
    data_dir: Path | None,
    workers: Workers,
    console: Console,
) -> bool:
    address = workers.ray_address or cells[0].scenario.resources.ray_address
    if address is None:
        for resources in dict.fromkeys(cell.scenario.resources for cell in cells):
            check_machine(resources)
    missing = [cell for cell in cells if finished_cell(folder, cell) is None]
    for path in filter(Path.is_file, (cell_file(folder, cell) for cell in missing)):
        text = (
            f"{path} has no checksum or another one, so it is not what a cell wrote here: that "
            "cell runs again"
        )
        console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
    # Where records are missing every cell would fail, one after the other; so each source is loaded
    # once here.
    sources = {
        digest(cell.scenario.data.source): cell.scenario.data.source
        for cell in missing
        if address is None
    }
    for source in sources.values():
        load_unscaled(source.located(data_dir), "train")
    count = workers.count or len(os.sched_getaffinity(0))
    where = f"on the Ray cluster at {address}" if address else f"in {count} processes at a time"
    console.print(
        f"{study.name}: {counted(len(cells), 'cell')}, writing {folder}",
        markup=False,
        soft_wrap=True,
    )
    if len(missing) < len(cells):
        console.print(
            f"{len(cells) - len(missing)} of {len(cells)} cells are already there", markup=False
        )
    if missing:
        console.print(f"running {counted(len(missing), 'cell')} {where}", markup=False)
    place = None if data_dir is None else data_dir.resolve()
    jobs = [CellJob(cell, folder, place, workers.keep_runs) for cell in missing]
    try:
        errors = _run(jobs, folder, count, address, console) if jobs else {}
    except KeyboardInterrupt:
        done = sum(finished_cell(folder, cell) is not None for cell in cells)
        resume = f"fl-dpbayes study --resume {shlex.quote(str(folder))}"
        raise Stopped(
            f"{done} of {len(cells)} cells are in {folder}; to go on:  {resume}"
        ) from None
    if not errors:
        shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)
    _write_results(study, cells, errors, folder, console)
    return not errors


def _run(
    jobs: Sequence[CellJob], folder: Path, workers: int, address: str | None, console: Console
) -> dict[str, str]:
    # Ray takes a fifth of a second, which a study that is only shown need not pay.
    from fl_dpbayes.study.ray_pool import run_on_ray

    errors: dict[str, str] = {}
    said = TextColumn("cells, {task.description}, elapsed"), TimeElapsedColumn(), TextColumn("left")
    columns = BarColumn(), MofNCompleteColumn(), *said, TimeRemainingColumn()
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown as progress, contextlib.closing(run_on_ray(jobs, workers, address)) as outcomes:
        task = progress.add_task("0 failed", total=len(jobs))
        for outcome in outcomes:
            keep_outcome(folder, outcome)
            if outcome.error:
                errors[outcome.cell.digest] = outcome.error
            ending = f"failed: {outcome.error}" if outcome.error else duration(outcome.seconds)
            progress.update(task, advance=1, description=f"{len(errors)} failed")
            progress.console.print(
                f"{outcome.cell.title}: {ending}", markup=False, highlight=False, soft_wrap=True
            )
    return errors


def _write_results(
    study: Study,
    cells: Sequence[StudyCell],
    errors: Mapping[str, str],
    folder: Path,
    console: Console,
) -> None:
    finished = [found for cell in cells if (found := finished_cell(folder, cell)) is not None]
    write_tables(results := result_table(study, finished), folder / "results")
    if study.section.compare:
        write_tables(differences_table(study, results), folder / "differences")
    for name in FURTHER_TABLES:
        table = further_table(study, finished, name)
        if not table.empty:
            write_tables(table, folder / name)
    failed = [cell for cell in cells if cell.digest in errors]
    packages = {
        name: importlib.metadata.version(name)
        for name in ("torch", "numpy", "scipy", "scikit-learn")
    }
    section = {"question", "compare", "metrics", "where", "focus", "baseline", "separate"}
    record = {
        "study": study.name,
        **study.section.model_dump(include=section),
        "axes": {
            axis.name: [value.label for value in axis.values]
            for axis in (*study.axes, *study.shift_axes)
        },
        "cells": {"all": len(cells), "finished": len(finished), "failed": len(failed)},
        "seconds": sum(cell.seconds for cell in finished),
        "notes": [f"Paper: {study.paper.source}.", *study.paper.notes] if study.paper else [],
        "versions": {
            "fl-dpbayes": __version__,
            "python": platform.python_version(),
            **packages,
        },
        "failed": [
            {"cell": cell.digest, "labels": dict(cell.labels), "error": errors[cell.digest]}
            for cell in failed
        ],
    }
    write_atomically(
        folder / RECORD_FILE, json.dumps(json_values(record), indent=2, ensure_ascii=False) + "\n"
    )
    if study.published:
        write_tables(paper_table(study, results), folder / "paper")
    show_study(read_study(folder), console)
    if failed:
        text = (
            f"{counted(len(failed), 'cell')} of {len(cells)} failed: tracebacks are in "
            f"{folder / CELLS_FOLDER}"
        )
        text += (
            "; once the cause is removed, go on with  fl-dpbayes study --resume "
            f"{shlex.quote(str(folder))}"
        )
        console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"tables: {folder / 'results.csv'}", soft_wrap=True, markup=False)
    console.print(f"report: {write_study_report(folder)}", soft_wrap=True, markup=False)
