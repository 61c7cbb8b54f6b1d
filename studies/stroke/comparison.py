"""Tables that hold a federation against its rivals, from kept runs of the program.

python -m studies.stroke.comparison search TABLES          tries of every rival, splits 101 to 103
python -m studies.stroke.comparison compare RUNS TABLES    prices of privacy, worth of federation
python -m studies.stroke.comparison validate RUNS TABLES   each large country held out in turn

RUNS holds a folder for each run; a study's is STUDY/runs.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from fl_dpbayes.config import load_scenario
from fl_dpbayes.data import SCENARIO_FILE
from fl_dpbayes.posterior import POSTERIOR_FILE, HospitalModel, predict, with_intercept
from fl_dpbayes.predict.finished_run import FinishedRun, read_run
from fl_dpbayes.predict.hospital_posterior import load_hospitals
from studies.stroke.analysis import integrated
from studies.stroke.rivals import (
    RIVALS,
    SEARCHED,
    SEED,
    Cohort,
    Floats,
    Names,
    Rival,
    Setting,
    Split,
    chosen_settings,
    losses,
    search,
)
from studies.stroke.splits import read_split
from studies.stroke.validation import country_rows, summary_rows

SCENARIO = "stroke"
TRIES_FILE = "rivals-tries.csv"
WITHOUT_PRIVACY = "none"
LEVEL = 0.9
REPLICATES = 2_000
HIERARCHICAL = "hierarchical"
ONE_MODEL = "one model"
PRIVATE = "epsilon 1"
FREE = "without privacy"
# What privacy costs, what federation brings over each hospital alone, then the rest.
COMPARISONS = (
    (f"{HIERARCHICAL}, {PRIVATE}", f"{HIERARCHICAL}, {FREE}"),
    (f"{HIERARCHICAL}, {PRIVATE}", "alone"),
    (f"{HIERARCHICAL}, {PRIVATE}", "public score, own level"),
    (f"{HIERARCHICAL}, {FREE}", "alone"),
    (f"{HIERARCHICAL}, {FREE}", "public score, own level"),
    (f"{HIERARCHICAL}, {PRIVATE}", "pooled"),
    (f"{HIERARCHICAL}, {PRIVATE}", "pooled with country"),
    (f"{HIERARCHICAL}, {PRIVATE}", "boosting"),
    (f"{HIERARCHICAL}, {PRIVATE}", "boosting with country"),
    (f"{HIERARCHICAL}, {PRIVATE}", "random intercepts"),
    (f"{HIERARCHICAL}, {FREE}", "random intercepts"),
    (f"{ONE_MODEL}, {PRIVATE}", f"{ONE_MODEL}, {FREE}"),
    (f"{ONE_MODEL}, {PRIVATE}", "pooled"),
)
# Hospitals of no country that takes part would only be predicted at the mean level.
VALIDATED_RIVALS = ("pooled", "random intercepts")


@dataclass(frozen=True)
class KeptRun:
    """A run of the program that was kept.

    Attributes:
        folder: Where it is.
        seed: Deals its split.
        budget: Its epsilon, or `none`.
        held_out: The one country whose hospitals do not train; "" where all train; None for other
            choices.
    """

    folder: Path
    seed: int
    budget: str
    held_out: str | None

    @cached_property
    def run(self) -> FinishedRun:
        """The run, read back."""
        return read_run(self.folder)

    @cached_property
    def hospitals(self) -> HospitalModel:
        """Its posterior over hospitals."""
        return load_hospitals(self.folder, self.run.scenario, self.run.task)

    @property
    def privacy(self) -> str:
        """Its budget in words."""
        return FREE if self.budget == WITHOUT_PRIVACY else f"epsilon {self.budget}"

    def one_model(self, cohort: Cohort) -> Floats:
        """Predict patients by the federation's one model."""
        samples = self.run.stored.samples
        predicted = predict(
            self.run.build_module(),
            samples.arrays,
            weights=samples.weights,
            features=cohort.features.astype(np.float32),
        )
        return predicted.probabilities[:, 1]

    def hierarchical(self, cohort: Cohort) -> Floats:
        """Predict patients at the level of their hospital, or of a new one of their country."""
        log_odds = with_intercept(cohort.features) @ self.hospitals.state
        probabilities = np.empty(len(cohort))
        for hospital in np.unique(cohort.hospitals):
            here = cohort.hospitals == hospital
            (country,) = np.unique(cohort.countries[here])
            effect = self.hospitals.effect(site=hospital, group=country)
            probabilities[here] = integrated(log_odds[here], effect)
        return probabilities


def read_kept_runs(folder: Path) -> list[KeptRun]:
    """List the finished runs below a folder, in the order of seed and budget."""
    runs = []
    for path in sorted(folder.glob(f"*/{POSTERIOR_FILE}")):
        scenario = load_scenario(str(path.parent / SCENARIO_FILE))
        groups = {spec.group for spec in scenario.sites.values() if spec.role == "held_out"}
        trained = {spec.group for spec in scenario.sites.values() if spec.role == "train"}
        held_out: str | None = None
        if not groups:
            held_out = ""
        elif len(groups) == 1 and not groups & trained:
            held_out = groups.pop()
        epsilon = scenario.privacy.epsilon
        budget = WITHOUT_PRIVACY if epsilon == np.inf else f"{epsilon:g}"
        runs.append(
            KeptRun(folder=path.parent, seed=scenario.seed, budget=budget, held_out=held_out)
        )
    return sorted(runs, key=lambda run: (run.seed, run.budget, run.held_out or ""))


def predictions(
    split: Split,
    runs: Iterable[KeptRun],
    rivals: Iterable[Rival],
    settings: Mapping[str, Setting],
) -> dict[str, Floats]:
    """Predict a split's tested patients in every way.

    Args:
        split: The split.
        runs: Of this split, all hospitals in training.
        rivals: The rivals.
        settings: Rival -> its setting.

    Returns:
        Name -> probabilities of class 1.
    """
    made = {rival.name: rival.predict(split, settings[rival.name]) for rival in rivals}
    for run in runs:
        made[f"{HIERARCHICAL}, {run.privacy}"] = run.hierarchical(split.test)
        made[f"{ONE_MODEL}, {run.privacy}"] = run.one_model(split.test)
    return made


def hospital_sums(split: Split, probabilities: Mapping[str, Floats]) -> pd.DataFrame:
    """Sum every predictor's log loss over each hospital's tested patients.

    Returns:
        A row for each hospital: `seed`, `hospital`, `country`, `tested` and a column for each
        predictor.
    """
    cohort = split.test
    frame = pd.DataFrame({"hospital": cohort.hospitals, "country": cohort.countries, "tested": 1})
    for name, predicted in probabilities.items():
        frame[name] = losses(predicted, cohort.labels)
    sums = frame.groupby(["hospital", "country"], sort=True).sum().reset_index()
    return sums.assign(seed=split.seed)


def drawn_hospitals(countries: Names, generator: np.random.Generator) -> Floats:
    """Draw countries anew, and hospitals anew within each of them.

    Args:
        countries: That of every hospital, shape (K,).
        generator: Draws.

    Returns:
        How often each hospital is drawn, shape (REPLICATES, K).
    """
    names = np.unique(countries)
    each = np.full(len(names), 1 / len(names))
    drawn_countries = generator.multinomial(len(names), each, size=REPLICATES)
    counts = np.zeros((REPLICATES, len(countries)))
    for name, times in zip(names, drawn_countries.T, strict=True):
        members = np.flatnonzero(countries == name)
        # A country that is drawn twice draws its hospitals twice.
        shares = np.full(len(members), 1 / len(members))
        counts[:, members] = generator.multinomial(times * len(members), shares)
    return counts


def comparison_table(sums: pd.DataFrame) -> pd.DataFrame:
    """Log loss a patient of every predictor, and paired differences, with 90 % intervals.

    Args:
        sums: Of all splits, as of `hospital_sums`. Seeds of a hospital are drawn together.

    Returns:
        Rows `figure`, `value`, `low`, `high`, `splits`, `hospitals`, `patients`.
    """
    predictors = [name for name in sums if name not in {"hospital", "country", "tested", "seed"}]
    rows = []
    figures: dict[str, tuple[str, str | None]] = {name: (name, None) for name in predictors}
    for name, rival in COMPARISONS:
        if name in sums and rival in sums:
            figures[f"{name} less {rival}"] = (name, rival)
    for figure, (first, second) in figures.items():
        columns = [first] if second is None else [first, second]
        measured = sums.dropna(subset=columns)
        value = measured[first] if second is None else measured[first] - measured[second]
        keys = [measured["country"], measured["hospital"]]
        above = value.groupby(keys).sum()
        below = measured["tested"].groupby(keys).sum().to_numpy(np.float64)
        countries = above.index.get_level_values("country").to_numpy(str)
        drawn = drawn_hospitals(countries, np.random.default_rng(SEED))
        ratios = (drawn @ above.to_numpy(np.float64)) / (drawn @ below)
        low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        rows.append(
            {
                "figure": figure,
                "value": above.sum() / below.sum(),
                "low": low,
                "high": high,
                "splits": measured["seed"].nunique(),
                "hospitals": len(above),
                "patients": int(below.sum()),
            }
        )
    return pd.DataFrame(rows)


def auroc_table(made: Iterable[tuple[Split, Mapping[str, Floats]]]) -> pd.DataFrame:
    """AUROC over all tested patients of a split, its mean over splits, and its range."""
    rows = [
        {
            "predictor": name,
            "seed": split.seed,
            "auroc": roc_auc_score(split.test.labels, probabilities),
        }
        for split, of_split in made
        for name, probabilities in of_split.items()
    ]
    by_predictor = pd.DataFrame(rows).groupby("predictor", sort=False)["auroc"]
    return by_predictor.agg(["mean", "min", "max", "count"]).reset_index()


def compare(
    runs: Sequence[KeptRun], rivals: Sequence[Rival], tries: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Make the tables of runs in which all hospitals train.

    Args:
        runs: The runs.
        rivals: What they are held against.
        tries: Of the rivals' search.

    Returns:
        Table -> frame: `rivals` (log loss) and `rivals-auroc`.
    """
    of_all = [run for run in runs if run.held_out == ""]
    made = []
    for seed in sorted({run.seed for run in of_all}):
        of_seed = [run for run in of_all if run.seed == seed]
        split = read_split(of_seed[0].run.scenario)
        made.append((split, predictions(split, of_seed, rivals, chosen_settings(tries))))
    sums = pd.concat([hospital_sums(split, of_split) for split, of_split in made])
    return {"rivals": comparison_table(sums), "rivals-auroc": auroc_table(made)}


def held_out_split(split: Split, country: str) -> Split:
    """Test all patients of a country, of small hospitals too, on the others' training patients."""
    parts = (split.train, split.test, split.outside)
    inside = [part.subset(part.countries == country) for part in parts]
    return Split(
        seed=split.seed,
        train=split.train.subset(split.train.countries != country),
        test=joined(inside),
        outside=split.outside.subset(split.outside.countries != country),
    )


def joined(cohorts: Sequence[Cohort]) -> Cohort:
    """Put cohorts one after the other."""
    return Cohort(
        features=np.concatenate([cohort.features for cohort in cohorts]),
        labels=np.concatenate([cohort.labels for cohort in cohorts]),
        hospitals=np.concatenate([cohort.hospitals for cohort in cohorts]),
        countries=np.concatenate([cohort.countries for cohort in cohorts]),
    )


def validate(
    split: Split, runs: Sequence[KeptRun], countries: Sequence[str], tries: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Make the tables of internal-external validation by country.

    Args:
        split: In which all hospitals train.
        runs: Of these, those of the split's seed that hold out one country count.
        countries: Held out in turn.
        tries: Of the rivals' search.

    Returns:
        Table -> frame: `validation` by country and `validation-summary`.
    """
    settings = chosen_settings(tries)
    rows: list[Mapping[str, object]] = []
    for country in countries:
        held_out = held_out_split(split, country)
        labels = held_out.test.labels
        for rival in RIVALS:
            if rival.name in VALIDATED_RIVALS:
                predicted = rival.predict(held_out, settings[rival.name])
                rows.append(country_rows(rival.name, country, predicted, labels))
        for run in runs:
            if run.held_out == country and run.seed == split.seed:
                name = f"{HIERARCHICAL}, {run.privacy}"
                predicted = run.hierarchical(held_out.test)
                rows.append(country_rows(name, country, predicted, labels))
    by_country = pd.DataFrame(rows)
    return {"validation": by_country, "validation-summary": summary_rows(by_country)}


def large_countries(split: Split, least: int = 200) -> list[str]:
    """Return countries of `least` patients and more whose hospitals take part."""
    parts = (split.train, split.test, split.outside)
    dealt = np.concatenate([part.countries for part in parts])
    names, counts = np.unique(dealt, return_counts=True)
    takes_part = np.isin(names, split.train.countries)
    return [str(name) for name in names[takes_part & (counts >= least)]]


def write_tables(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write each table as a CSV file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.5g")
        print(f"{name}: {len(frame)} rows")


def stroke_split(seed: int) -> Split:
    """Deal the stroke trial's patients."""
    return read_split(load_scenario(SCENARIO, [f"seed={seed}"]))


def main() -> None:
    """Search, compare or validate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["search", "compare", "validate"])
    parser.add_argument("folders", nargs="+", type=Path, help="RUNS, but for a search; TABLES")
    options = parser.parse_args()
    *runs_folders, tables = options.folders
    if options.what == "search":
        write_tables({"rivals-tries": search(RIVALS, map(stroke_split, SEARCHED))}, tables)
        return
    runs = [run for folder in runs_folders for run in read_kept_runs(folder)]
    tries = pd.read_csv(tables / TRIES_FILE)
    if options.what == "compare":
        write_tables(compare(runs, RIVALS, tries), tables)
        return
    split = stroke_split(min(run.seed for run in runs))
    write_tables(validate(split, runs, large_countries(split), tries), tables)


if __name__ == "__main__":
    main()
