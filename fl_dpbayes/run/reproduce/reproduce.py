"""The work behind `fl-dpbayes reproduce`."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fl_dpbayes.config.errors import Stopped, UserError
from fl_dpbayes.config.files.atomic_file import replaced_atomically, write_atomically
from fl_dpbayes.config.json_values import json_values
from fl_dpbayes.report.figure_style import figure_settings, figure_svg
from fl_dpbayes.run.reproduce.execute import run_cells
from fl_dpbayes.run.reproduce.experiment import CellResult, Experiment
from fl_dpbayes.run.reproduce.registry import EXPERIMENTS
from fl_dpbayes.run.reproduce.summarise import summarise
from fl_dpbayes.run.reproduce.table import markdown_table, result_table

FULL_SEEDS = 5
PNG_DOTS_PER_INCH = 200


def reproduce(
    name: str,
    *,
    full: bool,
    seeds: int | None,
    folder: Path | None,
    data_dir: Path | None,
    workers: int,
    console: Console,
) -> bool:
    """Run an experiment by its name, see `run_experiment`.

    Raises:
        UserError: if there is no such experiment, or its data are missing.
    """
    experiment = EXPERIMENTS.get(name)
    if experiment is None:
        raise UserError(f"there is no experiment {name!r}: choose one of {', '.join(EXPERIMENTS)}")
    folder = folder or Path("runs") / "reproduce" / name
    return run_experiment(
        experiment, full=full, seeds=seeds, folder=folder, data_dir=data_dir, workers=workers, console=console
    )


def run_experiment(
    experiment: Experiment,
    *,
    full: bool,
    seeds: int | None,
    folder: Path,
    data_dir: Path | None,
    workers: int,
    console: Console,
) -> bool:
    """Run an experiment's missing cells, print its table, and write its JSON and figures.

    Args:
        experiment: what is measured.
        full: the paper's size instead of a reduced one.
        seeds: number of repetitions; None: 5 at full size, else 1.
        folder: where to write; finished cells that are there already are taken as they are.
        data_dir: the data folder.
        workers: number of processes.
        console: where progress and the table go.

    Returns:
        Whether every cell was finished.

    Raises:
        UserError: if the experiment's data are missing.
        Stopped: if an interrupt ended it.
    """
    experiment.check_data(data_dir)
    count = seeds or (FULL_SEEDS if full else 1)
    cells = [cell for seed in range(count) for cell in experiment.cells(seed, full)]
    try:
        results, failures = run_cells(experiment, cells, folder, data_dir, workers, console)
    except KeyboardInterrupt:
        raise Stopped(
            f"finished cells are kept in {folder / 'cells'}; the same command does those that are missing"
        ) from None
    # Some experiments are so small that they are never reduced.
    whole = full or experiment.cells(0, True) == experiment.cells(0, False)
    record = summarise(experiment, results, failures, full=whole, seeds=count)
    path = folder / f"{experiment.name}.json"
    write_atomically(path, json.dumps(json_values(record), indent=2, allow_nan=False, ensure_ascii=False) + "\n")
    page = folder / f"{experiment.name}.md"
    write_atomically(page, markdown_table(experiment, record))
    console.print(result_table(experiment, record, console.width))
    for note in experiment.notes:
        console.print(note, markup=False)
    for failure in failures:
        console.print(f"failed: {failure.cell.label}, seed {failure.cell.seed}: {failure.error}", style="red",
                      markup=False)  # fmt: skip
    for written in (path, page, *_draw(experiment, results, folder)):
        console.print(f"written: {written}", markup=False, soft_wrap=True)
    return not failures


def _draw(experiment: Experiment, results: Sequence[CellResult], folder: Path) -> list[Path]:
    paths = []
    for name, draw in experiment.figures(results).items():
        with figure_settings(name):
            figure = draw()
            vector, pixels = folder / f"{name}.svg", folder / f"{name}.png"
            write_atomically(vector, figure_svg(figure))
            with replaced_atomically(pixels) as partial:
                figure.savefig(partial, format="png", dpi=PNG_DOTS_PER_INCH, metadata={"Software": None})
        paths += [vector, pixels]
    return paths
