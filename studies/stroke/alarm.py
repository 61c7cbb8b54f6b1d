"""How well a private statistic of unlabelled patients foretells the model's error, over held-out countries.

    python -m studies.stroke.alarm      writes alarm.json beside it, in about a minute

For each country of 200 patients and more a model is fitted to the others' (held_out.py). Then,
`draws` times, `patients` of the country release one clipped, noised mean of their features at
`epsilon`, which is compared (a) with what scenarios/stroke.toml declares of patients: normal
numbers of its geometry, (b) with the other countries' patients, who are not public: the best that
any declared population could do.

Fields of alarm.json: `patients`, `epsilon`, `delta`, `draws`; `countries`, a row per country:
`country`, `patients`, `nll`, `nll_exact_level` (with the intercept that fits its outcomes best),
`lost` (the difference: what the unknown level costs), `level` (that intercept, in log odds),
`observed` and `expected` rates, and for each `reference` of `declared`, `others`:
`<reference>_statistic` (mean over draws), `<reference>_rings` (share of draws with p below .05),
`<reference>_shift` (of the model's mean log odds); `same_population`, `others_rings` for patients
drawn from the other countries themselves: .05 if the test is right; `foretells`, a row per
(reference, statistic, error): `statistic` is `statistic`, or `shift_size` (|shift|), `error` is
`nll`, `lost` or `level_size` (|level|), and with its sign `shift` against `level`; `spearman` over
countries of the mean over draws, its bootstrap 90 % interval `interval` over countries, `p_value`
by permutation, and `spearman_one_draw`: its mean where each country has one draw.
"""

import json
from pathlib import Path

import numpy as np
from scipy.special import expit
from scipy.stats import spearmanr

from fl_dpbayes.calibration.case_mix import case_mix, clipped_inputs
from fl_dpbayes.config import load_scenario
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.privacy import solve_multiplier
from studies.stroke.held_out import (
    Floats,
    exact_level,
    fitted,
    large,
    log_odds,
    negative_log_likelihood,
    stroke,
)

PATIENTS, EPSILON, DELTA, DRAWS = 200, 1.0, 1e-3, 200
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "stroke"
NOISE = solve_multiplier(EPSILON, DELTA, 1.0, 1)
PUBLIC, SHUFFLES = 5_000, 1_000
REFERENCES, STATISTICS, ERRORS = (
    ("declared", "others"),
    ("statistic", "shift_size"),
    ("nll", "lost", "level_size"),
)


def standardised(features: Floats) -> tuple[Floats, Floats]:
    """Return the trial's features in the scenario's declared geometry, and inputs as it declares them."""
    geometry = load_scenario("stroke").model.features
    assert geometry is not None
    values = feature_map(geometry, features.shape[1:])(features.astype(np.float32)).astype(
        np.float64
    )
    normal = np.random.default_rng(0).standard_normal((PUBLIC, values.shape[1]))
    return values, geometry.spread * normal


def drawn(
    patients: Floats, public: Floats, slopes: Floats, generator: np.random.Generator
) -> list[float]:
    """Return statistic, p value and shift of the log odds that one release of `PATIENTS` patients shows."""
    own = patients[generator.choice(len(patients), PATIENTS, replace=False)]
    shares, norm = clipped_inputs(own, np.arange(PATIENTS), public)
    std = norm * NOISE
    total = shares.sum(axis=0) + std * generator.standard_normal(own.shape[1])
    found = case_mix(total, std, PATIENTS, public)
    return [found.statistic, found.p_value, float(slopes @ found.difference)]


def foretold(told: Floats, errors: Floats, generator: np.random.Generator) -> dict:
    """Correlate a statistic's draws, (countries, draws), with the error of each country, (countries,)."""
    means, count = told.mean(axis=1), len(errors)
    rho = spearmanr(means, errors).statistic
    ways = [generator.integers(0, count, count) for _ in range(SHUFFLES)]
    again = [
        spearmanr(means[way], errors[way]).statistic for way in ways if len(np.unique(way)) > 2
    ]
    by_chance = [spearmanr(means, generator.permutation(errors)).statistic for _ in range(SHUFFLES)]
    single = [spearmanr(one, errors).statistic for one in told.T]
    return {
        "spearman": rho,
        "interval": np.quantile(again, [0.05, 0.95]).tolist(),
        "p_value": (1 + np.sum(np.abs(by_chance) >= abs(rho))) / (1 + SHUFFLES),
        "spearman_one_draw": np.mean(single),
    }


def main() -> None:
    """Measure, write alarm.json and print what foretells what."""
    features, labels, countries = stroke()
    inputs, declared = standardised(features)
    generator, rows, told, same = (
        np.random.default_rng(3),
        [],
        {name: [] for name in REFERENCES},
        [],
    )
    for country in large(countries):
        away = countries == country
        coefficients = fitted(inputs[~away], labels[~away])
        odds, outcomes = log_odds(coefficients, inputs[away]), labels[away]
        level, nll = exact_level(odds, outcomes), negative_log_likelihood(odds, outcomes)
        exact = negative_log_likelihood(odds + level, outcomes)
        row = {
            "country": country,
            "patients": len(odds),
            "nll": nll,
            "nll_exact_level": exact,
            "lost": nll - exact,
            "level": level,
            "observed": float(outcomes.mean()),
            "expected": float(expit(odds).mean()),
        }
        for name, of in (("declared", declared), ("others", inputs[~away])):
            found = np.array(
                [drawn(inputs[away], of, coefficients[1:], generator) for _ in range(DRAWS)]
            )
            told[name].append(found)
            row |= {
                f"{name}_statistic": found[:, 0].mean(),
                f"{name}_rings": (found[:, 1] < 0.05).mean(),
                f"{name}_shift": found[:, 2].mean(),
            }
        same += [drawn(inputs[~away], of, coefficients[1:], generator)[1] for _ in range(DRAWS)]
        rows.append(row)
    errors = {"nll": [one["nll"] for one in rows], "lost": [one["lost"] for one in rows]}
    errors |= {"level_size": [abs(one["level"]) for one in rows]}
    foretells = []
    for name in REFERENCES:
        draws = np.array(told[name])
        for statistic, values in zip(
            STATISTICS, (draws[:, :, 0], np.abs(draws[:, :, 2])), strict=True
        ):
            for error in ERRORS:
                about = {"reference": name, "statistic": statistic, "error": error}
                foretells.append(about | foretold(values, np.array(errors[error]), generator))
        about = {"reference": name, "statistic": "shift", "error": "level"}
        levels = np.array([one["level"] for one in rows])
        foretells.append(about | foretold(draws[:, :, 2], levels, generator))
    found = {
        "patients": PATIENTS,
        "epsilon": EPSILON,
        "delta": DELTA,
        "draws": DRAWS,
        "features": inputs.shape[1],
        "same_population": {"others_rings": float(np.mean(np.array(same) < 0.05))},
        "foretells": foretells,
        "countries": rows,
    }
    (RESULTS / "alarm.json").write_text(json.dumps(found, indent=1) + "\n")
    for one in foretells:
        print(
            {
                key: value if isinstance(value, str) else np.round(value, 3)
                for key, value in one.items()
            }
        )


if __name__ == "__main__":
    main()
