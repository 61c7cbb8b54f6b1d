"""Writes the JSON of docs/results/stroke, from the FOLDER of studies/stroke/cells.py.

    python -m studies.stroke.measure FOLDER

Every figure has a 90 % interval: seeds and places (hospitals or countries) are drawn anew together,
1,000 times.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp
from sklearn.linear_model import LogisticRegression

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "stroke"
Floats = npt.NDArray[np.float64]
Row = dict[str, Any]
EPSILONS = ("0.5", "1", "2", "8", "none")
PATIENTS = (10, 20, 50, 100, 200)
LEAST_LEFT = 20
SIZES = {"20 to 49": (20, 50), "50 to 99": (50, 100), "100 and more": (100, 10_000)}
PREDICTORS = ("one", "hierarchical", "home", "alone", "pooled", "published", "no privacy")
LEVEL, REPLICATES = 0.9, 1000
# Draws of the first patients of a place, from each cell.
REPEATS = {"fifth": 1, "country": 4, "heart": 4}
# What is known of a place that is held out: of hospitals nothing or their country, of countries
# that they are new.
KNOWN = {
    "fifth": ("unknown", "country known", "new country"),
    "country": ("new country", "unknown"),
}


def measure(folder: Path) -> None:
    """Write every JSON file of the page from a folder of cells."""
    for name, function in (
        ("training", training),
        ("spread", spread),
        ("new", new_hospitals),
        ("update", updating),
        ("heart", heart),
        ("program", program),
    ):
        write(name, function(folder))
        print(name, flush=True)


def write(name: str, rows: Mapping[str, Any]) -> None:
    """Write one file of results, figures to five digits."""
    text = json.dumps({"rows": rows}, indent=1, default=lambda value: value.item())
    short = re.sub(r"-?\d+\.\d{6,}(e-?\d+)?", lambda found: f"{float(found.group()):.5g}", text)
    (RESULTS / f"{name}.json").write_text(short + "\n", encoding="utf-8")


def cells(
    folder: Path, kind: str, epsilon: str
) -> Iterator[tuple[str, int, dict[str, npt.NDArray]]]:
    """Yield the cells of a kind at one epsilon, in order of their names: what is held out, the split's seed, arrays."""
    for path in sorted(folder.glob(f"{kind}-{epsilon}-*.npz")):
        left, seed, _ = path.stem.removeprefix(f"{kind}-{epsilon}-").rsplit("-", 2)
        with np.load(path) as content:
            yield left, int(seed), dict(content)


def losses(p: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """Return minus log likelihood of every label, (n,)."""
    return -np.log(np.where(labels == 1, p, 1 - p))


def ratio(above: Floats, below: Floats) -> Row:
    """Return sum(above) / sum(below) over seeds and places, (S, P), with an interval over both, drawn anew together."""
    draw = np.random.default_rng(16)
    seeds, places = above.shape
    values = []
    for _ in range(REPLICATES):
        chosen = np.ix_(draw.integers(seeds, size=seeds), draw.integers(places, size=places))
        values.append(above[chosen].sum() / below[chosen].sum())
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "value": above.sum() / below.sum(),
        "low": low,
        "high": high,
        "places": places,
        "seeds": seeds,
    }


def per_place(values: Floats, place: npt.NDArray[np.int64], places: int) -> Floats:
    """Sum values by place, (places,)."""
    return np.bincount(place, values, places)


def auroc(p: Floats, labels: npt.NDArray[np.int64], weights: Floats) -> float:
    """Return the area under the ROC curve of weighted records."""
    order = np.argsort(p, kind="stable")
    sick, well = (weights * labels)[order], (weights * (1 - labels))[order]
    return float(sick @ (np.cumsum(well) - well / 2) / (sick.sum() * well.sum()))


def training(folder: Path) -> dict[str, Row]:
    """Measure predictors at training hospitals, with declared constants and with a public covariance."""
    return of_splits(folder, "split", "") | of_splits(folder, "covariance", ", covariance")


def of_splits(folder: Path, kind: str, what: str) -> dict[str, Row]:
    """Measure gaps in NLL and AUROC between predictors at training hospitals, at every epsilon."""
    rows: dict[str, Row] = {}
    free = {seed: one["hierarchical"] for _, seed, one in cells(folder, "split", "none")}
    for epsilon in EPSILONS:
        cut = [
            one | {"no privacy": free[seed]}
            for _, seed, one in cells(folder, kind, epsilon)
            if seed in free
        ]
        if not cut:
            continue
        names, patients = cut[0]["names"], cut[0]["patients"]
        keys = [
            key
            for key in PREDICTORS
            if key in cut[0] and not (key == "alone" and epsilon == "none")
        ]
        counts = np.stack(
            [per_place(np.ones(len(one["label"])), one["site"], len(names)) for one in cut]
        )
        sums = {
            key: np.stack(
                [per_place(losses(one[key], one["label"]), one["site"], len(names)) for one in cut]
            )
            for key in keys
        }
        at = f"epsilon {epsilon}{what}"
        for key in keys:
            rows[f"{key}, {at}, NLL"] = ratio(sums[key], counts)
            rows[f"{key}, {at}, AUROC"] = {
                "value": np.mean([auroc(o[key], o["label"], np.ones(len(o["label"]))) for o in cut])
            }
        for one, other in (
            ("one", "pooled"),
            ("hierarchical", "one"),
            ("hierarchical", "alone"),
            ("hierarchical", "pooled"),
            ("home", "hierarchical"),
            ("home", "one"),
            ("hierarchical", "published"),
            ("hierarchical", "no privacy"),
        ):
            if one in sums and other in sums:
                rows[f"{one} less {other}, {at}, NLL"] = ratio(sums[one] - sums[other], counts)
        rows[f"pooled less one, {at}, AUROC"] = auroc_gap(cut, len(names))
        for size, (least, below) in SIZES.items():
            inside = (patients >= least) & (patients < below)
            for key in keys:
                rows[f"{key}, {at}, {size} patients, NLL"] = ratio(
                    sums[key][:, inside], counts[:, inside]
                )
            better = min(
                (key for key in ("one", "alone") if key in sums),
                key=lambda key: sums[key][:, inside].sum(),
            )
            gap = sums["hierarchical"][:, inside] - sums[better][:, inside]
            rows[f"hierarchical less the better, {at}, {size} patients, NLL"] = ratio(
                gap, counts[:, inside]
            )
    return rows


def auroc_gap(cut: Sequence[Mapping[str, npt.NDArray]], places: int) -> Row:
    """Return the pooled model's AUROC less the one model's, with an interval over splits and hospitals."""

    def gap(chosen: Sequence[int], weights: Floats) -> float:
        parts = [(cut[at], weights[cut[at]["site"]]) for at in chosen]
        return float(
            np.mean(
                [
                    auroc(o["pooled"], o["label"], w) - auroc(o["one"], o["label"], w)
                    for o, w in parts
                ]
            )
        )

    draw = np.random.default_rng(16)
    values = []
    for _ in range(REPLICATES // 2):
        times = draw.multinomial(places, np.ones(places) / places).astype(float)
        values.append(gap(draw.integers(len(cut), size=len(cut)).tolist(), times))
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = gap(range(len(cut)), np.ones(places))
    return {"value": value, "low": low, "high": high, "places": places, "seeds": len(cut)}


def spread(folder: Path) -> dict[str, Row]:
    """Measure the standard deviations between hospitals against the same estimate from all patients without privacy."""
    from studies.stroke.cells import Cell, country_of, dealt, scenario_of

    own = dealt(scenario_of(Cell("split", 1.0, 1)))
    countries = np.unique([country_of(name) for name in own.names], return_inverse=True)[1]
    likeliest = dict(
        zip(("one level", "hospitals", "groups"), maximum_likelihood(own, countries), strict=True)
    )
    ((_, _, every),) = cells(folder, "all", "none")
    truth = {name: float(every[f"sd {name}"][0]) for name in likeliest}
    rows: dict[str, Row] = {
        f"{name}, all patients": {"value": value} for name, value in truth.items()
    }
    rows |= {f"{name}, maximum likelihood": {"value": value} for name, value in likeliest.items()}
    for epsilon in EPSILONS:
        found = [one for kind in ("split", "spread") for _, _, one in cells(folder, kind, epsilon)]
        for name, value in truth.items() if found else ():
            told = np.stack([one[f"sd {name}"] for one in found])
            inside = (told[:, 1] <= value) & (value <= told[:, 2])
            low, high = np.quantile(told[:, 0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            error = np.abs(told[:, 0] / value - 1)
            at = f"{name}, epsilon {epsilon}"
            rows[at] = {
                "value": told[:, 0].mean(),
                "low": low,
                "high": high,
                "seeds": len(told),
                "interval": told[:, 1:].mean(axis=0).tolist(),
            }
            rows[f"{at}, off by"] = share(error) | {"largest": error.max()}
            rows[f"{at}, within a fifth"] = share(error <= 0.2)
            rows[f"{at}, coverage"] = share(inside)
    return rows


def share(values: npt.NDArray) -> Row:
    """Return the mean of values over seeds, (S,), with an interval over them."""
    return ratio(values[:, None].astype(float), np.ones((len(values), 1))) | {"places": None}


def maximum_likelihood(own: Any, groups: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """Return the sd between hospitals of one level, then between hospitals and groups of two, by maximum likelihood.

    A logistic model of all patients with random intercepts, integrated on a grid; slopes are those
    within hospitals. `own`: all records by hospital. `groups`: the group of every hospital.
    """
    signs, width = np.where(own.labels == 1, 1.0, -1.0), own.inputs.shape[1]
    # An indicator of 3 makes the penalty of each hospital's intercept small.
    indicators = 3.0 * np.eye(len(own.names))[own.site]
    within = LogisticRegression(max_iter=2000).fit(
        np.column_stack([own.inputs, indicators]), own.labels
    )
    odds, places = (
        own.inputs @ within.coef_[0, :width] + within.intercept_[0],
        np.linspace(-4, 4, 401),
    )
    starts = np.searchsorted(own.site, np.arange(len(own.names)))
    told = np.stack(
        [np.add.reduceat(log_expit(signs * (odds + place)), starts) for place in places], axis=1
    )
    likelihood, members = (
        np.exp(told - told.max(axis=1, keepdims=True)),
        np.eye(groups.max() + 1)[:, groups],
    )

    def log_prior(middle: float, log_sd: float) -> Floats:
        above = -np.square((places - middle) / np.exp(log_sd)) / 2
        return np.asarray(above - logsumexp(above))

    def one_level(values: Floats) -> float:
        return -float(np.log(likelihood @ np.exp(log_prior(*values))).sum())

    def two_levels(values: Floats) -> float:
        near = np.exp(-np.square((places[:, None] - places) / np.exp(values[2])) / 2)
        of_group = members @ np.log(likelihood @ (near / near.sum(axis=0)) + 1e-300)
        return -float(logsumexp(of_group + log_prior(*values[:2]), axis=1).sum())

    one, two = (
        minimize(loss, start, method="Nelder-Mead").x
        for loss, start in ((one_level, [0, -0.5]), (two_levels, [0, -1, -1]))
    )
    return float(np.exp(one[1])), float(np.exp(two[2])), float(np.exp(two[1]))


def exact_loss(odds: Floats, labels: npt.NDArray[np.int64]) -> float:
    """Return minus log likelihood at a place's own level: fitted to these patients, and 1/2 for what that flatters."""
    level = 0.0
    for _ in range(60):
        p = expit(odds + level)
        level += float(np.clip((labels - p).sum() / max((p * (1 - p)).sum(), 1e-9), -1, 1))
    return float(losses(np.clip(expit(odds + level), 1e-12, 1 - 1e-12), labels).sum()) + 0.5


def joint_loss(effect: Any, odds: Floats, labels: npt.NDArray[np.int64]) -> float:
    """Return minus the log of the probability that an effect's distribution gives all labels of a place together."""
    signs = np.where(labels == 1, 1.0, -1.0)
    told = np.array([log_expit(signs * (odds + place)).sum() for place in effect.values])
    return -float(logsumexp(told, b=effect.weights))


def rate_interval(effect: Any, odds: Floats) -> tuple[float, float, float]:
    """Return the 90 % interval of an observed rate, the chance of patients in it, and the width of the rate's own."""
    from fl_dpbayes.posterior.hierarchical.distribution import mixed

    low, high = effect.interval(LEVEL)
    p = expit(odds[:, None] + effect.quantiles((np.arange(200) + 0.5) / 200))
    observed = mixed(np.ones(200), p.mean(axis=0), (p * (1 - p)).mean(axis=0) / len(odds)).interval(
        LEVEL
    )
    return *observed, float(expit(odds + high).mean() - expit(odds + low).mean())


def places_of(
    folder: Path, kind: str, epsilon: str
) -> Iterator[tuple[int, str, dict[str, Any], dict[str, Any]]]:
    """Yield every held-out place of a kind of cells: seed, name, its patients, and its effect by what is known of it.

    Fifths give hospitals; countries and single hospitals are a place each.
    """
    from fl_dpbayes.posterior.hierarchical.distribution import Distribution
    from studies.stroke.cells import country_of

    for left, seed, found in cells(folder, kind, epsilon):
        if left == "nobody":
            continue
        effects = {
            key[7:]: Distribution(*value)
            for key, value in found.items()
            if key.startswith("effect")
        }
        for number in np.unique(found["site"]) if kind == "fifth" else [None]:
            chosen = slice(None) if number is None else found["site"] == number
            place = left if number is None else str(found["names"][number])
            known = {"unknown": effects[""], "new country": effects["new"]}
            if kind == "fifth" and country_of(place) in effects:
                known["country known"] = effects[country_of(place)]
            patients = {
                key: found[key][chosen] for key in ("label", "site", "one", "pooled", "odds")
            }
            yield seed, place, patients | {"public": found["public odds"]}, known


def table(rows: Sequence[tuple[int, str, Mapping[str, float]]]) -> dict[str, Floats]:
    """Turn rows of (seed, place, figures) into arrays by figure, (S, P), 0 where a place has none."""
    seeds, places = sorted({seed for seed, _, _ in rows}), sorted({place for _, place, _ in rows})
    found: dict[str, Floats] = {}
    for seed, place, figures in rows:
        for key, value in figures.items():
            made = found.setdefault(key, np.zeros((len(seeds), len(places))))
            made[seeds.index(seed), places.index(place)] = value
    return found


def new_hospitals(folder: Path) -> dict[str, Row]:
    """Measure predictions and intervals at hospitals and in countries that were held out."""
    from studies.stroke.cells import integrated

    rows: dict[str, Row] = {}
    for kind, what in (("fifth", "hospitals"), ("country", "countries")):
        for epsilon in ("1", "8", "none"):
            measured = []
            for seed, place, own, known in places_of(folder, kind, epsilon):
                odds, labels = own["odds"], own["label"]
                figures = {
                    "patients": len(labels),
                    "places": 1.0,
                    "one": losses(own["one"], labels).sum(),
                    "pooled": losses(own["pooled"], labels).sum(),
                    "exact": exact_loss(odds, labels),
                }
                for name in KNOWN[kind]:
                    # Where no other hospital of its country trains, the country is a new one.
                    effect = known.get(name, known["new country"])
                    low, high, width = rate_interval(effect, odds)
                    figures |= {
                        f"{name} integrated": losses(integrated(odds, effect), labels).sum(),
                        f"{name} joint": joint_loss(effect, odds, labels),
                        f"{name} width": width,
                        f"{name} held": float(low <= labels.mean() <= high),
                    }
                measured.append((seed, place, figures))
                if kind == "country" and epsilon == "1" and seed == 1:
                    low, high, _ = rate_interval(known["new country"], odds)
                    rows[f"rate, {place}"] = {
                        "value": labels.mean(),
                        "low": low,
                        "high": high,
                        "patients": len(labels),
                        "one": own["one"].mean(),
                        "auroc": auroc(own["one"], labels, np.ones(len(labels))),
                    }
            if not measured:
                continue
            found, at = table(measured), f"{what}, epsilon {epsilon}"
            for key in ("one", "pooled", "exact", *(f"{name} integrated" for name in KNOWN[kind])):
                rows[f"{key}, {at}, NLL"] = ratio(found[key], found["patients"])
            each = np.maximum(found["patients"], 1)
            for name in KNOWN[kind]:
                for key in ("integrated", "joint"):
                    gap = found[f"{name} {key}"] - found["one"]
                    rows[f"{name} {key} less one, {at}"] = ratio(gap, found["patients"])
                    rows[f"{name} {key} less one, {at}, places alike"] = ratio(
                        gap / each, found["places"]
                    )
                rows[f"{name} coverage, {at}"] = ratio(found[f"{name} held"], found["places"])
                rows[f"{name} width, {at}"] = ratio(found[f"{name} width"], found["places"])
    return rows


def updating(folder: Path) -> dict[str, Row]:
    """Measure which share of the one model's gap to a place's own level its first labelled patients close.

    At new hospitals, at those of a known country, and in new countries. `gain`: what no update does
    not close.
    """
    hospitals = {"unknown": "new hospital", "country known": "country known"}
    measured = updates_of(folder, "fifth", "1", hospitals) | updates_of(
        folder, "country", "1", {"new country": "new country"}
    )
    rows = {}
    for (name, count), sums in measured.items():
        for way in ("no update", "at home", "private", "alone"):
            rows[f"{name}, {way}, {count} patients"] = ratio(
                sums["one"] - sums[way], sums["one"] - sums["own level"]
            )
        for way in ("at home", "private"):
            gain = ratio(sums["no update"] - sums[way], sums["one"] - sums["own level"])
            rows[f"{name}, {way}, gain, {count} patients"] = gain
    return rows


def updates_of(
    folder: Path, kind: str, epsilon: str, names: Mapping[str, str]
) -> dict[tuple[str, int], dict[str, Floats]]:
    """Update places that were held out with their first labelled patients.

    At home, and by a release at epsilon 1 and delta .001. `names`: what is known of a place -> what
    it is called. Returns minus log likelihood of its other patients by seed and place, (S, P), for
    every name and number of patients.
    """
    from fl_dpbayes.posterior.hierarchical.distribution import mixed
    from fl_dpbayes.predict.update import residual_sum
    from fl_dpbayes.privacy.planned_noise import solve_multiplier
    from studies.stroke.cells import integrated

    draw, flat = np.random.default_rng(16), mixed(np.ones(1), np.zeros(1), np.full(1, 9.0))
    sigma = solve_multiplier(1.0, 1e-3, 1.0, 1)
    measured: dict[tuple[str, int], list[tuple[int, str, dict[str, float]]]] = {}
    drawn = (
        (row, draw.permutation(len(row[2]["label"])), again)
        for row in places_of(folder, kind, epsilon)
        for again in range(REPEATS[kind])
    )
    for (seed, place, own, known), order, again in drawn:
        for count in (m for m in PATIENTS if m + LEAST_LEFT <= len(order)):
            first, rest = order[:count], order[count:]
            odds, labels = own["odds"][rest], own["label"][rest]
            one, noise = losses(own["one"][rest], labels).sum(), sigma * draw.standard_normal()
            fixed = {
                "one": one,
                "own level": exact_loss(odds, labels),
                "patients": float(len(labels)),
            }
            for name in (name for name in names if name in known):
                effect, told = known[name], (own["odds"][first], own["label"][first])
                sent = (
                    residual_sum(told[0] + effect.mean, told[1], np.arange(count)).sums[0] + noise
                )
                after = {
                    "no update": effect,
                    "at home": effect.given_labels(*told),
                    "alone": flat.given_labels(*told),
                    "private": effect.given_release(sent, sigma, count, own["public"]),
                }
                figures = {
                    key: losses(integrated(odds, found), labels).sum()
                    for key, found in after.items()
                }
                measured.setdefault((names[name], count), []).append(
                    (10 * seed + again, place, figures | fixed)
                )
    return {key: table(rows) for key, rows in measured.items()}


def heart(folder: Path) -> dict[str, Row]:
    """Measure what four hospitals with heart disease can tell of the sd between them, then updating at a new one."""
    rows: dict[str, Row] = {}
    for left, seed, found in cells(folder, "heart", "4"):
        value, low, high = found["sd one level"]
        what = "all four train" if left == "nobody" else f"{left} held out"
        rows[f"sd, {what}, seed {seed}"] = {"value": value, "low": low, "high": high}
    for (_, count), sums in updates_of(folder, "heart", "4", {"unknown": "new"}).items():
        for way in ("one", "no update", "at home", "private", "own level"):
            rows[f"{way}, {count} patients"] = ratio(sums[way], sums["patients"])
    return rows


def program(folder: Path) -> dict[str, Row]:
    """Compare the program's own runs, FOLDER/product-SEED, with cells of the same split and other noise."""
    rows: dict[str, Row] = {}
    for run in sorted(folder.glob("product-*/summary.json")):
        summary, seed = (
            json.loads(run.read_text(encoding="utf-8")),
            int(run.parent.name.split("-")[1]),
        )
        others = [one for _, number, one in cells(folder, "spread", "1") if number == seed]
        for key, predictor in (("one", "posterior"), ("hierarchical", "hierarchical")):
            (value,) = (
                row["nll"]
                for row in summary["calibration"]
                if row["site"] == "pooled:train" and row["predictor"] == predictor
            )
            told = np.array([one[f"{key} NLL"] for one in others])
            rows[f"{key}, seed {seed}"] = {
                "value": value,
                "cells": told.mean(),
                "sd": told.std(ddof=1),
                "draws": len(told),
            }
        for name, row in zip(("hospitals", "groups"), summary["hospitals"], strict=False):
            told = np.array([one[f"sd {name}"][0] for one in others])
            rows[f"sd {name}, seed {seed}"] = {
                "value": row["value"],
                "cells": told.mean(),
                "sd": told.std(ddof=1),
                "draws": len(told),
            }
    return rows


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
