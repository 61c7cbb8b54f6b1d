"""Private prediction sets: coverage and size at simulated hospitals and at countries that the model never saw.

    python -m studies.stroke.conformal [--bins 16]      writes conformal.json beside it, in about a minute

Fields of conformal.json: `level`, `bins`, `delta`; `simulated`, a row per (m, epsilon): `m`,
`epsilon`, `hospitals` (1,000), `coverage` (mean over hospitals of the probability that a new
patient's set holds the outcome), `coverage_error` (its standard error), `coverage_sd` and
`coverage_lowest_tenth` (over hospitals), `coverage_not_private`, `size`, `size_not_private` (split
conformal on the same patients), `ratio`; `countries`, a row per (country, m, epsilon) with more
than m + 50 patients: `country`, `patients`, `m`, `epsilon`, `draws` of m patients, and the same
figures over draws; `without_labels`, a row per country: `coverage` and `size` of sets at the
threshold of the other countries' patients, which nothing guarantees; `over_countries`, a row per
(m, epsilon): `countries`, `coverage`, `coverage_worst` (of the countries), `size`,
`size_not_private`, `ratio`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.special import expit

from fl_dpbayes.calibration import EXACT_BINS, NOISED_BINS, private_threshold, set_counts
from fl_dpbayes.privacy import solve_multiplier
from studies.stroke.held_out import Floats, fitted, large, log_odds, stroke

LEVEL, DELTA, HOSPITALS, DRAWS = 0.9, 1e-3, 1_000, 400
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "stroke"
SETTINGS = [(50, 4.0), (100, 1.0), (300, 1.0)]
# Standard deviation of the level of a hospital in an unknown country, as the trial has it.
BETWEEN = 0.48


def thresholds(
    of_label: Floats, epsilon: float, bins: int, generator: np.random.Generator
) -> tuple[float, float]:
    """Return the private threshold of a hospital's labelled patients, and that of split conformal."""
    units = np.arange(len(of_label))
    std = np.hypot(1, 1 - LEVEL) * solve_multiplier(epsilon, DELTA, 1.0, 1)
    counts = set_counts(of_label, units, bins, LEVEL).sums + std * generator.standard_normal(
        bins + 1
    )
    return private_threshold(counts, std, LEVEL), private_threshold(
        set_counts(of_label, units, EXACT_BINS, LEVEL).sums, 0.0, LEVEL
    )


def size(p: Floats, threshold: float) -> float:
    """Return the mean number of outcomes in a set.

    Never none, since the likelier one has .5 or more.
    """
    return float((p >= threshold).mean() + (1 - p >= threshold).mean())


def row(found: list[tuple[float, float, float, float]]) -> dict[str, float]:
    """Average coverage, size, and those without privacy, over hospitals or draws."""
    coverage, sizes, _, plain = np.array(found).T
    return {
        "coverage": coverage.mean(),
        "coverage_error": coverage.std() / len(found) ** 0.5,
        "coverage_sd": coverage.std(),
        "coverage_lowest_tenth": float(np.quantile(coverage, 0.1)),
        "coverage_not_private": np.array(found)[:, 2].mean(),
        "size": sizes.mean(),
        "size_not_private": plain.mean(),
        "ratio": sizes.mean() / plain.mean(),
    }


def simulated(odds: Floats, bins: int) -> list[dict]:
    """Draw hospitals of patients of the trial, with a level of their own that the model does not know."""
    rows, generator = [], np.random.default_rng(1)
    for m, epsilon in SETTINGS:
        found = []
        for _ in range(HOSPITALS):
            effect = BETWEEN * generator.standard_normal()
            own = generator.choice(odds, m)
            p, labels = expit(own), generator.random(m) < expit(own + effect)
            private, exact = thresholds(np.where(labels, p, 1 - p), epsilon, bins, generator)
            p, true = expit(odds), expit(odds + effect)
            covered = [
                float((true * (p >= t) + (1 - true) * (1 - p >= t)).mean())
                for t in (private, exact)
            ]
            found.append((covered[0], size(p, private), covered[1], size(p, exact)))
        rows.append({"m": m, "epsilon": epsilon, "hospitals": HOSPITALS} | row(found))
    return rows


def main(bins: int, target: Path) -> None:
    """Measure, write the file and print its averages."""
    features, labels, countries = stroke()
    rows, blind, generator = [], [], np.random.default_rng(2)
    for country in large(countries):
        away = countries == country
        coefficients = fitted(features[~away], labels[~away])
        p = expit(log_odds(coefficients, features))
        of_label = np.where(labels == 1, p, 1 - p)
        others = set_counts(of_label[~away], np.arange(int((~away).sum())), EXACT_BINS, LEVEL)
        threshold = private_threshold(others.sums, 0.0, LEVEL)
        p, of_label = p[away], of_label[away]
        coverage = float((of_label >= threshold).mean())
        blind.append(
            {
                "country": country,
                "patients": len(p),
                "coverage": coverage,
                "size": size(p, threshold),
            }
        )
        for m, epsilon in SETTINGS:
            if len(p) < m + 50:
                continue
            found = []
            for _ in range(DRAWS):
                order = generator.permutation(len(p))
                own, new = order[:m], order[m:]
                pair = thresholds(of_label[own], epsilon, bins, generator)
                figures = [(float((of_label[new] >= t).mean()), size(p[new], t)) for t in pair]
                found.append((*figures[0], *figures[1]))
            about = {
                "country": country,
                "patients": len(p),
                "m": m,
                "epsilon": epsilon,
                "draws": DRAWS,
            }
            rows.append(about | row(found))
    over = []
    for m, epsilon in SETTINGS:
        of = [one for one in rows if (one["m"], one["epsilon"]) == (m, epsilon)]
        mean = {
            key: float(np.mean([one[key] for one in of]))
            for key in ("coverage", "size", "size_not_private")
        }
        worst = min(one["coverage"] for one in of)
        over.append(
            {"m": m, "epsilon": epsilon, "countries": len(of), "coverage_worst": worst}
            | mean
            | {"ratio": mean["size"] / mean["size_not_private"]}
        )
    odds = log_odds(fitted(features, labels), features)
    found = {
        "level": LEVEL,
        "bins": bins,
        "delta": DELTA,
        "simulated": simulated(odds, bins),
        "over_countries": over,
        "without_labels": blind,
        "countries": rows,
    }
    target.write_text(json.dumps(found, indent=1) + "\n")
    for key in ("simulated", "over_countries"):
        for one in found[key]:
            print(key, {name: round(value, 4) for name, value in one.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bins", type=int, default=NOISED_BINS)
    parser.add_argument("--out", type=Path, default=RESULTS / "conformal.json")
    given = parser.parse_args()
    main(given.bins, given.out)
