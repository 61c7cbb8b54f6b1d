"""Prediction sets in countries that a federation held out, with own labelled patients or without.

Predictions are those of the one model.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from fl_dpbayes.calibration import EXACT_BINS, NOISED_BINS, private_threshold, set_counts
from fl_dpbayes.posterior.hierarchical.model import LEVEL
from fl_dpbayes.privacy import solve_multiplier
from studies.stroke.places import DELTA, Place, Row
from studies.stroke.rivals import SEED, Floats, Integers

# Patients that calibrate, and the epsilon of their counts.
SETS = ((50, 4.0), (100, 1.0), (300, 1.0))
LEAST_LEFT = 50
DRAWS = 400
LOWEST = 0.1


def sets_table(places: Iterable[Place]) -> pd.DataFrame:
    """Coverage and size of sets in held-out countries.

    Args:
        places: The countries.

    Returns:
        A row for each number of patients and epsilon: `places`, mean `coverage`, the `worst`
        country's, the `lowest` tenth over thresholds, and the mean size over that of sets without
        privacy.
    """
    generator = np.random.default_rng(SEED)
    frame = pd.DataFrame([row for place in places for row in sets_of_place(place, generator)])
    by_country = frame.groupby(["patients", "epsilon", "country"]).mean(numeric_only=True)
    table = by_country.groupby(["patients", "epsilon"]).agg(
        places=("coverage", "size"),
        coverage=("coverage", "mean"),
        worst=("coverage", "min"),
        lowest=("lowest", "mean"),
        size=("size", "mean"),
        size_without_privacy=("size_without_privacy", "mean"),
    )
    return table.assign(ratio=table["size"] / table["size_without_privacy"]).reset_index()


def sets_of_place(place: Place, generator: np.random.Generator) -> Iterator[Row]:
    """Yield coverage and size of a place's sets over draws of the patients that calibrate."""
    of_label = _of_label(place)
    p = place.one_model
    for count, epsilon in SETS:
        if len(p) < count + LEAST_LEFT:
            continue
        noise = np.hypot(1, 1 - LEVEL) * solve_multiplier(epsilon, DELTA, 1.0, 1)
        draws = []
        for _ in range(DRAWS):
            order = generator.permutation(len(p))
            own = of_label[order[:count]]
            new = order[count:]
            counts = _counts(own, NOISED_BINS)
            counts = counts + noise * generator.standard_normal(len(counts))
            private = private_threshold(counts, noise, LEVEL)
            exact = exact_threshold(own)
            covered = (of_label[new] >= private).mean()
            draws.append((covered, _set_size(p[new], private), _set_size(p[new], exact)))
        coverages = np.array(draws)[:, 0]
        coverage, size, exact_size = np.mean(draws, axis=0)
        yield {
            "country": place.country,
            "patients": count,
            "epsilon": epsilon,
            "coverage": coverage,
            "lowest": np.quantile(coverages, LOWEST),
            "size": size,
            "size_without_privacy": exact_size,
        }


def without_labels_table(places: Iterable[Place]) -> pd.DataFrame:
    """Coverage in each country of the threshold that the other countries' patients give.

    Args:
        places: The countries, one federation's or more.

    Returns:
        A row for each country: its mean `coverage` over federations.
    """
    by_seed: dict[int, list[Place]] = {}
    for place in places:
        by_seed.setdefault(place.federation.seed, []).append(place)
    rows = []
    for of_seed in by_seed.values():
        for place in of_seed:
            others = np.concatenate([_of_label(other) for other in of_seed if other is not place])
            covered = (_of_label(place) >= exact_threshold(others)).mean()
            rows.append({"country": place.country, "coverage": covered})
    return pd.DataFrame(rows).groupby("country").mean().reset_index()


def exact_threshold(of_label: Floats) -> float:
    """Return the threshold of sets, whose counts get no noise, from probabilities of labels."""
    return private_threshold(_counts(of_label, EXACT_BINS), 0.0, LEVEL)


def _counts(of_label: Floats, bins: int) -> Floats:
    units: Integers = np.arange(len(of_label))
    return set_counts(of_label, units, bins=bins, level=LEVEL).sums


def _of_label(place: Place) -> Floats:
    """Return the probability of every patient's own label under the one model."""
    return np.where(place.labels == 1, place.one_model, 1 - place.one_model)


def _set_size(p: Floats, threshold: float) -> float:
    """Return the mean number of outcomes in a set."""
    return float((p >= threshold).mean() + (1 - p >= threshold).mean())
