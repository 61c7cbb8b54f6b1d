"""What every benchmark shares.

Rows are measured in processes of their own, kept as JSON that names the machine, and printed.
"""

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically, written

Record = dict[str, float]
MEBIBYTE = 2**20
_PACKAGES = ("fl-dpbayes", "torch", "numpy", "opacus", "flwr", "ray")


@dataclass(frozen=True)
class Sizes:
    """How large a benchmark is.

    Attributes:
        repeats: Number of steps, rounds or seeds.
        sites: Largest number of sites.
        engine: Engine of simulations.
    """

    repeats: int
    sites: int
    engine: str

    @property
    def growing(self) -> list[int]:
        """10, 100, ... sites, up to `sites`."""
        return [*(size for size in (10, 100, 1000) if size < self.sites), self.sites]


def measure_rows(
    name: str,
    rows: Mapping[str, Callable[[], Record]],
    only: str,
    file: str | None,
    console: Console,
    *,
    on_gpu: bool = False,
) -> None:
    """Measure rows of a benchmark, one after the other, and print their table.

    Args:
        name: Name of the benchmark.
        rows: The work of each row, by name.
        only: A part of the names of the rows to measure, in any case; empty: all.
        file: Keeps the rows as JSON after each; rows that it holds are not measured again. `-`:
            JSON is printed instead of the table.
        console: Where the table is printed.
        on_gpu: Whether rows are measured in this process, where CUDA starts once.

    Raises:
        UserError: There is no such row, a row cannot be measured, or the file is of another
            benchmark or machine.
    """
    chosen = {row: work for row, work in rows.items() if only.lower() in row.lower()}
    if not chosen:
        raise UserError(f"--only {only!r} names no row: give a part of one of {', '.join(rows)}")
    results: dict[str, Any] = {"benchmark": name, "machine": _machine(on_gpu), "rows": {}}
    path = None if file in (None, "-") else Path(str(file))
    if path is not None and path.exists():
        results = _results_to_extend(path, results)
    elif path is not None:
        write_atomically(path, json.dumps(results))
    for row, work in chosen.items():
        if row not in results["rows"]:
            with console.status(row):
                load = os.getloadavg()[0]
                record = work() if on_gpu else alone(work)
            results["rows"][row] = {
                "measured": f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC",
                "load before": load,
                **record,
            }
            if path is not None:
                write_atomically(path, json.dumps(results, indent=1) + "\n")
    text = json.dumps(results) if file == "-" else _table_text(results["rows"], list(chosen))
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _results_to_extend(path: Path, empty: dict[str, Any]) -> dict[str, Any]:
    """Read a file of earlier rows, which must equal `empty` but for its rows."""
    results: Any = None
    with written(path), suppress(ValueError):
        results = json.loads(path.read_text(encoding="utf-8"))
    rows = results.get("rows") if isinstance(results, dict) else None
    if not isinstance(rows, dict) or results | {"rows": {}} != empty:
        raise UserError(
            f"{path} is of another benchmark, machine or version: give another --json, or delete it"
        )
    return results


def _table_text(records: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return a table with one row for each name, or one column where names are few."""
    table = pd.DataFrame({name: records[name] for name in names})
    if len(names) > len(table):
        table = table.T
    return table.to_string(float_format="{:.4g}".format, na_rep="-")


def measure_cells(
    path: Path, cells: Iterable[Mapping[str, Any]], work: Callable[..., Mapping[str, Any]]
) -> None:
    """Measure the cells that a file does not hold yet.

    Args:
        path: Gets a line of JSON for each cell once it is done.
        cells: Their fields.
        work: Takes a cell's fields, and returns its results.
    """
    done = [line["cell"] for line in _lines(path)]
    for cell in cells:
        if cell in done:
            continue
        start = time.process_time()
        results = work(**cell)
        seconds = round(time.process_time() - start, 1)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": dict(cell), **results, "seconds": seconds}) + "\n")


def measured_cells(path: Path) -> pd.DataFrame:
    """Return the cells that a file holds, a row with fields and results of each."""
    return pd.DataFrame([{**line.pop("cell"), **line} for line in _lines(path)])


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def alone(work: Callable[[], Any]) -> Any:
    """Do work in a fresh process that prints nothing.

    Raises:
        UserError: The process dies.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_quiet) as process:
        try:
            return process.submit(work).result()
        except BrokenProcessPool:
            raise UserError(
                "the measured process was ended, perhaps for its memory: measure less at a time"
            ) from None


def peak_bytes() -> int:
    """Return the greatest resident memory of this process so far."""
    # With getrusage a process inherits the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(
        int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")
    )


def _quiet() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _machine(on_gpu: bool = False) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    versions = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**30
    machine = {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory, GiB": memory,
        "python": platform.python_version(),
    }
    # What is loaded before all else may change what libraries take the processor for.
    preloaded = os.environ.get("LD_PRELOAD")
    surroundings = {"preloaded": Path(preloaded).name} if preloaded else {}
    if on_gpu:
        import torch

        surroundings |= {"gpu": torch.cuda.get_device_name(), "CUDA": str(torch.version.cuda)}
    return machine | surroundings | versions
