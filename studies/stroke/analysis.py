"""Tables of the stroke trial, read from the finished cells of a study whose runs were kept.

fl-dpbayes study stroke --keep-runs --out STUDY
python -m studies.stroke.analysis STUDY TABLES

Every interval holds 90 %: seeds and places (hospitals or countries) are drawn anew together.
"""

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, log_expit, logsumexp
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.calibration import EXACT_BINS, NOISED_BINS, private_threshold, set_counts
from fl_dpbayes.config import read_site_file
from fl_dpbayes.data import SITES_FOLDER, Site, SiteSplit, load_site
from fl_dpbayes.posterior import Distribution, HospitalModel, mixed, predict, with_intercept
from fl_dpbayes.posterior.hierarchical.model import LEVEL, SHARES
from fl_dpbayes.predict.finished_run import FinishedRun, read_run
from fl_dpbayes.predict.hospital_posterior import load_hospitals
from fl_dpbayes.predict.update import residual_sum
from fl_dpbayes.privacy import solve_multiplier
from fl_dpbayes.report.study.results import read_study
from fl_dpbayes.study.cell import RUNS_FOLDER

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Row = dict[str, object]

EVERYONE_TRAINS = "nobody"
FIFTH = "fifth "
WITHOUT_PRIVACY = "none"
REPLICATES = 1_000
SEED = 16

# Inverse penalty of the pooled regression, chosen on other splits (settings.json).
POOLED_C = 0.49238826317067363
SIZES = {
    "all": (0, 10_000),
    "20 to 49": (20, 50),
    "50 to 99": (50, 100),
    "100 and more": (100, 10_000),
}
PREDICTORS = ("one model", "hierarchical", "updated at home", "pooled", "without privacy")
COMPARISONS = (
    ("one model", "pooled"),
    ("hierarchical", "one model"),
    ("hierarchical", "pooled"),
    ("hierarchical", "without privacy"),
    ("updated at home", "hierarchical"),
)

# What is known of a place that was held out.
NOTHING = "nothing"
COUNTRY = "its country"
NEW_COUNTRY = "that its country is a new one"
KNOWN = {"hospitals": (NOTHING, COUNTRY, NEW_COUNTRY), "countries": (NEW_COUNTRY, NOTHING)}
UPDATED = {"hospitals": (NOTHING, COUNTRY), "countries": (NEW_COUNTRY,)}
WAYS = ("no update", "at home", "private", "at home, flat prior")

PATIENTS_OF_UPDATES = (10, 20, 50, 100, 200)
LEAST_LEFT = 20
# Draws of a place's first patients from each cell: there are few countries.
DRAWS_OF_UPDATES = {"hospitals": 1, "countries": 4}
RELEASE_EPSILON = 1.0
DELTA = 1e-3

SETS = ((50, 4.0), (100, 1.0), (300, 1.0))
LEAST_LEFT_BY_SETS = 50
DRAWS_OF_SETS = 400


@dataclass(frozen=True)
class Cell:
    """One federation of the study.

    Attributes:
        seed: Deals the split.
        budget: What the study calls its epsilon.
        left_out: What the study calls the hospitals that are held out.
        folder: The kept run.
    """

    seed: int
    budget: str
    left_out: str
    folder: Path


@dataclass(frozen=True)
class Federation:
    """A kept run, read back.

    Attributes:
        run: Its scenario and samples.
        hospitals: Its posterior over hospitals.
        sites: All sites with their records.
        pooled: Logistic regression on all training patients in one place, without privacy.
    """

    run: FinishedRun
    hospitals: HospitalModel
    sites: tuple[Site, ...]
    pooled: LogisticRegression

    def patients(self, part: SiteSplit) -> "Patients":
        """Predict patients whose hospital's level is not known."""
        inputs = self.run.model_inputs(part.features)
        samples = self.run.stored.samples
        one_model = predict(
            self.run.build_module(), samples.arrays, weights=samples.weights, features=inputs
        )
        return Patients(
            labels=part.labels,
            log_odds=with_intercept(inputs.astype(np.float64)) @ self.hospitals.state,
            one_model=one_model.probabilities[:, 1],
            pooled=self.pooled.predict_proba(inputs)[:, 1],
        )

    def group(self, site: str) -> str | None:
        """Return a site's group, such as its country."""
        return self.run.scenario.sites[site].group


@dataclass(frozen=True)
class Patients:
    """Tested patients of one place, and what is said of them.

    Attributes:
        labels: 0 or 1, shape (n,).
        log_odds: At a hospital of effect 0, shape (n,).
        one_model: Probability of class 1 under the federation's one model, shape (n,).
        pooled: The same by the pooled regression, shape (n,).
    """

    labels: Labels
    log_odds: Floats
    one_model: Floats
    pooled: Floats


@dataclass(frozen=True)
class Place:
    """A hospital or a country that was held out.

    Attributes:
        seed: The cell's.
        name: The hospital's or the country's.
        patients: All of its patients.
        effects: Posterior of its effect by what is known of it.
        public_log_odds: Of the public covariates, at effect 0.
    """

    seed: int
    name: str
    patients: Patients
    effects: Mapping[str, Distribution]
    public_log_odds: Floats


@dataclass(frozen=True)
class StudyCells:
    """The finished cells of a study, by what is held out and by seed."""

    cells: tuple[Cell, ...]

    @property
    def budgets(self) -> list[str]:
        """The budgets in the order of the study."""
        return list(dict.fromkeys(cell.budget for cell in self.cells))

    def all_train(self, budget: str) -> list[Cell]:
        """Return the cells of a budget in which every hospital trains."""
        return [cell for cell in self.at(budget) if cell.left_out == EVERYONE_TRAINS]

    def at(self, budget: str) -> list[Cell]:
        """Return the cells of a budget."""
        return [cell for cell in self.cells if cell.budget == budget]

    def held_out(self, budget: str, kind: str) -> Iterator[Place]:
        """Yield what a budget's cells hold out: `hospitals` of fifths, or `countries`."""
        for cell in self.at(budget):
            is_fifth = cell.left_out.startswith(FIFTH)
            if cell.left_out == EVERYONE_TRAINS or is_fifth != (kind == "hospitals"):
                continue
            federation = read_federation(cell.folder)
            sites = [site for site in federation.sites if site.role == "held_out"]
            if kind == "hospitals":
                for site in sites:
                    yield place_of(federation, cell.seed, site.name, [site])
            else:
                yield place_of(federation, cell.seed, cell.left_out, sites)


def read_cells(folder: Path) -> StudyCells:
    """List the finished cells of a study's folder.

    Args:
        folder: Of a study with the axes `seed`, `budget` and `left_out`, whose runs were kept.

    Returns:
        The cells, budgets in the study's order.
    """
    results = read_study(folder).results.drop_duplicates("cell")
    cells = [
        Cell(
            seed=int(row["seed"]),
            budget=str(row["budget"]),
            left_out=str(row["left_out"]),
            folder=folder / RUNS_FOLDER / str(row["cell"]),
        )
        for row in results.to_dict("records")
    ]
    budgets = list(dict.fromkeys(cell.budget for cell in cells))
    cells.sort(key=lambda cell: (budgets.index(cell.budget), cell.left_out, cell.seed))
    return StudyCells(tuple(cells))


def read_federation(folder: Path) -> Federation:
    """Read a kept run with the records of its sites."""
    run = read_run(folder)
    hospitals = load_hospitals(folder, run.scenario, run.task)
    files = sorted((folder / SITES_FOLDER).glob("*.toml"))
    sites = tuple(load_site(read_site_file(path)) for path in files)
    parts = [site.train for site in sites if site.train is not None]
    inputs = run.model_inputs(np.concatenate([part.features for part in parts]))
    pooled = LogisticRegression(C=POOLED_C, max_iter=1000)
    pooled.fit(inputs, np.concatenate([part.labels for part in parts]))
    return Federation(run=run, hospitals=hospitals, sites=sites, pooled=pooled)


def place_of(federation: Federation, seed: int, name: str, sites: Collection[Site]) -> Place:
    """Gather the patients of sites that were held out as one place."""
    hospitals = federation.hospitals
    parts = [federation.patients(site.test) for site in sites]
    effects = {NOTHING: hospitals.effect(), NEW_COUNTRY: hospitals.posterior.of_new()}
    (group,) = {federation.group(site.name) for site in sites}
    if group in hospitals.groups:
        effects[COUNTRY] = hospitals.effect(group=group)
    return Place(
        seed=seed,
        name=name,
        patients=Patients(
            labels=np.concatenate([part.labels for part in parts]),
            log_odds=np.concatenate([part.log_odds for part in parts]),
            one_model=np.concatenate([part.one_model for part in parts]),
            pooled=np.concatenate([part.pooled for part in parts]),
        ),
        effects=effects,
        public_log_odds=hospitals.covariates @ hospitals.state,
    )


def ratio(rows: pd.DataFrame, above: pd.Series, below: pd.Series) -> Row:
    """Return sum(above) / sum(below) with a bootstrap interval.

    Args:
        rows: With columns `seed` and `place`, one row for each pair at most.
        above: A figure of every row.
        below: A figure of every row.

    Returns:
        `value`, `low`, `high`, and the numbers of `places` and `seeds`.
    """
    keys = [rows["seed"], rows["place"]]
    upper = above.groupby(keys).sum().unstack(fill_value=0.0).to_numpy(np.float64)
    lower = below.groupby(keys).sum().unstack(fill_value=0.0).to_numpy(np.float64)
    seeds, places = upper.shape
    generator = np.random.default_rng(SEED)
    values = []
    for _ in range(REPLICATES):
        drawn_seeds = generator.integers(seeds, size=seeds)
        drawn_places = generator.integers(places, size=places)
        drawn = np.ix_(drawn_seeds, drawn_places)
        values.append(upper[drawn].sum() / lower[drawn].sum())
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = upper.sum() / lower.sum()
    return {"value": value, "low": low, "high": high, "places": places, "seeds": seeds}


def losses(probabilities: Floats, labels: Labels) -> Floats:
    """Return minus the log of the probability of every label, shape (n,)."""
    return -np.log(np.where(labels == 1, probabilities, 1 - probabilities))


def integrated(log_odds: Floats, effect: Distribution) -> Floats:
    """Return probabilities averaged over an effect, shape (n,)."""
    return np.asarray(expit(log_odds[:, None] + effect.quantiles(SHARES)).mean(axis=1))


def joint_loss(effect: Distribution, patients: Patients) -> float:
    """Return minus the log of the probability that an effect gives all labels together."""
    signs = np.where(patients.labels == 1, 1.0, -1.0)
    logs = [log_expit(signs * (patients.log_odds + theta)).sum() for theta in effect.values]
    return -float(logsumexp(np.array(logs), b=effect.weights))


def own_level_loss(log_odds: Floats, labels: Labels) -> float:
    """Return minus log likelihood at the level that fits best, and 1/2 for what that flatters."""
    level = 0.0
    for _ in range(60):
        p = expit(log_odds + level)
        step = (labels - p).sum() / max((p * (1 - p)).sum(), 1e-9)
        level += float(np.clip(step, -1, 1))
    p = np.clip(expit(log_odds + level), 1e-12, 1 - 1e-12)
    return float(losses(p, labels).sum()) + 0.5


def observed_interval(effect: Distribution, log_odds: Floats) -> tuple[float, float]:
    """Return the 90 % interval of an observed rate, the chance of its patients included."""
    shares = (np.arange(200) + 0.5) / 200
    p = expit(log_odds[:, None] + effect.quantiles(shares))
    variances = (p * (1 - p)).mean(axis=0) / len(log_odds)
    return mixed(np.ones(len(shares)), means=p.mean(axis=0), variances=variances).interval(LEVEL)


def training_table(cells: StudyCells) -> pd.DataFrame:
    """Log loss of test patients at training hospitals, and its differences, by budget and size."""
    measured = [
        row
        for budget in cells.budgets
        for cell in cells.all_train(budget)
        for row in _training_rows(cell, with_update=budget == cells.budgets[0])
    ]
    frame = pd.DataFrame(measured)
    if frame.empty:
        return frame
    free = frame[frame["budget"] == WITHOUT_PRIVACY][["seed", "place", "hierarchical"]]
    free = free.rename(columns={"hierarchical": "without privacy"})
    frame = frame.merge(free, on=["seed", "place"], how="left")
    rows: list[Row] = []
    for budget, of_budget in frame.groupby("budget", sort=False):
        for size, (least, below) in SIZES.items():
            inside = of_budget[of_budget["size"].between(least, below, inclusive="left")]
            figures = {name: inside[name] for name in PREDICTORS}
            for first, second in COMPARISONS:
                figures[f"{first} less {second}"] = inside[first] - inside[second]
            for name, figure in figures.items():
                if len(inside) and figure.notna().all():
                    key = {"budget": budget, "patients": size, "figure": name}
                    rows.append(key | ratio(inside, figure, inside["tested"]))
    return pd.DataFrame(rows)


def _training_rows(cell: Cell, with_update: bool) -> Iterator[Row]:
    """Yield the summed losses of every training hospital's test patients."""
    federation = read_federation(cell.folder)
    for site in federation.sites:
        if site.train is None:
            continue
        patients = federation.patients(site.test)
        labels = patients.labels

        def loss(probabilities: Floats, labels: Labels = labels) -> float:
            return float(losses(probabilities, labels).sum())

        effect = federation.hospitals.effect(site.name)
        at_home = np.nan
        if with_update:
            own = federation.patients(site.train)
            others = federation.hospitals.without(site.name)
            updated = others.given_labels(own.log_odds, own.labels)
            at_home = loss(integrated(patients.log_odds, updated))
        yield {
            "seed": cell.seed,
            "budget": cell.budget,
            "place": site.name,
            "size": site.train.unit_count + site.test.unit_count,
            "tested": len(labels),
            "one model": loss(patients.one_model),
            "hierarchical": loss(integrated(patients.log_odds, effect)),
            "updated at home": at_home,
            "pooled": loss(patients.pooled),
        }


def spread_table(cells: StudyCells) -> pd.DataFrame:
    """Standard deviations between hospitals where all train: every run's median and interval."""
    rows: list[Row] = []
    for budget in cells.budgets:
        for cell in cells.all_train(budget):
            for spread in read_federation(cell.folder).hospitals.spreads:
                low, high = spread.interval
                key: Row = {"budget": budget, "seed": cell.seed, "between": spread.between}
                rows.append(key | {"value": spread.standard_deviation, "low": low, "high": high})
    return pd.DataFrame(rows)


def held_out_table(cells: StudyCells) -> pd.DataFrame:
    """Predictions and intervals of event rates at hospitals and in countries held out."""
    rows: list[Row] = []
    for kind, known in KNOWN.items():
        for budget in cells.budgets:
            places = cells.held_out(budget, kind)
            frame = pd.DataFrame([_held_out_row(place, known) for place in places])
            if frame.empty:
                continue
            count = frame["patients"]
            figures = {
                ("", name): ratio(frame, frame[name], count)
                for name in ("one model", "pooled", "own level")
            }
            for name in known:
                for score in ("integrated", "joint"):
                    gap = frame[f"{name} {score}"] - frame["one model"]
                    figures[name, f"{score} less one model"] = ratio(frame, gap, count)
                for figure in ("coverage", "width"):
                    value = frame[f"{name} {figure}"]
                    figures[name, figure] = ratio(frame, value, frame["places"])
            for (name, figure), value in figures.items():
                key = {"held out": kind, "budget": budget, "known": name, "figure": figure}
                rows.append(key | value)
    return pd.DataFrame(rows)


def _held_out_row(place: Place, known: Collection[str]) -> Row:
    """Return what the posterior says of one place, by what is known of it."""
    patients = place.patients
    log_odds = patients.log_odds
    labels = patients.labels
    row: Row = {
        "seed": place.seed,
        "place": place.name,
        "places": 1.0,
        "patients": len(labels),
        "one model": losses(patients.one_model, labels).sum(),
        "pooled": losses(patients.pooled, labels).sum(),
        "own level": own_level_loss(log_odds, labels),
    }
    for name in known:
        # Where no other hospital of its country trains, the country is a new one.
        effect = place.effects.get(name, place.effects[NEW_COUNTRY])
        observed_low, observed_high = observed_interval(effect, log_odds)
        low, high = effect.interval(LEVEL)
        row |= {
            f"{name} integrated": losses(integrated(log_odds, effect), labels).sum(),
            f"{name} joint": joint_loss(effect, patients),
            f"{name} coverage": float(observed_low <= labels.mean() <= observed_high),
            f"{name} width": float(expit(log_odds + high).mean() - expit(log_odds + low).mean()),
        }
    return row


def update_table(cells: StudyCells) -> pd.DataFrame:
    """Share of the one model's gap to a place's own level that its first patients close.

    At the study's first budget. `gain`: what no update does not close.
    """
    rows: list[Row] = []
    for kind, known in UPDATED.items():
        measured = _updates(cells.held_out(cells.budgets[0], kind), known, DRAWS_OF_UPDATES[kind])
        frame = pd.DataFrame(measured)
        if frame.empty:
            continue
        for (name, count), part in frame.groupby(["known", "updated with"], sort=False):
            gap = part["one model"] - part["own level"]
            key = {"held out": kind, "known": name, "patients": count}
            for way in WAYS:
                rows.append(key | {"figure": way} | ratio(part, part["one model"] - part[way], gap))
            for way in ("at home", "private"):
                gain = ratio(part, part["no update"] - part[way], gap)
                rows.append(key | {"figure": f"{way}, gain"} | gain)
            for score in ("one model", "own level", *WAYS):
                value = ratio(part, part[score], part["tested"])
                rows.append(key | {"figure": f"{score}, log loss"} | value)
    return pd.DataFrame(rows)


def _updates(places: Iterator[Place], known: Collection[str], draws: int) -> Iterator[Row]:
    """Yield the losses of a place's other patients after its first ones told of its level."""
    generator = np.random.default_rng(SEED)
    flat = mixed(np.ones(1), means=np.zeros(1), variances=np.full(1, 9.0))
    noise_multiplier = solve_multiplier(RELEASE_EPSILON, DELTA, 1.0, 1)
    for place in places:
        log_odds = place.patients.log_odds
        labels = place.patients.labels
        for draw in range(draws):
            order = generator.permutation(len(labels))
            for count in PATIENTS_OF_UPDATES:
                if count + LEAST_LEFT > len(order):
                    continue
                first = order[:count]
                rest = order[count:]
                noise = noise_multiplier * generator.standard_normal()
                common: Row = {
                    "seed": (place.seed, draw),
                    "place": place.name,
                    "updated with": count,
                    "tested": len(rest),
                    "one model": losses(place.patients.one_model[rest], labels[rest]).sum(),
                    "own level": own_level_loss(log_odds[rest], labels[rest]),
                }
                for name in known:
                    if name not in place.effects:
                        continue
                    effect = place.effects[name]
                    at_effect = log_odds[first] + effect.mean
                    release = residual_sum(at_effect, labels[first], np.arange(count)).sums[0]
                    updated = (
                        effect,
                        effect.given_labels(log_odds[first], labels[first]),
                        effect.given_release(
                            release + noise,
                            noise=noise_multiplier,
                            units=count,
                            log_odds=place.public_log_odds,
                        ),
                        flat.given_labels(log_odds[first], labels[first]),
                    )
                    after = {
                        way: losses(integrated(log_odds[rest], posterior), labels[rest]).sum()
                        for way, posterior in zip(WAYS, updated, strict=True)
                    }
                    yield common | {"known": name} | after


def sets_table(cells: StudyCells) -> pd.DataFrame:
    """Prediction sets in held-out countries, calibrated on some of their patients.

    At the study's first budget: `coverage`, its `worst` over countries and seeds, and mean `size`
    over that of sets without privacy.
    """
    generator = np.random.default_rng(SEED)
    measured = [
        row
        for place in cells.held_out(cells.budgets[0], "countries")
        for row in _sets_of_place(place, generator)
    ]
    frame = pd.DataFrame(measured)
    if frame.empty:
        return frame
    by_setting = frame.groupby(["patients", "epsilon"])
    table = by_setting.agg(
        places=("place", "nunique"),
        coverage=("coverage", "mean"),
        worst=("coverage", "min"),
        size=("size", "mean"),
        size_without_privacy=("size_without_privacy", "mean"),
    )
    return table.assign(ratio=table["size"] / table["size_without_privacy"]).reset_index()


def _sets_of_place(place: Place, generator: np.random.Generator) -> Iterator[Row]:
    """Yield mean coverage and size of a place's sets over draws of the patients that calibrate."""
    p = place.patients.one_model
    labels = place.patients.labels
    of_label = np.where(labels == 1, p, 1 - p)
    for count, epsilon in SETS:
        if len(p) < count + LEAST_LEFT_BY_SETS:
            continue
        noise = np.hypot(1, 1 - LEVEL) * solve_multiplier(epsilon, DELTA, 1.0, 1)
        draws = []
        for _ in range(DRAWS_OF_SETS):
            order = generator.permutation(len(p))
            own = of_label[order[:count]]
            new = order[count:]
            units = np.arange(count)
            counts = set_counts(own, units, bins=NOISED_BINS, level=LEVEL).sums
            counts = counts + noise * generator.standard_normal(len(counts))
            private = private_threshold(counts, noise, LEVEL)
            exact_counts = set_counts(own, units, bins=EXACT_BINS, level=LEVEL).sums
            exact = private_threshold(exact_counts, 0.0, LEVEL)
            covered = (of_label[new] >= private).mean()
            draws.append((covered, _set_size(p[new], private), _set_size(p[new], exact)))
        coverage, size, exact_size = np.mean(draws, axis=0)
        yield {
            "place": place.name,
            "patients": count,
            "epsilon": epsilon,
            "coverage": coverage,
            "size": size,
            "size_without_privacy": exact_size,
        }


def _set_size(p: Floats, threshold: float) -> float:
    """Return the mean number of outcomes in a set."""
    return float((p >= threshold).mean() + (1 - p >= threshold).mean())


TABLES: Mapping[str, Callable[[StudyCells], pd.DataFrame]] = {
    "training": training_table,
    "spread": spread_table,
    "held-out": held_out_table,
    "update": update_table,
    "sets": sets_table,
}


def main() -> None:
    """Write the tables that a study's cells allow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", type=Path, help="folder of a study run with --keep-runs")
    parser.add_argument("tables", type=Path, help="folder that gets a CSV file for each table")
    options = parser.parse_args()
    options.tables.mkdir(parents=True, exist_ok=True)
    cells = read_cells(options.study)
    for name, table in TABLES.items():
        frame = table(cells)
        if not frame.empty:
            frame.to_csv(options.tables / f"{name}.csv", index=False, float_format="%.5g")
            print(f"{name}: {len(frame)} rows")


if __name__ == "__main__":
    main()
