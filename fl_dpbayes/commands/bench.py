"""The work behind `fl-dpbayes bench`: benchmarks stand beside the package in its source tree."""

from importlib import import_module
from pathlib import Path
from typing import Literal

from rich.console import Console

from fl_dpbayes.errors import UserError

Benchmark = Literal["clip", "sizes", "gpu", "accounting", "simulation", "end-to-end", "memory"]
SOURCE_TREE = Path(__file__).parents[2]


def run_benchmark(
    name: Benchmark,
    only: str,
    repeats: int,
    sites: int,
    engine: str,
    file: str | None,
    console: Console,
) -> None:
    """Measure the rows of a benchmark and print their table.

    Args:
        name: Which benchmark.
        only: Rows whose names contain this are measured; "": all.
        repeats: Steps, rounds or seeds of a row.
        sites: At most so many sites.
        engine: The engine of simulations.
        file: Where rows are kept as JSON; "-": JSON is printed; None: neither.
        console: Where the table is printed.

    Raises:
        UserError: If this is no source tree, or the rows cannot be measured.
    """
    if not (SOURCE_TREE / "benchmarks" / "measure.py").is_file():
        raise UserError(
            "benchmarks come with the source tree, and this is an installed package: clone the "
            f"repository and run  fl-dpbayes bench {name}  from its own environment"
        )
    measure = import_module("benchmarks.measure")
    benchmark = import_module(f"benchmarks.{name.replace('-', '_')}")
    rows = benchmark.rows(measure.Sizes(repeats, sites, engine))
    measure.measure_rows(name, rows, only, file, console, on_gpu=name == "gpu")
