"""Tables that hold federations against their rivals."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from studies.stroke.federation import FREE, Federation
from studies.stroke.resampling import ratio
from studies.stroke.rivals import (
    RIVALS,
    Cohort,
    Floats,
    Rival,
    Setting,
    Split,
    chosen_settings,
    losses,
)
from studies.stroke.validation import country_rows, summary_rows

HIERARCHICAL = "hierarchical"
ONE_MODEL = "one model"
PRIVATE = "epsilon 1"
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


def predictions(
    split: Split,
    federations: Iterable[Federation],
    rivals: Iterable[Rival],
    settings: Mapping[str, Setting],
) -> dict[str, Floats]:
    """Predict a split's tested patients in every way.

    Args:
        split: The split.
        federations: Of this split, all hospitals in training; those of one budget differ by noise.
        rivals: The rivals.
        settings: Rival -> its setting.

    Returns:
        Name -> probabilities of class 1, a row for each draw of the noise, shape (R, n).
    """
    made = {rival.name: [rival.predict(split, settings[rival.name])] for rival in rivals}
    for federation in federations:
        privacy = federation.privacy
        of_levels = federation.hierarchical(split.test)
        of_one = federation.one_model(split.test.features)
        made.setdefault(f"{HIERARCHICAL}, {privacy}", []).append(of_levels)
        made.setdefault(f"{ONE_MODEL}, {privacy}", []).append(of_one)
    return {name: np.stack(rows) for name, rows in made.items()}


def hospital_sums(split: Split, probabilities: Mapping[str, Floats]) -> pd.DataFrame:
    """Sum every predictor's log loss, its mean over draws, over each hospital's tested patients.

    Args:
        split: The patients.
        probabilities: As of `predictions`.

    Returns:
        A row for each hospital: `seed`, `hospital`, `country`, `tested` and a column for each
        predictor.
    """
    cohort = split.test
    frame = pd.DataFrame({"hospital": cohort.hospitals, "country": cohort.countries, "tested": 1})
    for name, predicted in probabilities.items():
        frame[name] = losses(predicted, cohort.labels).mean(axis=0)
    sums = frame.groupby(["hospital", "country"], sort=True).sum().reset_index()
    return sums.assign(seed=split.seed)


def comparison_table(sums: pd.DataFrame) -> pd.DataFrame:
    """Log loss a patient of every predictor, and paired differences, with 90 % intervals.

    Args:
        sums: Of all splits, as of `hospital_sums`. Seeds of a hospital are drawn together.

    Returns:
        Rows `figure`, `value`, `low`, `high`, `hospitals`, `splits`, `patients`.
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
        rows.append(
            {
                "figure": figure,
                **ratio(measured, value, measured["tested"]),
                "splits": measured["seed"].nunique(),
                "patients": int(measured["tested"].sum()),
            }
        )
    return pd.DataFrame(rows)


def auroc_table(made: Iterable[tuple[Split, Mapping[str, Floats]]]) -> pd.DataFrame:
    """AUROC over all tested patients of a split, its mean over splits and draws, and its range."""
    rows = [
        {"predictor": name, "auroc": roc_auc_score(split.test.labels, probabilities)}
        for split, of_split in made
        for name, of_draws in of_split.items()
        for probabilities in of_draws
    ]
    by_predictor = pd.DataFrame(rows).groupby("predictor", sort=False)["auroc"]
    return by_predictor.agg(["mean", "min", "max", "count"]).reset_index()


def compare(
    splits: Iterable[Split],
    federations: Sequence[Federation],
    rivals: Sequence[Rival],
    tries: pd.DataFrame,
) -> dict[str, pd.DataFrame]:
    """Make the tables of federations in which all hospitals train.

    Args:
        splits: The splits.
        federations: Those of the splits' seeds in which nothing is held out count.
        rivals: What they are held against.
        tries: Of the rivals' search.

    Returns:
        Table -> frame: `rivals` (log loss) and `rivals-auroc`.
    """
    settings = chosen_settings(tries)
    made = []
    for split in splits:
        of_split = [each for each in federations if trains_all(each) and each.seed == split.seed]
        made.append((split, predictions(split, of_split, rivals, settings)))
    sums = pd.concat([hospital_sums(split, of_split) for split, of_split in made])
    return {"rivals": comparison_table(sums), "rivals-auroc": auroc_table(made)}


def covariance_tables(
    splits: Iterable[Split],
    federations: Sequence[Federation],
    whitened: Iterable[Split],
    with_covariance: Sequence[Federation],
) -> dict[str, pd.DataFrame]:
    """Hold a public covariance against declared scales, on the same patients.

    Args:
        splits: The splits.
        federations: By declared scales.
        whitened: The splits as a model with the covariance sees them.
        with_covariance: Federations by the covariance.

    Returns:
        Table -> frame: `covariance`, differences in log loss.
    """
    keys = ["seed", "country", "hospital", "tested"]
    declared = _federations_sums(splits, federations)
    public = _federations_sums(whitened, with_covariance)
    both = declared.merge(public, on=keys, suffixes=("", ", public covariance"), validate="1:1")
    rows = []
    for name in declared.columns.difference(keys, sort=False):
        with_name = f"{name}, public covariance"
        if with_name in both:
            gap = both[with_name] - both[name]
            rows.append({"predictor": name, **ratio(both, gap, both["tested"])})
    return {"covariance": pd.DataFrame(rows)}


def _federations_sums(splits: Iterable[Split], federations: Sequence[Federation]) -> pd.DataFrame:
    sums = []
    for split in splits:
        of_split = [each for each in federations if trains_all(each) and each.seed == split.seed]
        sums.append(hospital_sums(split, predictions(split, of_split, rivals=(), settings={})))
    return pd.concat(sums)


def trains_all(federation: Federation) -> bool:
    """Return whether no hospital is held out."""
    return not federation.held_out


def held_out_split(split: Split, hospitals: Collection[str]) -> Split:
    """Test all patients of some hospitals, on the others' training patients."""
    parts = (split.train, split.test, split.outside)
    train, test, outside = (np.isin(part.hospitals, list(hospitals)) for part in parts)
    return Split(
        seed=split.seed,
        train=split.train.subset(~train),
        test=joined(
            [
                split.train.subset(train),
                split.test.subset(test),
                split.outside.subset(outside),
            ]
        ),
        outside=split.outside.subset(~outside),
    )


def hospitals_of(split: Split, country: str) -> list[str]:
    """Return all hospitals of a country, small ones too."""
    everyone = joined([split.train, split.test, split.outside])
    return list(np.unique(everyone.hospitals[everyone.countries == country]))


def joined(cohorts: Sequence[Cohort]) -> Cohort:
    """Put cohorts one after the other."""
    return Cohort(
        features=np.concatenate([cohort.features for cohort in cohorts]),
        labels=np.concatenate([cohort.labels for cohort in cohorts]),
        hospitals=np.concatenate([cohort.hospitals for cohort in cohorts]),
        countries=np.concatenate([cohort.countries for cohort in cohorts]),
    )


def validate(
    split: Split,
    federations: Sequence[Federation],
    countries: Sequence[str],
    tries: pd.DataFrame,
) -> dict[str, pd.DataFrame]:
    """Make the tables of internal-external validation by country.

    Args:
        split: In which all hospitals train.
        federations: Those of the split's seed that hold out one country count.
        countries: Held out in turn.
        tries: Of the rivals' search.

    Returns:
        Table -> frame: `validation` by country and `validation-summary`.
    """
    settings = chosen_settings(tries)
    rows: list[Mapping[str, object]] = []
    for country in countries:
        held_out = held_out_split(split, hospitals_of(split, country))
        labels = held_out.test.labels
        for rival in RIVALS:
            if rival.name in VALIDATED_RIVALS:
                predicted = rival.predict(held_out, settings[rival.name])
                rows.append(country_rows(rival.name, country, predicted, labels))
        for federation in federations:
            if federation.held_out_country == country and federation.seed == split.seed:
                name = f"{HIERARCHICAL}, {federation.privacy}"
                predicted = federation.hierarchical(held_out.test)
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
