"""The cells of the search: a table, a split, and settings or a rival without privacy."""

import json
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score

from fl_dpbayes.config import Scenario, load_scenario, site_plan
from fl_dpbayes.files import write_atomically
from fl_dpbayes.posterior.convergence import mixing_warning, summarise_convergence
from fl_dpbayes.posterior.rules.fald import averaged_temperature
from fl_dpbayes.privacy import planned_chain
from studies.defaults.rounds import Floats, predict, run_rounds
from studies.defaults.settings import Coupling, all_settings, former_overrides
from studies.defaults.splits import Records, Split, read_split, write_proposal
from studies.defaults.tables import TABLES
from studies.known_hospitals.rounds import hospital_weights

SEARCH_SEEDS = (101, 102)
# Of the trial one split has thousands of test patients.
SEARCH_SPLITS = {"stroke": 1}
PUBLISHED_SEEDS = (201, 202, 203)
POOLED = "pooled"
ALONE = "largest alone"
FORMER = "former defaults"
COUPLINGS: tuple[Coupling, ...] = ("constant", "floor")
# With a floor each hospital's noise is solved for its own size, which takes long for many.
FEW_HOSPITALS = (
    "heart",
    "breast cancer",
    "wine",
    "indo_rct",
    "ICU, 1,000 patients",
    "ICU, small",
)
PENALTIES = (0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Outcome:
    """What a predictor did at a split's test records.

    Attributes:
        table: Name of the table.
        seed: Deals the split.
        predictor: Name of a try, or of a rival.
        log_loss: In nats a record.
        auroc: Of classes above two their mean, each against all others; 0 in the search.
        warning: Kind of what the chain's mixing gives rise to; empty for nothing, and in the
            search.
        temperature: Of the averaged chain's noise; 0 for a rival, and in the search.
    """

    table: str
    seed: int
    predictor: str
    log_loss: float
    auroc: float = 0.0
    warning: str = ""
    temperature: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One predictor at one split of a table."""

    table: str
    seed: int
    predictor: str

    def file(self, folder: Path) -> Path:
        """Return where its outcome is written."""
        return folder / self.table / f"{self.seed} {self.predictor}.json"


def search_cells(coupling: Coupling) -> Iterator[Cell]:
    """Yield the cells of a search, split by split.

    Args:
        coupling: Of the tries.
    """
    tries = [name_of(number, coupling) for number in range(len(all_settings()))]
    for table in tables_of(coupling):
        for seed in SEARCH_SEEDS[: SEARCH_SPLITS.get(table)]:
            for predictor in [POOLED, *tries]:
                yield Cell(table, seed, predictor)


def published_cells(chosen: dict[str, list[str]]) -> Iterator[Cell]:
    """Yield the cells that are published.

    Args:
        chosen: Table -> the tries that are shown for it.
    """
    for table, tries in chosen.items():
        for seed in PUBLISHED_SEEDS:
            for predictor in [POOLED, ALONE, FORMER, *tries]:
                yield Cell(table, seed, predictor)


def run_cell(cell: Cell, folder: Path) -> None:
    """Run a cell that is not there yet, and write its outcome.

    Args:
        cell: The cell.
        folder: Of all cells.
    """
    file = cell.file(folder)
    if file.exists():
        return
    path = _proposal(cell.table, folder)
    split = _split(path, cell.seed)
    if cell.predictor in (POOLED, ALONE):
        train = split.train.of_largest() if cell.predictor == ALONE else split.train
        outcome = _outcome(cell, split.test, fitted(train, split.test))
    else:
        outcome = _federated(cell, path, split)
    write_atomically(file, json.dumps(asdict(outcome)))


def read_outcomes(folder: Path) -> pd.DataFrame:
    """Read what the cells below a folder left, a row each."""
    files = sorted(folder.glob("*/*.json"))
    return pd.DataFrame([json.loads(file.read_text()) for file in files])


def tables_of(coupling: Coupling) -> tuple[str, ...]:
    """Return the tables at which a coupling is tried."""
    return tuple(TABLES) if coupling == "constant" else FEW_HOSPITALS


def name_of(number: int, coupling: Coupling) -> str:
    """Name a try: its number, after `floor ` where that is the coupling."""
    return str(number) if coupling == "constant" else f"{coupling} {number}"


def try_of(predictor: str) -> tuple[Coupling, int]:
    """Return what `name_of` has named."""
    is_floor = predictor.startswith("floor ")
    return ("floor" if is_floor else "constant"), int(predictor.removeprefix("floor "))


def scenario_of(path: Path, predictor: str, seed: int) -> Scenario:
    """Return a table's scenario at the settings of a federation."""
    features = _features(path)
    if predictor == FORMER:
        overrides = former_overrides(features)
    else:
        coupling, number = try_of(predictor)
        overrides = all_settings()[number].overrides(features, coupling)
    return load_scenario(str(path), [*overrides, f"seed={seed}"])


def fitted(train: Records, test: Records) -> Floats:
    """Predict by logistic regression without privacy, its penalty chosen by cross-validation.

    Args:
        train: Fit it.
        test: Are predicted.

    Returns:
        Probabilities, shape (n, C).
    """
    model = LogisticRegressionCV(
        Cs=PENALTIES, cv=5, scoring="neg_log_loss", max_iter=2000, random_state=0
    )
    with warnings.catch_warnings():
        # Names of arguments that the next version changes, and folds with few events.
        warnings.simplefilter("ignore")
        model.fit(train.features[:, 1:], train.labels)
    return np.asarray(model.predict_proba(test.features[:, 1:]))


def temperature_of(scenario: Scenario, units: npt.NDArray[np.int64]) -> float:
    """Return the temperature of the averaged chain, of its noise alone."""
    plan = site_plan(scenario, len(units))
    sizes = {str(k): int(size) for k, size in enumerate(units)}
    temperatures = {
        name: float(planned_chain(plan, size).temperatures.mean()) for name, size in sizes.items()
    }
    weights = dict(zip(sizes, hospital_weights(scenario, units).tolist(), strict=True))
    return averaged_temperature(temperatures, weights, sizes)


def _federated(cell: Cell, path: Path, split: Split) -> Outcome:
    scenario = scenario_of(path, cell.predictor, cell.seed)
    train = split.train
    key = zlib.crc32(f"{cell.table} {cell.predictor}".encode())
    samples = run_rounds(
        train.features,
        train.labels,
        train.hospital,
        scenario=scenario,
        generator=np.random.default_rng([cell.seed, key]),
    )
    outcome = _outcome(cell, split.test, predict(samples, split.test.features))
    if cell.seed in SEARCH_SEEDS:
        return outcome
    vectors = [np.concatenate([sample[1:].T.ravel(), sample[0]]) for sample in samples]
    summary = summarise_convergence(
        samples=vectors,
        chains=np.zeros(len(vectors), dtype=np.int64),
        generator=np.random.default_rng(0),
    )
    mixing = mixing_warning(summary)
    return replace(
        outcome,
        warning="" if mixing is None else mixing.kind,
        temperature=temperature_of(scenario, np.bincount(train.hospital)),
    )


def _outcome(cell: Cell, test: Records, probabilities: Floats) -> Outcome:
    classes = np.arange(probabilities.shape[1])
    outcome = Outcome(
        table=cell.table,
        seed=cell.seed,
        predictor=cell.predictor,
        log_loss=-float(np.log(probabilities[np.arange(len(test.labels)), test.labels]).mean()),
    )
    if cell.seed in SEARCH_SEEDS:
        return outcome
    scores = probabilities[:, 1] if len(classes) == 2 else probabilities
    auroc = float(roc_auc_score(test.labels, scores, multi_class="ovr", labels=classes))
    return replace(outcome, auroc=auroc)


@cache
def _proposal(table: str, folder: Path) -> Path:
    return write_proposal(TABLES[table](), folder / table)


@cache
def _split(path: Path, seed: int) -> Split:
    return read_split(path, seed)


@cache
def _features(path: Path) -> int:
    return int(load_scenario(str(path)).data.source.task.input_shape[0])
