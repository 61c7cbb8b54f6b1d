"""The cells of docs/results/stroke; those that are not there yet are made.

    python -m studies.stroke.cells FOLDER [KIND ...]

A cell is a federation of scenarios/stroke.toml whose rounds NumPy takes in one process: records,
splits, plans, noise multipliers, site weights and estimator are the program's own code, the random
numbers of the noise are others.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hashlib
import json
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.config import Scenario, site_plan
from fl_dpbayes.config.scenario import scenario_folder
from fl_dpbayes.data import load_unscaled
from fl_dpbayes.data.virtual_sites import dealt_sites
from fl_dpbayes.models import prior_gradient
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.posterior import (
    FACTS,
    Distribution,
    HospitalModel,
    fit_hospitals,
    weigh_sites,
    with_intercept,
)
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from fl_dpbayes.posterior.hierarchical.model import LEVEL, MEDIAN, SHARES
from fl_dpbayes.privacy import parts_of_units, planned_chain

Floats = npt.NDArray[np.float64]
Arrays = dict[str, npt.NDArray]
EPSILONS: tuple[float | None, ...] = (0.5, 1.0, 2.0, 8.0, None)
SPLITS, NOISES, FIFTHS, TWO = range(1, 6), range(8), range(1, 6), (1, 2)
# Without privacy nothing is clipped, no noise added, hospitals weigh by their patients, and the
# chain goes to its mode.
NO_PRIVACY: dict[str, Any] = {
    "privacy": {"kind": "none", "sampling_rate": 1.0, "delta": 1e-3},
    "aggregation": {"rule": "fald"},
    "training": {"rounds": 400, "steps_per_round": 1, "burn_in": 300, "thinning": 1},
}
COUNTRY = 200
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "stroke"


@dataclass(frozen=True)
class Cell:
    """One federation: `seed` deals the split, `noise` numbers its noise, `left` says whose hospitals are held out."""

    kind: str
    epsilon: float | None
    seed: int
    left: str = "nobody"
    noise: int = 0

    @property
    def name(self) -> str:
        """The cell's file without its ending."""
        cost = "none" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.kind}-{cost}-{self.left}-{self.seed}-{self.noise}"

    def generator(self, purpose: str) -> np.random.Generator:
        """Return random numbers of this cell for one purpose."""
        return np.random.default_rng(
            list(hashlib.sha256(f"{self.name} {purpose}".encode()).digest())
        )


@dataclass(frozen=True)
class Dealt:
    """A scenario's records by training site (in order) and the rest: `inputs` (N, D) as the model's layer sees them."""

    inputs: Floats
    labels: npt.NDArray[np.int64]
    published: Floats
    site: npt.NDArray[np.int64]
    test: npt.NDArray[np.bool_]
    names: tuple[str, ...]
    training: tuple[str, ...]

    def train_rows(self) -> npt.NDArray[np.int64]:
        """Return the training records, site after site in the order of `training`."""
        rows = np.flatnonzero(~self.test & (self.number >= 0))
        return rows[np.argsort(self.number[rows], kind="stable")]

    @property
    def number(self) -> npt.NDArray[np.int64]:
        """The place of every record's site in `training`, -1 for another, (N,)."""
        places = {name: at for at, name in enumerate(self.training)}
        return np.array([places.get(name, -1) for name in self.names])[self.site]


def cells() -> Iterator[Cell]:
    """Return all cells, those that the page needs most first."""
    countries = large_countries()
    order = (1.0, None, 8.0, 0.5, 2.0)
    yield from (Cell("split", epsilon, seed) for epsilon in order for seed in SPLITS)
    yield Cell("all", None, 1)
    yield from (
        Cell("covariance", epsilon, seed) for epsilon in (1.0, 0.5, 2.0, 8.0) for seed in SPLITS
    )
    for epsilon in (1.0, 8.0, None):
        yield from (
            Cell("fifth", epsilon, seed, f"fifth {number}") for seed in TWO for number in FIFTHS
        )
        yield from (
            Cell("country", epsilon, seed, country) for seed in TWO for country in countries
        )
    yield from (Cell("spread", 1.0, seed, noise=noise) for noise in NOISES for seed in SPLITS)
    yield from (
        Cell("heart", 4.0, seed, left) for seed in TWO for left in ("nobody", *heart_hospitals())
    )


def scenario_of(cell: Cell) -> Scenario:
    """Return the scenario that a cell runs."""
    name = "heart" if cell.kind == "heart" else "stroke"
    content = tomllib.loads((scenario_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    content["seed"] = cell.seed
    if cell.kind == "heart":
        content |= HEART
        content["sites"] = {site: {"role": "train"} for site in heart_hospitals()}
    content["privacy"]["epsilon"] = cell.epsilon
    if cell.kind == "covariance":
        found = chosen("covariance")
        content["model"] |= tomllib.loads(
            (RESULTS / "covariance.toml").read_text(encoding="utf-8")
        )["model"]
        content["privacy"]["clip_norm"], content["aggregation"]["size_power"] = (
            found["clip_norm"],
            found["size_power"],
        )
        content["sampler"]["prior"]["scale"] = found["prior_scale"]
        content["sampler"]["step_size"]["initial"] = found["step_size"]
        content["training"] |= dict(zip(("rounds", "burn_in"), found["rounds"], strict=True))
    if cell.epsilon is None:
        content |= NO_PRIVACY
        content["sampler"] |= {"kind": "sgld", "prior": {"kind": "gaussian", "scale": 1.0}}
    if cell.kind == "all":
        content["data"]["test_fraction"] = 0.0
    for site in held_out(cell, content["sites"]):
        content["sites"][site]["role"] = "held_out"
    return Scenario.model_validate(content)


# Four hospitals: one step a round as [hierarchical] needs it, set by hand before any result was
# seen.
HEART: dict[str, Any] = {
    "training": {"rounds": 30, "steps_per_round": 1, "burn_in": 12, "thinning": 1},
    "hierarchical": {},
}


def held_out(cell: Cell, sites: Mapping[str, Any]) -> list[str]:
    """Return the hospitals that a cell holds out: one, a country's, or a fifth at random."""
    if cell.left.startswith("fifth "):
        names = np.array(sorted(sites))
        dealt = np.random.default_rng(cell.seed).permutation(len(names)) % len(FIFTHS)
        return names[dealt == int(cell.left.split()[1]) - 1].tolist()
    return [name for name in sites if cell.left in (name, country_of(name))]


def country_of(site: str) -> str:
    """Return a hospital's country."""
    return site.rsplit("-", 1)[0]


@lru_cache
def large_countries() -> tuple[str, ...]:
    """Return the countries with 200 patients and more whose outcome is known, the largest first."""
    scenario = scenario_of(Cell("split", 1.0, 1))
    natural = load_unscaled(scenario.data.source, "train").natural_site
    assert natural is not None
    names, counts = np.unique([country_of(site) for site in natural], return_counts=True)
    return tuple(names[at] for at in np.argsort(-counts, kind="stable") if counts[at] >= COUNTRY)


def heart_hospitals() -> tuple[str, ...]:
    """Return the four hospitals of the heart disease records."""
    return ("cleveland", "hungarian", "switzerland", "va")


def dealt(scenario: Scenario) -> Dealt:
    """Deal a scenario's records as the program deals them."""
    plan = dealt_sites(scenario, None)
    records = load_unscaled(scenario.data.source.located(None), "train")
    chosen = np.concatenate([site.indices for site in plan.sites])
    number = np.repeat(np.arange(len(plan.sites)), [len(site.indices) for site in plan.sites])
    test = np.concatenate(
        [
            parts_of_units(
                records.units[site.indices].tolist(), site.split_key, scenario.data.test_fraction
            )
            == "test"
            if site.spec.role == "train"
            else np.ones(len(site.indices), dtype=bool)
            for site in plan.sites
        ]
    )
    own = records.subset(chosen)
    inputs = (
        own.features
        if (kind := scenario.model.features) is None
        else feature_map(kind, own.features.shape[1:])(own.features)
    )
    return Dealt(
        inputs.reshape(len(inputs), -1).astype(np.float64),
        own.labels,
        np.zeros(len(own)) if own.published is None else own.published,
        number,
        test,
        tuple(site.name for site in plan.sites),
        tuple(s.name for s in plan.sites if s.spec.role == "train"),
    )


def fald_rounds(
    scenario: Scenario, own: Dealt, noise: np.random.Generator
) -> tuple[dict[str, Floats], Floats]:
    """Take all rounds of rule `fald`, one full-batch step of each site a round.

    Returns what the server sums up of every site, as `summed_round` does, of a softmax model of two
    classes, weights (2, D) then biases (2); and its samples after burn-in as log odds, biases last,
    (M, D + 1).
    """
    rows, sites = own.train_rows(), own.training
    inputs, number = np.column_stack([own.inputs[rows], np.ones(len(rows))]), own.number[rows]
    units = np.bincount(number, minlength=len(sites))
    starts, lengths = (
        np.concatenate([[0], np.cumsum(units)[:-1]]),
        np.sqrt(2) * np.linalg.norm(inputs, axis=1),
    )
    plan = site_plan(scenario, len(sites))
    chains = [planned_chain(plan, int(count)) for count in units]
    noises = np.stack([chain.noise_multipliers for chain in chains]) * plan.privacy.noise_unit
    shares = weigh_sites(scenario.aggregation, dict(zip(sites, units.tolist(), strict=True)))[0]
    weights = np.array([shares[site] for site in sites])
    width, bound = inputs.shape[1], getattr(scenario.aggregation, "move_bound", "none")
    clip, labels = plan.privacy.clip_norm or np.inf, own.labels[rows]
    state, samples = np.zeros((2, width)), []
    summed = np.zeros((len(sites), FACTS + 4 * width))
    for step, rate in enumerate(chains[0].step_sizes):
        residual = expit(inputs @ (state[1] - state[0])) - labels
        factor = np.minimum(1.0, clip / np.maximum(np.abs(residual) * lengths, 1e-300))
        score = np.add.reduceat(inputs * (residual * factor)[:, None], starts)
        drawn = noise.standard_normal((len(sites), 2, width))
        sums = np.stack([-score, score], axis=1) + noises[:, step, None, None] * drawn
        pull = prior_gradient(plan.sampler.prior, torch.from_numpy(state)).numpy()
        moves = -rate * (sums - plan.prior_share * pull) / units[:, None, None]
        weighed = 1 / noises[:, step] ** 2 if noises.any() else np.ones(len(sites))
        if kept := step >= scenario.training.burn_in:
            facts = np.column_stack(
                [units, np.ones(len(sites)), weighed, (weighed * noises[:, step]) ** 2]
            )
            summed += np.column_stack(
                [facts, weighed[:, None] * flat(sums), weighed[:, None] * flat(state[None])]
            )
        state = state + np.tensordot(shortened(weights, moves, bound), moves, 1)
        if kept:
            samples.append(state[1] - state[0])
    return dict(zip(sites, summed, strict=True)), np.array(samples)


def flat(values: Floats) -> Floats:
    """Put (K, 2, D + 1), biases last, into the order of the flat vector."""
    return np.column_stack([values[:, :, :-1].reshape(len(values), -1), values[:, :, -1]])


def shortened(weights: Floats, moves: Floats, bound: float | str) -> Floats:
    """Return the weights of moves that go no further than `bound` times the median of v_k |w_k - w|."""
    if isinstance(bound, str) or len(weights) < 3:
        return weights
    parts = weights * np.linalg.norm(moves.reshape(len(moves), -1), axis=1)
    longest = bound * np.sort(parts)[(len(parts) - 1) // 2]
    return weights * np.minimum(1.0, longest / np.maximum(parts, 1e-300))


def pooled(own: Dealt, penalty: float) -> Floats:
    """Return what logistic regression on all training patients in one place, without privacy, says of all, (N,)."""
    rows = own.train_rows()
    model = LogisticRegression(C=penalty, max_iter=1000).fit(own.inputs[rows], own.labels[rows])
    return np.asarray(model.predict_proba(own.inputs)[:, 1])


@lru_cache
def chosen(method: str) -> dict[str, Any]:
    """Return the settings that the search on other splits has chosen for a method."""
    return dict(
        json.loads((RESULTS / "settings.json").read_text(encoding="utf-8"))[method]["settings"]
    )


def alone(cell: Cell) -> Floats:
    """Return what each hospital's own private model says of its test patients, in their order."""
    from studies.stroke.settings import Split, layer_inputs, rounds_alone

    noise = cell.generator("alone")
    return np.asarray(
        rounds_alone(Split(cell.seed), layer_inputs(None), chosen("alone"), cell.epsilon, noise)[0]
    )


def make(cell: Cell) -> Arrays:
    """Run a cell: its tested patients, what every predictor says of them, and the posteriors over hospitals."""
    scenario = scenario_of(cell)
    own = dealt(scenario)
    sums, samples = fald_rounds(scenario, own, cell.generator("noise"))
    model = fit_hospitals(sums, scenario)
    found = found_spreads = spreads(model)
    if cell.kind == "all":
        return found
    inputs = with_intercept(own.inputs)
    odds = inputs @ model.conditional
    one = expit(inputs @ np.column_stack([samples[:, -1:], samples[:, :-1]]).T).mean(axis=1)
    found = found | {
        "label": own.labels,
        "site": own.site,
        "one": one,
        "published": own.published,
        "odds": odds,
    }
    found["pooled"] = pooled(own, chosen("pooled")["C"])
    if cell.left == "nobody":
        found["hierarchical"] = np.zeros(len(odds))
        for number, name in enumerate(own.names):
            here = own.site == number
            found["hierarchical"][here] = integrated(odds[here], model.effect(name))
        if cell.kind == "split":
            found["alone"] = np.zeros(len(odds))
            found["alone"][own.test] = alone(cell)
        if cell.kind == "spread":
            right = {
                key: np.where(own.labels == 1, found[key], 1 - found[key])
                for key in ("one", "hierarchical")
            }
            return found_spreads | {
                f"{key} NLL": -np.log(p[own.test]).mean() for key, p in right.items()
            }
        if cell.kind == "split" and cell.epsilon == 1.0:
            found["home"] = at_home(model, own, odds)
        tested = own.test
    else:
        countries = sorted({country_of(name) for name in own.names} & set(model.groups))
        effects = {"": model.effect(), " new": model.posterior.of_new()}
        effects |= {f" {country}": model.effect(group=country) for country in countries}
        found |= {
            f"effect{name}": np.stack([one.values, one.weights]) for name, one in effects.items()
        }
        found["public odds"] = model.covariates @ model.conditional
        tested = np.isin(
            own.site, [at for at, name in enumerate(own.names) if name not in own.training]
        )
    patients = {key: value[tested] for key, value in found.items() if value.shape == odds.shape}
    counts = np.bincount(own.site, minlength=len(own.names))
    return found | patients | {"names": np.array(own.names), "patients": counts}


def spreads(model: HospitalModel) -> Arrays:
    """Return posterior medians and 90 % intervals: of one level, and of hospitals and groups of two."""
    known = model.posterior
    single = HospitalPosterior(known.estimates, known.variances, None, known.largest_sd).spreads[0]
    both = (
        dict(zip(("hospitals", "groups"), model.posterior.spreads, strict=True))
        if model.groups
        else {}
    )
    return {
        f"sd {of}": np.array([float(sd.quantiles(MEDIAN)), *sd.interval(LEVEL)])
        for of, sd in ({"one level": single} | both).items()
    }


def integrated(odds: Floats, effect: Distribution) -> Floats:
    """Return probabilities averaged over an effect, (n,)."""
    return np.asarray(expit(odds[:, None] + effect.quantiles(SHARES)).mean(axis=1))


def at_home(model: HospitalModel, own: Dealt, odds: Floats) -> Floats:
    """Return what each training hospital's exact update with its own training patients says of all of them, (N,)."""
    found = np.zeros(len(odds))
    for number, name in enumerate(own.names):
        here = own.site == number
        train = here & ~own.test
        found[here] = integrated(
            odds[here], model.without(name).given_labels(odds[train], own.labels[train])
        )
    return found


def main(folder: Path, kinds: list[str]) -> None:
    """Make the cells of these kinds (all, where none is named) that are not in the folder, the needed ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    for cell in cells():
        path = folder / f"{cell.name}.npz"
        if path.exists() or (kinds and cell.kind not in kinds):
            continue
        start = time.process_time()
        partial = path.with_suffix(f".{os.getpid()}.part")
        with partial.open("wb") as file:
            np.savez_compressed(file, **make(cell))
        partial.replace(path)
        print(f"{cell.name}: {time.process_time() - start:.1f} CPU s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
