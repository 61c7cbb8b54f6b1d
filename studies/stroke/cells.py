"""The cells of the stroke study and of the second trial, their rounds taken by NumPy."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_dpbayes.config import Scenario, load_scenario, load_study
from fl_dpbayes.errors import UserError
from fl_dpbayes.study.grid import study_cells
from studies.pages import ROOT, STROKE
from studies.stroke.federation import RELEASED_FILE, write_rounds
from studies.stroke.rivals import Split
from studies.stroke.splits import read_split

SEEDS = (201, 202, 203)
STUDY = "stroke"
SECOND_STUDY = str(ROOT / "studies" / "second_trial" / "medpar.toml")
SECOND_TABLE = ROOT / "studies" / "second_trial" / "medpar.csv"
# Below the folder of all cells: of each federation one draw of the noise; of those in which all
# hospitals train the others; the same with a public covariance.
STROKE_CELLS = "stroke"
STROKE_DRAWS = "stroke-draws"
SECOND_CELLS = "second-trial"
SECOND_DRAWS = "second-trial-draws"
COVARIANCE_DRAWS = "covariance-draws"
# Kept runs of the program, all hospitals in training.
PROGRAM = "program"
SECOND_PROGRAM = "second-trial-program"
# Draws of the noise where all hospitals train: at epsilon 1, and at each other budget.
DRAWS = 20
FEW_DRAWS = 5
# Hospitals and countries are held out at these.
HELD_OUT_BUDGETS = ("1", "none")
MAIN_BUDGET = "1"
NOBODY = "nobody"
# Found for the public covariance on splits 101 to 103, as those of the scenario were for its own.
COVARIANCE_SETTINGS = (
    "privacy.clip_norm=1.8",
    "aggregation.size_power=1.5",
    "sampler.prior.scale=0.1",
    "sampler.step_size.initial=1.0",
    "training.rounds=30",
    "training.burn_in=6",
)
COVARIANCE_EPSILONS = (0.5, 1.0, 2.0, 8.0)


@dataclass(frozen=True)
class Cell:
    """One federation with one draw of its noise.

    Attributes:
        folder: Below the folder of all cells.
        scenario: What is run.
        draw: Number of the noise.
        everyone: A scenario of the same patients in which all hospitals train.
    """

    folder: Path
    scenario: Scenario
    draw: int
    everyone: Scenario

    @property
    def generator(self) -> np.random.Generator:
        """Draws the noise."""
        return np.random.default_rng([self.draw, zlib.crc32(str(self.folder).encode())])


def all_cells() -> Iterator[Cell]:
    """Yield every cell that the tables need, those of one split after each other."""
    yield from study_draws(STUDY, STROKE_CELLS, STROKE_DRAWS)
    yield from study_draws(SECOND_STUDY, SECOND_CELLS, SECOND_DRAWS)
    for seed in SEEDS:
        everyone = covariance_scenario(seed, epsilon=1.0)
        for epsilon in COVARIANCE_EPSILONS:
            scenario = covariance_scenario(seed, epsilon)
            name = f"{seed} epsilon {epsilon:g}"
            yield from draws_of(scenario, Path(COVARIANCE_DRAWS, name), range(FEW_DRAWS), everyone)


def study_draws(study: str, first: str, others: str) -> Iterator[Cell]:
    """Yield the cells of a study.

    Args:
        study: Its name or file, with axes `seed`, `budget` and `left_out`.
        first: Folder of one draw of each.
        others: Folder of further draws where all hospitals train.
    """
    cells = study_cells(load_study(study, [f"axes.seed={list(SEEDS)}"]))
    everyone = {
        cell.scenario.seed: cell.scenario for cell in cells if cell.labels["left_out"] == NOBODY
    }
    for cell in sorted(cells, key=lambda cell: cell.scenario.seed):
        budget = cell.labels["budget"]
        left_out = cell.labels["left_out"]
        if left_out != NOBODY and budget not in HELD_OUT_BUDGETS:
            continue
        name = f"{cell.scenario.seed} {budget} {left_out}"
        yield Cell(Path(first, name), cell.scenario, 0, everyone[cell.scenario.seed])
        if left_out == NOBODY and np.isfinite(cell.scenario.privacy.epsilon):
            draws = range(1, DRAWS if budget == MAIN_BUDGET else FEW_DRAWS)
            dealing = everyone[cell.scenario.seed]
            yield from draws_of(cell.scenario, Path(others, name), draws, dealing)


def draws_of(
    scenario: Scenario, folder: Path, draws: Iterable[int], everyone: Scenario
) -> Iterator[Cell]:
    """Yield draws of the noise of a federation in which all hospitals train."""
    for draw in draws:
        numbered = folder.with_name(f"{folder.name} draw {draw:02}")
        yield Cell(numbered, scenario, draw, everyone)


def covariance_scenario(seed: int, epsilon: float) -> Scenario:
    """Return the scenario whose features are whitened by a public covariance."""
    covariance = (STROKE / "covariance.toml").read_text()
    settings = [covariance, *COVARIANCE_SETTINGS, f"seed={seed}", f"privacy.epsilon={epsilon}"]
    return load_scenario(STUDY, settings)


def second_scenario() -> Scenario:
    """Return the second trial's scenario at epsilon 1, all hospitals in training."""
    cells = study_cells(load_study(SECOND_STUDY))
    return next(
        cell.scenario
        for cell in cells
        if cell.labels["left_out"] == NOBODY and cell.labels["budget"] == MAIN_BUDGET
    )


def splits_of(scenario: Scenario, seeds: Iterable[int] = SEEDS) -> list[Split]:
    """Deal a scenario's patients by each seed."""
    return [read_split(scenario.model_copy(update={"seed": seed})) for seed in seeds]


def check_second_table() -> None:
    """Check that the second trial's table, which is not shipped, was written.

    Raises:
        UserError: It was not.
    """
    if not SECOND_TABLE.is_file():
        place = SECOND_TABLE.relative_to(ROOT)
        raise UserError(
            f"the second trial's table {place} is not here, as its licence keeps it from being "
            f"shipped: write it by  python -m studies.second_trial.medpar {place}"
        )


def run_cells(folder: Path) -> None:
    """Run the cells that are not there yet.

    Args:
        folder: Of all cells.
    """
    dealt: tuple[Scenario, Split] | None = None
    for cell in all_cells():
        target = folder / cell.folder
        if (target / RELEASED_FILE).exists():
            continue
        if dealt is None or dealt[0] is not cell.everyone:
            dealt = (cell.everyone, read_split(cell.everyone))
        write_rounds(cell.scenario, dealt[1], cell.generator, target)
        print(cell.folder, flush=True)
