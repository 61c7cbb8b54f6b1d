"""Models without privacy that a federation is held against, each tuned by as many tries.

Settings are chosen on splits 101 to 103, which every earlier search used; judged on others.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from studies.stroke.random_intercepts import fit_random_intercepts

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]
Setting = Mapping[str, float]

SEARCHED = (101, 102, 103)
SEED = 16
ITERATIONS = 1000
NEWTON_STEPS = 30
# A hospital's own level moves by at most this much a step, in log odds.
LONGEST_STEP = 1.0


@dataclass(frozen=True)
class Cohort:
    """Patients.

    Attributes:
        features: What the federation's model sees, shape (N, D).
        labels: 0 or 1, shape (N,).
        hospitals: Shape (N,).
        countries: Shape (N,); all alike where hospitals are not grouped.
    """

    features: Floats
    labels: Integers
    hospitals: Names
    countries: Names

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, chosen: npt.NDArray) -> "Cohort":
        """Return some of the patients, by a mask or by numbers."""
        return Cohort(
            features=self.features[chosen],
            labels=self.labels[chosen],
            hospitals=self.hospitals[chosen],
            countries=self.countries[chosen],
        )


@dataclass(frozen=True)
class Split:
    """How one seed deals the patients.

    Attributes:
        seed: The seed.
        train: Of hospitals that train.
        test: Of the places where predictions are judged.
        outside: Of hospitals that take no part; their records are public.
    """

    seed: int
    train: Cohort
    test: Cohort
    outside: Cohort


@dataclass(frozen=True)
class Rival:
    """A way to predict.

    Attributes:
        name: As tables call it.
        settings: What its search tries.
        predict: A split and a setting -> probabilities of class 1 of the tested patients.
    """

    name: str
    settings: tuple[Setting, ...]
    predict: Callable[[Split, Setting], Floats]


def pooled(split: Split, setting: Setting) -> Floats:
    """Predict by one logistic regression of all training patients."""
    model = LogisticRegression(C=setting["C"], max_iter=ITERATIONS)
    model.fit(split.train.features, split.train.labels)
    return np.asarray(model.predict_proba(split.test.features)[:, 1])


def pooled_with_country(split: Split, setting: Setting) -> Floats:
    """Predict by one logistic regression with an indicator of each country.

    Indicators are multiplied by `country scale`, which divides their penalty by its square.
    """
    countries = np.unique(split.train.countries)

    def inputs(cohort: Cohort) -> Floats:
        indicators = cohort.countries[:, None] == countries
        return np.column_stack([cohort.features, setting["country scale"] * indicators])

    model = LogisticRegression(C=setting["C"], max_iter=ITERATIONS)
    model.fit(inputs(split.train), split.train.labels)
    return np.asarray(model.predict_proba(inputs(split.test))[:, 1])


def random_intercepts(split: Split, setting: Setting) -> Floats:
    """Predict with random intercepts of hospitals in countries."""
    train = split.train
    test = split.test
    model = fit_random_intercepts(
        train.features,
        train.labels,
        hospitals=train.hospitals,
        countries=train.countries,
        slope_sd=setting["slope sd"],
    )
    return model.probabilities(test.features, test.hospitals, test.countries)


def boosting(split: Split, setting: Setting, by: str | None) -> Floats:
    """Predict by boosted trees.

    Args:
        split: The patients.
        setting: `rate`, `leaves` and `trees`.
        by: `countries` or `hospitals`, a further categorical feature; None: the findings alone.
    """
    train = split.train.features
    test = split.test.features
    categorical: list[int] = []
    if by is not None:
        names, numbers = np.unique(getattr(split.train, by), return_inverse=True)
        tested = getattr(split.test, by)
        known = np.searchsorted(names, tested).clip(max=len(names) - 1)
        # A place that did not train is a missing value.
        column = np.where(names[known] == tested, known, np.nan)
        categorical = [train.shape[1]]
        train = np.column_stack([train, numbers])
        test = np.column_stack([test, column])
    model = HistGradientBoostingClassifier(
        learning_rate=setting["rate"],
        max_leaf_nodes=int(setting["leaves"]),
        max_iter=int(setting["trees"]),
        categorical_features=categorical,
        early_stopping=False,
        random_state=SEED,
    )
    model.fit(train, split.train.labels)
    return np.asarray(model.predict_proba(test)[:, 1])


def alone(split: Split, setting: Setting) -> Floats:
    """Predict at every hospital by a logistic regression of its own patients; nothing leaves it.

    Where all of its patients had the same outcome, by its rate, shrunk towards one half.
    """
    probabilities = np.empty(len(split.test))
    for hospital in np.unique(split.test.hospitals):
        here = split.test.hospitals == hospital
        train = split.train.subset(split.train.hospitals == hospital)
        if len(np.unique(train.labels)) < 2:
            probabilities[here] = (train.labels.sum() + 1) / (len(train) + 2)
            continue
        model = LogisticRegression(C=setting["C"], max_iter=ITERATIONS)
        model.fit(train.features, train.labels)
        probabilities[here] = model.predict_proba(split.test.features[here])[:, 1]
    return probabilities


def public_score(split: Split, setting: Setting) -> Floats:
    """Predict by a score of public patients and the hospital's own level; nothing leaves it.

    The level is the mode under N(0, `level sd`^2) and the hospital's training patients.
    """
    score = LogisticRegression(C=setting["C"], max_iter=ITERATIONS)
    score.fit(split.outside.features, split.outside.labels)
    trained = score.decision_function(split.train.features)
    tested = score.decision_function(split.test.features)
    probabilities = np.empty(len(split.test))
    for hospital in np.unique(split.test.hospitals):
        here = split.test.hospitals == hospital
        own = split.train.hospitals == hospital
        level = own_level(trained[own], split.train.labels[own], sd=setting["level sd"])
        probabilities[here] = expit(tested[here] + level)
    return probabilities


def own_level(log_odds: Floats, labels: Integers, sd: float) -> float:
    """Return the mode of a shift of log odds under the prior N(0, sd^2).

    Args:
        log_odds: Shape (n,).
        labels: 0 or 1, shape (n,).
        sd: Above 0.
    """
    level = 0.0
    for _ in range(NEWTON_STEPS):
        p = expit(log_odds + level)
        score = (labels - p).sum() - level / sd**2
        step = score / ((p * (1 - p)).sum() + 1 / sd**2)
        level += float(np.clip(step, -LONGEST_STEP, LONGEST_STEP))
    return level


def grid(**values: Iterable[float]) -> tuple[Setting, ...]:
    """Return all combinations of values."""
    index = pd.MultiIndex.from_product(values.values(), names=list(values))
    return tuple(index.to_frame(index=False).rename(columns=_words).to_dict("records"))


def _words(name: str) -> str:
    return name.replace("_", " ")


TREES = grid(rate=(0.03, 0.1), leaves=(4, 8, 16), trees=(100, 200))
RIVALS = (
    Rival("pooled", grid(C=np.geomspace(0.003, 30, 12).round(4)), pooled),
    Rival(
        "pooled with country",
        grid(C=(0.05, 0.2, 1.0, 5.0), country_scale=(0.3, 1.0, 3.0)),
        pooled_with_country,
    ),
    Rival("random intercepts", grid(slope_sd=np.geomspace(0.1, 5, 12).round(3)), random_intercepts),
    Rival("boosting", TREES, partial(boosting, by=None)),
    Rival("boosting with country", TREES, partial(boosting, by="countries")),
    Rival("alone", grid(C=np.geomspace(0.05, 1.0, 12).round(3)), alone),
    Rival(
        "public score, own level",
        grid(C=(0.04, 0.08, 0.16, 0.32), level_sd=(0.4, 0.6, 0.9)),
        public_score,
    ),
)


def losses(probabilities: Floats, labels: Integers) -> Floats:
    """Return minus the log of the probability of every label, shape (n,)."""
    return -np.log(np.where(labels == 1, probabilities, 1 - probabilities))


def search(rivals: Iterable[Rival], splits: Iterable[Split]) -> pd.DataFrame:
    """Try every setting of every rival.

    Args:
        rivals: The rivals.
        splits: Those of the search.

    Returns:
        A row for each try: `rival`, `setting` as JSON, log loss a patient of each split, their mean
        `nll`, and whether it is the rival's `chosen` one.
    """
    rows = []
    dealt = list(splits)
    for rival in rivals:
        for setting in rival.settings:
            row: dict[str, object] = {"rival": rival.name, "setting": json.dumps(dict(setting))}
            for split in dealt:
                probabilities = rival.predict(split, setting)
                row[f"nll {split.seed}"] = losses(probabilities, split.test.labels).mean()
            rows.append(row)
    tries = pd.DataFrame(rows)
    of_splits = [f"nll {split.seed}" for split in dealt]
    tries["nll"] = tries[of_splits].mean(axis=1)
    tries["chosen"] = tries["nll"] == tries.groupby("rival")["nll"].transform("min")
    return tries


def chosen_settings(tries: pd.DataFrame) -> dict[str, Setting]:
    """Return rival -> the setting that its search chose."""
    chosen = tries[tries["chosen"]].drop_duplicates("rival")
    return {row["rival"]: json.loads(row["setting"]) for row in chosen.to_dict("records")}
