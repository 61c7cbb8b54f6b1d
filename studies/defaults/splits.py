"""A table as `init` proposes it, dealt to training and test by a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pandas as pd

from fl_dpbayes.commands.init_scenario import propose_scenario
from fl_dpbayes.commands.scenario_draft import DataChoices
from fl_dpbayes.config import Scenario, load_scenario, read_site_file
from fl_dpbayes.data import SITES_FOLDER, load_site, plan_sites, prepare_simulation
from studies.defaults.tables import LABEL, SITE

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Records:
    """Records of hospitals.

    Attributes:
        features: The first column 1, shape (N, 1 + D).
        labels: 0 .. C - 1, shape (N,).
        hospital: 0 .. K - 1, rising, shape (N,).
    """

    features: Floats
    labels: npt.NDArray[np.int64]
    hospital: npt.NDArray[np.int64]

    def of_largest(self) -> "Records":
        """Return the records of the hospital that has most."""
        inside = self.hospital == np.bincount(self.hospital).argmax()
        return Records(self.features[inside], self.labels[inside], self.hospital[inside])


@dataclass(frozen=True)
class Split:
    """Records that train, and records that test at the same hospitals."""

    train: Records
    test: Records


def write_proposal(table: pd.DataFrame, folder: Path) -> Path:
    """Write a table, and the scenario that `init` proposes for it.

    Args:
        table: With its columns of hospitals and outcomes.
        folder: Gets both.

    Returns:
        The scenario's file, in which every hospital trains.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "table.csv"
    scenario = folder / "table.toml"
    if not scenario.exists():
        table.to_csv(path, index=False)
        propose_scenario(DataChoices(paths=[path], site=SITE, label=LABEL), scenario)
        scenario.write_text(scenario.read_text().replace('"held_out"', '"train"'))
    return scenario


def deal(scenario: Scenario) -> Split:
    """Deal a scenario's records as its seed does.

    Args:
        scenario: The scenario.
    """
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        prepare_simulation(scenario, plan_sites(scenario, None), run)
        files = sorted((run / SITES_FOLDER).glob("*.toml"))
        sites = [load_site(read_site_file(path)) for path in files]
    train = [site.train for site in sites]
    return Split(train=_joined(train), test=_joined([site.test for site in sites]))


def read_split(path: Path, seed: int, settings: Sequence[str] = ()) -> Split:
    """Deal a scenario's records by a seed."""
    return deal(load_scenario(str(path), [*settings, f"seed={seed}"]))


def _joined(parts: Sequence) -> Records:
    features = np.concatenate([part.features for part in parts]).astype(np.float64)
    return Records(
        features=np.column_stack([np.ones(len(features)), features]),
        labels=np.concatenate([part.labels for part in parts]),
        hospital=np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts]),
    )
