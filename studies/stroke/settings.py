"""Choose the settings of the stroke trial on splits that no table shows: `python -m studies.stroke.settings`.

A NumPy replica of the rounds (one full-batch step of every hospital a round, exact accounting, the
mean of the kept states' predictions) on the simulator's own splits of seeds 101, 102 and 103; the
published runs use 1 to 5. Every method gets 40 tries: `declared` constants, a public `covariance`,
each hospital `alone` at the same epsilon, and `pooled` logistic regression without privacy. Where
settings are several, the search goes through them in turn and takes a step up or down its list
where that lowers the score, the gap in AUROC plus that in NLL to pooled logistic regression (C =
1); where no step does, it changes two settings at random. The lists were written after earlier
tries on the same splits: some 100 of declared constants, 200 of the covariance and 60 of each
hospital alone.

Writes `settings.csv` (every try, in order), `settings.json` (what was chosen) and `covariance.toml`
(public geometry). One minute of one core.
"""

import csv
import json
import math
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fl_dpbayes.config import BuiltIn, load_scenario
from fl_dpbayes.data.sources.stroke import load
from fl_dpbayes.data.virtual_sites import dealt_sites
from fl_dpbayes.privacy import parts_of_units
from fl_dpbayes.privacy.gdp import gdp_epsilon

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "stroke"
SPLITS, TRIES, DELTA, SPREAD, PUBLIC_PATIENTS = (101, 102, 103), 40, 1e-3, 0.5, 300
SCENARIO, RECORDS = load_scenario("stroke"), load(BuiltIn(kind="stroke"), "train")
DECLARED = SCENARIO.model.features
CENTERS, SCALES = np.array(DECLARED.centers), np.array(DECLARED.scales)
TRAINING = {
    "clip_norm": (1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 2.8),
    "size_power": (1.0, 1.25, 1.5, 1.75, 2.0),
    "prior_scale": (0.035, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3),
    "step_size": (0.5, 0.7, 1.0, 1.4),
    # And burn-in, a fifth: what hospitals' levels are estimated from is kept in the other rounds.
    "rounds": ((20, 4), (30, 6), (40, 8), (60, 12)),
}
METHODS = {
    "declared": TRAINING,
    "covariance": {"shrinkage": (0.2, 0.35, 0.5, 0.65, 0.8)} | TRAINING,
    "alone": {
        "clip_norm": (0.25, 0.35, 0.5, 0.7, 1.0, *TRAINING["clip_norm"]),
        "prior_scale": (0.1, 0.14, 0.2, 0.3, 0.5, 0.7, 1.0),
        "step_size": (0.06, 0.09, 0.13, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0),
        "rounds": TRAINING["rounds"],
    },
    "pooled": {"C": tuple(10 ** np.linspace(-3, 2, TRIES))},
}
START = {
    "clip_norm": 2.0,
    "size_power": 1.5,
    "prior_scale": 0.2,
    "step_size": 1.0,
    "rounds": (30, 6),
    "shrinkage": 0.35,
}
COLUMNS = (
    "method",
    "try",
    *dict.fromkeys(key for grid in METHODS.values() for key in grid),
    "clipped",
    "auroc_gap",
    "nll_gap",
    "standard_error",
    "score",
)


def public_geometry() -> tuple[np.ndarray, np.ndarray]:
    """Return means and covariance of 300 patients of hospitals that are too small to take part, (25,) and (25, 25)."""
    small = np.flatnonzero(~np.isin(RECORDS.natural_site, list(SCENARIO.sites)))
    chosen = RECORDS.features[
        np.random.default_rng(0).choice(small, PUBLIC_PATIENTS, replace=False)
    ].astype(float)
    return np.round(chosen.mean(0), 3), np.cov(chosen.T)


def covariance(shrinkage: float) -> np.ndarray:
    """Return (1 - s) times the public covariance plus s times the declared variances, to four places."""
    return np.round((1 - shrinkage) * public_geometry()[1] + shrinkage * np.diag(SCALES**2), 4)


def layer_inputs(shrinkage: float | None) -> np.ndarray:
    """Return what the model's layer sees of all patients, intercept first, (N, 26)."""
    matrix, centers = np.diag(1 / SCALES), CENTERS
    if shrinkage is not None:
        matrix, centers = (
            np.linalg.inv(np.linalg.cholesky(covariance(shrinkage))).T,
            public_geometry()[0],
        )
    return np.column_stack([np.ones(len(RECORDS)), SPREAD * (RECORDS.features - centers) @ matrix])


class Split:
    """The simulator's division of patients for one seed, and pooled logistic regression without privacy on it."""

    def __init__(self, seed: int) -> None:
        self.seed, parts = seed, []
        for site in dealt_sites(SCENARIO.model_copy(update={"seed": seed}), None).sites:
            units = RECORDS.units[site.indices].tolist()
            tested = parts_of_units(units, site.split_key, SCENARIO.data.test_fraction) == "test"
            parts.append((site.indices[~tested], site.indices[tested]))
        (self.train, self.train_site), (self.test, self.test_site) = (
            (np.concatenate(own), np.repeat(np.arange(len(own)), list(map(len, own))))
            for own in zip(*parts, strict=True)
        )
        self.sizes = np.bincount(self.train_site).astype(float)
        self.pooled = np.array(self.measured(self.regression(1.0)))

    def regression(self, inverse_penalty: float) -> np.ndarray:
        """Return pooled logistic regression's probabilities of the test patients."""
        model = LogisticRegression(C=inverse_penalty, max_iter=500)
        model.fit(RECORDS.features[self.train], RECORDS.labels[self.train])
        return model.predict_proba(RECORDS.features[self.test])[:, 1]

    def measured(self, p: np.ndarray) -> tuple[float, float]:
        """Return AUROC and NLL of probabilities of the test patients."""
        labels = RECORDS.labels[self.test]
        return float(roc_auc_score(labels, p)), float(
            -np.log(np.where(labels == 1, p, 1 - p)).mean()
        )

    def gaps(self, p: np.ndarray) -> np.ndarray:
        """Return by how much AUROC is lower and NLL is higher than pooled logistic regression's."""
        return np.array((1, -1)) * (self.pooled - self.measured(p))


def noise_multiplier(epsilon: float | None, rounds: int) -> float:
    """Return sigma of so many full-batch steps within (epsilon, 1e-3); None: no noise."""
    if epsilon is None:
        return 0.0
    return math.sqrt(rounds) / brentq(lambda mu: gdp_epsilon(mu, DELTA) - epsilon, 1e-3, 50)


def rounds_of(
    split: Split,
    inputs: np.ndarray,
    tried: dict,
    epsilon: float | None,
    generator: np.random.Generator,
):
    """Return the test patients' probabilities under the federation's one model, and the share of gradients clipped.

    Log odds move by twice what each row of the softmax model does, and both rows are clipped
    together at C.
    """
    rounds, burn_in = tried["rounds"]
    x, y, tested = inputs[split.train], RECORDS.labels[split.train], inputs[split.test]
    clip, length = tried["clip_norm"] / math.sqrt(2), np.linalg.norm(x, axis=1)
    weights = split.sizes ** tried["size_power"] / (split.sizes ** tried["size_power"]).sum()
    each = (weights / split.sizes)[split.train_site]
    noise = (
        noise_multiplier(epsilon, rounds) * clip * math.sqrt(np.square(weights / split.sizes).sum())
    )
    pull = (weights / split.sizes).sum() / len(weights) / (2 * tried["prior_scale"] ** 2)
    w, found, clipped = np.zeros(x.shape[1]), np.zeros(len(tested)), 0.0
    for number in range(rounds):
        residual = expit(x @ w) - y
        kept = (
            each
            * residual
            * (factor := np.minimum(1, clip / np.maximum(np.abs(residual) * length, 1e-12)))
        )
        clipped += (factor < 1).mean() / rounds
        w = w - 2 * tried["step_size"] * (
            kept @ x + noise * generator.standard_normal(len(w)) + pull * w
        )
        found += expit(tested @ w) * (number >= burn_in) / (rounds - burn_in)
    return found, clipped


def rounds_alone(
    split: Split,
    inputs: np.ndarray,
    tried: dict,
    epsilon: float | None,
    generator: np.random.Generator,
):
    """Return the same where each patient is predicted by a chain of the own hospital alone."""
    rounds, burn_in = tried["rounds"]
    x, y, tested = inputs[split.train], RECORDS.labels[split.train], inputs[split.test]
    clip, length = tried["clip_norm"] / math.sqrt(2), np.linalg.norm(x, axis=1)
    sigma, starts = (
        noise_multiplier(epsilon, rounds),
        np.searchsorted(split.train_site, np.arange(len(split.sizes))),
    )
    w, found, clipped = np.zeros((len(split.sizes), x.shape[1])), np.zeros(len(tested)), 0.0
    for number in range(rounds):
        residual = expit(np.einsum("ij,ij->i", x, w[split.train_site])) - y
        kept = residual * (
            factor := np.minimum(1, clip / np.maximum(np.abs(residual) * length, 1e-12))
        )
        clipped += (factor < 1).mean() / rounds
        sums = np.add.reduceat(
            x * kept[:, None], starts
        ) + sigma * clip * generator.standard_normal(w.shape)
        w = (
            w
            - 2
            * tried["step_size"]
            * (sums + w / (2 * tried["prior_scale"] ** 2))
            / split.sizes[:, None]
        )
        found += (
            expit(np.einsum("ij,ij->i", tested, w[split.test_site]))
            * (number >= burn_in)
            / (rounds - burn_in)
        )
    return found, clipped


def gaps(
    method: str, tried: dict, splits: list[Split], epsilon: float | None = 1.0, draws: int = 10
) -> np.ndarray:
    """Return the gaps in AUROC and NLL and the clipped share of every split and draw of noise, (splits x draws, 3)."""
    if method == "pooled":
        return np.array([[*split.gaps(split.regression(tried["C"])), 0.0] for split in splits])
    inputs, chain = (
        layer_inputs(tried.get("shrinkage")),
        rounds_alone if method == "alone" else rounds_of,
    )
    draws = 2 if method == "alone" else draws
    found = [
        (split, *chain(split, inputs, tried, epsilon, np.random.default_rng([split.seed, draw])))
        for split in splits
        for draw in range(draws)
    ]
    return np.array([[*split.gaps(p), clipped] for split, p, clipped in found])


def search(method: str, splits: list[Split]) -> tuple[dict, list[dict]]:
    """Return the best settings of a method, and a row for each try."""
    grid, rows, scores = METHODS[method], [], {}

    def score(tried: dict) -> float:
        key = tuple(tried.items())
        if key not in scores and len(rows) < TRIES:
            found = gaps(method, tried, splits)
            scores[key] = float(found[:, :2].mean(axis=0).sum())
            error = found[:, :2].sum(axis=1).std(ddof=1) / math.sqrt(len(found))
            rows.append(
                {"method": method, "try": len(rows) + 1}
                | tried
                | {
                    "clipped": round(found[:, 2].mean(), 3),
                    "auroc_gap": round(found[:, 0].mean(), 5),
                    "nll_gap": round(found[:, 1].mean(), 5),
                    "standard_error": round(error, 5),
                    "score": round(scores[key], 5),
                }
            )
        return scores.get(key, math.inf)

    if method == "pooled":
        return min(({"C": c} for c in grid["C"]), key=score), rows
    best, generator = {key: START[key] for key in grid}, np.random.default_rng(0)

    def stepped(tried: dict, key: str, by: int) -> dict:
        values = grid[key]
        return tried | {key: values[min(max(values.index(tried[key]) + by, 0), len(values) - 1)]}

    while len(rows) < TRIES:
        before = best
        for key in grid:
            for direction in (1, -1):
                while score(moved := stepped(best, key, direction)) < score(best):
                    best = moved
        if best == before:
            first, second = generator.choice(list(grid), 2, replace=False)
            moved = stepped(
                stepped(best, first, generator.choice((-1, 1))), second, generator.choice((-1, 1))
            )
            best = min(best, moved, key=score)
    return best, rows


def geometry_text(shrinkage: float) -> str:
    """Return `model.features` with the public covariance, as an assignment on one line."""
    said = (
        f"Means and covariance of {PUBLIC_PATIENTS} patients of the trial's hospitals with "
        "fewer than 20 patients, "
        f"which take no part and are declared public; {shrinkage:g} of the covariance is the declared variances "
        "(studies/stroke/settings.py)"
    )
    value = {
        "centers": public_geometry()[0].tolist(),
        "covariance": covariance(shrinkage).tolist(),
        "spread": SPREAD,
    }
    parts = [
        f"{key} = {json.dumps(one)}"
        for key, one in ({"kind": "standard", "source": said} | value).items()
    ]
    return "model.features = { " + ", ".join(parts) + " }\n"


def main() -> None:
    """Search all methods, and write what was found."""
    splits, table, chosen = [Split(seed) for seed in SPLITS], [], {}
    for method in METHODS:
        best, rows = search(method, splits)
        table += rows
        found = {"settings": best, "tries": len(rows)}
        cases: list = [(f"{epsilon:g}", {}, epsilon) for epsilon in (0.5, 1.0, 2.0, 8.0)] + [
            ("none", {}, None)
        ]
        if "size_power" in best:
            cases.append(("1, weights by size alone", {"size_power": 1.0}, 1.0))
            cases.append(("1, four times the step", {"step_size": 4 * best["step_size"]}, 1.0))
        for name, change, epsilon in cases if method != "pooled" else cases[4:]:
            measured = gaps(method, best | change, splits, epsilon)
            row = dict(
                zip(
                    ("auroc_gap", "nll_gap", "clipped"), measured.mean(axis=0).round(4), strict=True
                )
            )
            found[f"epsilon {name}"] = row
        chosen[method] = found
        print(method, json.dumps(found), flush=True)
    with (RESULTS / "settings.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    (RESULTS / "settings.json").write_text(json.dumps(chosen, indent=2) + "\n")
    (RESULTS / "covariance.toml").write_text(
        geometry_text(chosen["covariance"]["settings"]["shrinkage"])
    )


if __name__ == "__main__":
    main()
