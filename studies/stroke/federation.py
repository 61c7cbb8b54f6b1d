"""A federation's posterior, of a kept run of the program or of rounds that were taken by NumPy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file
from scipy.special import expit

from fl_dpbayes.config import Scenario, load_scenario, write_scenario
from fl_dpbayes.data import SCENARIO_FILE
from fl_dpbayes.files import replaced_atomically
from fl_dpbayes.posterior import (
    POSTERIOR_FILE,
    Distribution,
    HospitalModel,
    Means,
    PooledRounds,
    fit_log_odds,
    with_intercept,
)
from fl_dpbayes.posterior.hierarchical.model import SHARES
from fl_dpbayes.predict.finished_run import read_run
from fl_dpbayes.predict.hospital_posterior import load_hospitals
from studies.known_hospitals.rounds import Released, run_rounds
from studies.stroke.rivals import Cohort, Floats, Split

RELEASED_FILE = "released.safetensors"
FREE = "without privacy"


@dataclass(frozen=True)
class Federation:
    """What a federation ended with.

    Attributes:
        scenario: What was run.
        samples: Of the one model's log odds, intercept first, of equal weight, shape (S, 1 + D).
        hospitals: Its posterior over hospitals.
    """

    scenario: Scenario
    samples: Floats
    hospitals: HospitalModel

    @property
    def seed(self) -> int:
        """Deals its split."""
        return self.scenario.seed

    @property
    def privacy(self) -> str:
        """Its budget in words."""
        epsilon = self.scenario.privacy.epsilon
        return FREE if epsilon == np.inf else f"epsilon {epsilon:g}"

    @property
    def held_out(self) -> tuple[str, ...]:
        """The hospitals that are held out."""
        sites = self.scenario.sites.items()
        return tuple(name for name, spec in sites if spec.role == "held_out")

    @property
    def held_out_country(self) -> str | None:
        """The one country that is held out whole; None where others are, or no hospital."""
        countries = {self.scenario.sites[name].group for name in self.held_out}
        if len(countries) != 1 or countries & set(self.hospitals.groups):
            return None
        return countries.pop()

    def one_model(self, features: npt.NDArray) -> Floats:
        """Predict by the federation's one model.

        Args:
            features: What the model sees, shape (n, D).

        Returns:
            Probabilities of class 1, shape (n,).
        """
        return np.asarray(expit(with_intercept(features) @ self.samples.T).mean(axis=1))

    def log_odds(self, features: npt.NDArray) -> Floats:
        """Return the log odds at a hospital of effect 0, shape (n,)."""
        return np.asarray(with_intercept(features) @ self.hospitals.state)

    def hierarchical(self, cohort: Cohort) -> Floats:
        """Predict patients at the level of their hospital, or of a new one of their country."""
        log_odds = self.log_odds(cohort.features)
        probabilities = np.empty(len(cohort))
        for hospital in np.unique(cohort.hospitals):
            here = cohort.hospitals == hospital
            (country,) = np.unique(cohort.countries[here])
            effect = self.hospitals.effect(site=hospital, group=country)
            probabilities[here] = integrated(log_odds[here], effect)
        return probabilities


def integrated(log_odds: Floats, effect: Distribution) -> Floats:
    """Return probabilities averaged over an effect, shape (n,)."""
    return np.asarray(expit(log_odds[:, None] + effect.quantiles(SHARES)).mean(axis=1))


def write_rounds(
    scenario: Scenario, split: Split, generator: np.random.Generator, folder: Path
) -> None:
    """Take a scenario's rounds by NumPy, and write what hospitals released.

    Args:
        scenario: What is run.
        split: Its patients; of hospitals that do not train none is looked at.
        generator: Draws the noise.
        folder: Gets the scenario, and at last what was released.
    """
    train = training_patients(scenario, split)
    released = run_rounds(
        features=with_intercept(train.features),
        outcomes=train.labels,
        hospital=np.unique(train.hospitals, return_inverse=True)[1],
        sites=tuple(training_hospitals(scenario)),
        scenario=scenario,
        generator=generator,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_scenario(scenario, folder / SCENARIO_FILE)
    means = {f"mean {name}": values for name, values in released.means._asdict().items()}
    arrays = means | released.rounds.arrays | {"samples": released.samples}
    with replaced_atomically(folder / RELEASED_FILE) as partial:
        save_file(arrays, partial)


def training_patients(scenario: Scenario, split: Split) -> Cohort:
    """Return the training patients of the hospitals that train, hospital by hospital."""
    trains = np.isin(split.train.hospitals, training_hospitals(scenario))
    train = split.train.subset(trains)
    return train.subset(np.argsort(train.hospitals, kind="stable"))


def training_hospitals(scenario: Scenario) -> list[str]:
    """Return the names of the hospitals that train, in alphabetical order."""
    return sorted(name for name, spec in scenario.sites.items() if spec.role == "train")


def read_rounds(folder: Path) -> Federation:
    """Read what `write_rounds` wrote, and fit today's posterior over hospitals to it."""
    scenario = load_scenario(str(folder / SCENARIO_FILE))
    arrays = load_file(folder / RELEASED_FILE)
    released = Released(
        means=Means(**{name: arrays[f"mean {name}"] for name in Means._fields}),
        rounds=PooledRounds.of_arrays(arrays),
        samples=arrays["samples"],
    )
    hospitals = fit_log_odds(
        tuple(training_hospitals(scenario)),
        means=released.means,
        rounds=released.rounds,
        scenario=scenario,
    )
    return Federation(scenario=scenario, samples=released.samples, hospitals=hospitals)


def read_kept_run(folder: Path) -> Federation:
    """Read a kept run of the program."""
    run = read_run(folder)
    samples = run.stored.samples
    assert len(set(samples.weights)) == 1
    # Of the two rows of the softmax model the log odds are the difference.
    rows = {
        name.rpartition(".")[2]: array[:, 1].astype(np.float64) - array[:, 0]
        for name, array in samples.arrays.items()
    }
    return Federation(
        scenario=run.scenario,
        samples=np.column_stack([rows["bias"], rows["weight"]]),
        hospitals=load_hospitals(folder, run.scenario, run.task),
    )


def read_federations(folder: Path) -> list[Federation]:
    """Read the federations below a folder, of either kind, in the order of their names."""
    federations = []
    for path in sorted(folder.iterdir()):
        if (path / RELEASED_FILE).exists():
            federations.append(read_rounds(path))
        elif (path / POSTERIOR_FILE).exists():
            federations.append(read_kept_run(path))
    return federations
