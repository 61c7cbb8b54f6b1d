"""The cells of docs/results/stroke: `python docs/stroke_cells.py FOLDER [KIND ...]` makes those that are not there yet.

A cell is a federation of scenarios/stroke.toml whose rounds NumPy takes in one process: records, splits, plans, noise
multipliers, site weights and estimator are the program's own code, the random numbers of the noise are others.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hashlib
import json
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.config.scenario import Scenario, scenario_folder, site_plan
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.virtual_sites import dealt_sites
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture
from fl_dpbayes.posterior.hierarchical.model import NODES, HospitalModel, fit_hospitals, public_covariates
from fl_dpbayes.posterior.hierarchical.sums import HospitalMeans
from fl_dpbayes.posterior.hierarchical.update import updated_at_home
from fl_dpbayes.posterior.site_weights import weigh_sites
from fl_dpbayes.privacy.planned_noise import planned_chain, solve_multiplier
from fl_dpbayes.privacy.splits import in_test_part

Floats = npt.NDArray[np.float64]
Arrays = dict[str, npt.NDArray]
EPSILONS: tuple[float | None, ...] = (0.5, 1.0, 2.0, 8.0, None)
SPLITS, NOISES, FIFTHS, TWO = range(1, 6), range(4), range(1, 6), (1, 2)
# Without privacy nothing is clipped and no noise added; the chain then needs no few rounds, and goes to its mode.
NO_PRIVACY = {"rounds": 400, "steps_per_round": 1, "burn_in": 300, "thinning": 1}
COUNTRY = 200
SEARCH = Path(__file__).parent / "results" / "stroke" / "search.json"
SEARCHED, TRIES = (101, 102, 103), 40


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
        return np.random.default_rng(list(hashlib.sha256(f"{self.name} {purpose}".encode()).digest()))


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
    for epsilon in (1.0, 8.0, None):
        yield from (Cell("fifth", epsilon, seed, f"fifth {number}") for seed in TWO for number in FIFTHS)
        yield from (Cell("country", epsilon, seed, country) for seed in TWO for country in countries)
    yield from (Cell("spread", 1.0, seed, noise=noise) for noise in NOISES for seed in SPLITS)
    yield from (Cell("heart", 4.0, seed, left) for seed in TWO for left in ("nobody", *heart_hospitals()))


def scenario_of(cell: Cell) -> Scenario:
    """Return the scenario that a cell runs."""
    name = "heart" if cell.kind == "heart" else "stroke"
    content = tomllib.loads((scenario_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    content["seed"] = cell.seed
    if cell.kind == "heart":
        content |= HEART
        content["sites"] = {site: {"role": "train"} for site in heart_hospitals()}
    content["privacy"]["epsilon"] = cell.epsilon
    if cell.epsilon is None:
        content["privacy"] = {"kind": "none", "sampling_rate": 1.0, "delta": content["privacy"]["delta"]}
        content["sampler"]["kind"] = "sgld"
        content |= {"training": NO_PRIVACY, "aggregation": {"rule": "fald"}}
    for site in held_out(cell, content["sites"]):
        content["sites"][site]["role"] = "held_out"
    return Scenario.model_validate(content)


# Four hospitals: one step a round as [hierarchical] needs it, set by hand before any result was seen.
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
    test = np.concatenate([
        in_test_part(records.units[site.indices].tolist(), site.split_key, scenario.data.test_fraction)
        if site.spec.role == "train" else np.ones(len(site.indices), dtype=bool)
        for site in plan.sites
    ])  # fmt: skip
    own = records.subset(chosen)
    inputs = own.features if (kind := scenario.model.features) is None else feature_map(
        kind, own.features.shape[1:]
    )(own.features)  # fmt: skip
    return Dealt(
        inputs.reshape(len(inputs), -1).astype(np.float64), own.labels,
        np.zeros(len(own)) if own.published is None else own.published, number, test,
        tuple(site.name for site in plan.sites), tuple(s.name for s in plan.sites if s.spec.role == "train"),
    )  # fmt: skip


def fald_rounds(scenario: Scenario, own: Dealt, noise: np.random.Generator) -> tuple[HospitalMeans, Floats]:
    """Take all rounds of rule `fald`, one full-batch step of each site a round.

    Returns what the server sums up, sites in alphabetical order, of a softmax model of two classes, weights (2, D) then
    biases (2); and its samples after burn-in as log odds, biases last, (M, D + 1).
    """
    rows, sites = own.train_rows(), own.training
    inputs = np.column_stack([own.inputs[rows], np.ones(len(rows))])
    number = own.number[rows]
    units = np.bincount(number, minlength=len(sites))
    starts, lengths = np.concatenate([[0], np.cumsum(units)[:-1]]), np.sqrt(2) * np.linalg.norm(inputs, axis=1)
    plan = site_plan(scenario, len(sites))
    chains = [planned_chain(plan, int(count)) for count in units]
    noises = np.stack([chain.noise_multipliers for chain in chains]) * plan.privacy.noise_unit
    shares = weigh_sites(scenario.aggregation, dict(zip(sites, units.tolist(), strict=True)))[0]
    weights = np.array([shares[site] for site in sites])
    width, bound = inputs.shape[1], getattr(scenario.aggregation, "move_bound", "none")
    clip, labels = plan.privacy.clip_norm or np.inf, own.labels[rows]
    state, burn_in = np.zeros((2, width)), scenario.training.burn_in
    kept, samples = [], []
    for step, rate in enumerate(chains[0].step_sizes):
        residual = expit(inputs @ (state[1] - state[0])) - labels
        factor = np.minimum(1.0, clip / np.maximum(np.abs(residual) * lengths, 1e-300))
        score = np.add.reduceat(inputs * (residual * factor)[:, None], starts)
        drawn = noise.standard_normal((len(sites), 2, width))
        sums = np.stack([-score, score], axis=1) + noises[:, step, None, None] * drawn
        pull = prior_gradient(plan.sampler.prior, torch.from_numpy(state)).numpy()
        moves = -rate * (sums - plan.prior_share * pull) / units[:, None, None]
        if step >= burn_in:
            kept.append((1 / noises[:, step] ** 2 if noises.any() else np.ones(len(sites)), sums, state))
        state = state + np.tensordot(shortened(weights, moves, bound), moves, 1)
        if step >= burn_in:
            samples.append(state[1] - state[0])
    total = sum(weight for weight, _, _ in kept)
    gradients, states = (
        sum(weight[:, None] * flat(one if one.ndim == 3 else np.tile(one, (len(sites), 1, 1))) for weight, one in pairs)
        / total[:, None]
        for pairs in ([(weight, sums) for weight, sums, _ in kept], [(weight, at) for weight, _, at in kept])
    )
    sd = noises[:, burn_in:]
    spread = np.sqrt(sum((weight * sd[:, at]) ** 2 for at, (weight, _, _) in enumerate(kept))) / total
    order = np.argsort(sites)
    means = HospitalMeans(
        tuple(sites[at] for at in order), units[order].astype(float), gradients[order], states[order], spread[order],
        np.full(len(sites), float(len(kept))),
    )  # fmt: skip
    return means, np.array(samples)


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


@dataclass(frozen=True)
class Own:
    """Settings of a hospital that trains alone, all public.

    `steps`: of which the second half is averaged. `rate`: step size over the inverse curvature that geometry and prior
    give. `scale`: the prior's standard deviation. `clip`: clip norm over the root mean square of |x|. `spread`: of the
    geometry, as a multiple of the scenario's.
    """

    steps: int
    rate: float
    scale: float
    clip: float
    spread: float


def alone(scenario: Scenario, own: Dealt, noise: np.random.Generator, setting: Own) -> Floats:
    """Return what each hospital's own private model says of its test patients, (N,), nan elsewhere.

    Averaged noisy gradient descent at the scenario's epsilon, as the federation's but without the others.
    """
    rows, number, spread = (
        own.train_rows(),
        own.number,
        setting.spread * getattr(scenario.model.features, "spread", 1.0),
    )
    inputs = np.column_stack([np.ones(len(own.inputs)), setting.spread * own.inputs])
    one, here, labels = inputs[rows], number[rows], own.labels[rows]
    units = np.bincount(here)
    starts, lengths = np.concatenate([[0], np.cumsum(units)[:-1]]), np.linalg.norm(one, axis=1)
    clip, sigma = setting.clip * np.sqrt(1 + spread**2 * own.inputs.shape[1]), 0.0
    if scenario.privacy.kind == "dp":
        sigma = clip * solve_multiplier(scenario.privacy.epsilon, scenario.privacy.delta, 1.0, setting.steps)
    curvature = 0.25 * max(1.0, spread**2) + 1 / (units * setting.scale**2)
    rates = (setting.rate / (curvature * units))[:, None]
    states = np.zeros((len(units), one.shape[1]))
    total = np.zeros_like(states)
    for step in range(setting.steps):
        residual = expit((one * states[here]).sum(1)) - labels
        factor = np.minimum(1.0, clip / np.maximum(np.abs(residual) * lengths, 1e-300)) if sigma else 1.0
        sums = np.add.reduceat(one * (residual * factor)[:, None], starts)
        sums = sums + sigma * noise.standard_normal(states.shape)
        states = states - rates * (sums + states / setting.scale**2)
        total += states if step >= setting.steps // 2 else 0.0
    found = expit((inputs * (total / (setting.steps - setting.steps // 2))[number]).sum(1))
    return np.where(own.test & (number >= 0), found, np.nan)


def pooled(own: Dealt, penalty: float) -> Floats:
    """Return what logistic regression on all training patients in one place, without privacy, says of all, (N,)."""
    rows = own.train_rows()
    model = LogisticRegression(C=penalty, max_iter=1000).fit(own.inputs[rows], own.labels[rows])
    return np.asarray(model.predict_proba(own.inputs)[:, 1])


def loss(p: Floats, own: Dealt) -> float:
    """Return the mean of minus log likelihood over the tested patients."""
    return float(-np.log(np.where(own.labels == 1, p, 1 - p)[own.test]).mean())


def search(path: Path) -> None:
    """Choose what the cells take for a hospital alone, at each epsilon, and for the pooled model, on other splits."""
    draw = np.random.default_rng(16)
    grid = {"steps": (5, 10, 20, 40, 80), "rate": (0.2, 0.5, 1.0), "scale": (0.05, 0.1, 0.2, 0.3, 0.5, 1.0),
            "clip": (0.25, 0.4, 0.63, 1.0), "spread": (0.2, 0.35, 0.5, 0.7, 1.0)}  # fmt: skip
    tried = [Own(**{key: values[draw.integers(len(values))] for key, values in grid.items()}) for _ in range(TRIES)]
    penalties, found = np.logspace(-3, 1, TRIES), {}
    for epsilon in EPSILONS:
        scenarios = [scenario_of(Cell("split", epsilon, seed)) for seed in SEARCHED]
        own = [dealt(scenario) for scenario in scenarios]
        table = [
            [loss(alone(one, records, draw, setting), records) for one, records in zip(scenarios, own, strict=True)]
            for setting in tried
        ]
        best = int(np.argmin(np.mean(table, axis=1)))
        found[f"alone, epsilon {epsilon or 'none'}"] = {
            "chosen": asdict(tried[best]), "NLL": np.mean(table, axis=1)[best], "tried": TRIES,
            "all": [asdict(one) | {"NLL": value} for one, value in zip(tried, np.mean(table, axis=1), strict=True)],
        }  # fmt: skip
    table = [[loss(pooled(records, penalty), records) for records in own] for penalty in penalties]
    best = int(np.argmin(np.mean(table, axis=1)))
    found["pooled"] = {
        "chosen": {"C": penalties[best]}, "NLL": np.mean(table, axis=1)[best], "tried": TRIES,
        "all": [{"C": one, "NLL": value} for one, value in zip(penalties, np.mean(table, axis=1), strict=True)],
    }  # fmt: skip
    path.write_text(json.dumps({"splits": list(SEARCHED), "rows": found}, indent=1) + "\n", encoding="utf-8")


@lru_cache
def chosen(name: str) -> dict[str, Any]:
    """Return what the search has chosen."""
    return json.loads(SEARCH.read_text(encoding="utf-8"))["rows"][name]["chosen"]


def make(cell: Cell) -> Arrays:
    """Run a cell: its tested patients, what every predictor says of them, and the posteriors over hospitals."""
    scenario = scenario_of(cell)
    own = dealt(scenario)
    means, samples = fald_rounds(scenario, own, cell.generator("noise"))
    task = load_unscaled(scenario.data.source.located(None), "train").task
    model = fit_hospitals(means, scenario, public_covariates(scenario, task))
    found = spreads(model, scenario)
    if cell.kind == "spread":
        return found
    inputs = np.column_stack([np.ones(len(own.inputs)), own.inputs])
    odds = inputs @ model.conditional
    one = expit(inputs @ np.column_stack([samples[:, -1:], samples[:, :-1]]).T).mean(axis=1)
    found |= {"label": own.labels, "site": own.site, "one": one, "published": own.published, "odds": odds}
    found["pooled"] = pooled(own, chosen("pooled")["C"])
    if cell.left == "nobody":
        found["hierarchical"] = np.zeros(len(odds))
        for number, name in enumerate(own.names):
            here = own.site == number
            found["hierarchical"][here] = integrated(odds[here], model.effect(name))
        if cell.kind == "split":
            found["alone"] = alone(
                scenario, own, cell.generator("alone"), Own(**chosen(f"alone, epsilon {cell.epsilon or 'none'}"))
            )
            found["home"] = at_home(model, own, odds)
        tested = own.test
    else:
        found["new"] = integrated(odds, model.effect())
        known = sorted({country_of(name) for name in own.names} & set(model.group_names))
        for group in ("", *known):
            effect = model.effect(group=group or None)
            found[f"effect {group}"] = np.stack([effect.weights, effect.means, effect.variances])
        found["public odds"] = model.covariates @ model.conditional
        tested = np.isin(own.site, [at for at, name in enumerate(own.names) if name not in own.training])
    patients = {key: value[tested] for key, value in found.items() if value.shape == odds.shape}
    counts = np.bincount(own.site, minlength=len(own.names))
    return found | patients | {"names": np.array(own.names), "patients": counts}


def spreads(model: HospitalModel, scenario: Scenario) -> Arrays:
    """Return posterior medians and 90 % intervals: of one level, and of hospitals and groups of two."""
    assert scenario.hierarchical is not None
    effects, top = model.posterior.effects, scenario.hierarchical.largest_sd
    single = HospitalPosterior(effects, two_levels=False, largest_sd=top).between_hospitals
    all_three = {"one level": single, "hospitals": model.posterior.between_hospitals}
    all_three |= {"groups": model.posterior.between_groups} if model.groups else {}
    return {f"sd {name}": np.array([sd.quantile(0.5), *sd.interval(0.9)]) for name, sd in all_three.items()}


def integrated(odds: Floats, effect: NormalMixture) -> Floats:
    """Return probabilities averaged over an effect, (n,)."""
    return np.asarray(expit(odds[:, None] + effect.nodes(NODES)).mean(axis=1))


def at_home(model: HospitalModel, own: Dealt, odds: Floats) -> Floats:
    """Return what each training hospital's exact update with its own training patients says of all of them, (N,)."""
    found = np.zeros(len(odds))
    for number, name in enumerate(own.names):
        here = own.site == number
        train = here & ~own.test
        found[here] = integrated(odds[here], updated_at_home(model.without(name), odds[train], own.labels[train]))
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
    search(SEARCH) if sys.argv[1:] == ["search"] else main(Path(sys.argv[1]), sys.argv[2:])
