"""Does the alarm, which looks at no label, foretell the error in a country that was held out?"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from fl_dpbayes.calibration.case_mix import case_mix, clipped_inputs
from fl_dpbayes.privacy import solve_multiplier
from studies.stroke.federation import integrated
from studies.stroke.places import DELTA, NEW_COUNTRY, Place, Row, best_level, own_level_loss
from studies.stroke.resampling import LEVEL, REPLICATES
from studies.stroke.rivals import SEED, losses

PATIENTS = 200
EPSILON = 1.0
DRAWS = 50
# What the alarm prints, and the error that it should foretell.
FORETOLD = (
    ("statistic", "log loss"),
    ("statistic", "log loss above the own level's"),
    ("size of the shift", "log loss"),
    ("size of the shift", "log loss above the own level's"),
    ("shift", "error of the level"),
)


def alarm_rows(places: Iterable[Place]) -> Iterator[Row]:
    """Yield what the alarm says of patients of each country, its mean over draws, and the error."""
    generator = np.random.default_rng(SEED)
    multiplier = solve_multiplier(EPSILON, DELTA, 1.0, 1)
    units = np.arange(PATIENTS)
    for place in places:
        model = place.federation.hospitals
        public = model.covariates[:, 1:]
        drawn = []
        for _ in range(DRAWS):
            chosen = generator.permutation(len(place.labels))[:PATIENTS]
            clipped = clipped_inputs(place.features[chosen], units=units, public=public)
            noise = multiplier * clipped.bound
            total = clipped.shares.sum(axis=0)
            total = total + noise * generator.standard_normal(len(total))
            comparison = case_mix(total, noise_std=noise, units=PATIENTS, public=public)
            shift = float(model.state[1:] @ comparison.difference)
            drawn.append((comparison.statistic, shift, comparison.p_value < 0.05))
        statistic, shift, rings = np.mean(drawn, axis=0)
        effect = place.effects[NEW_COUNTRY]
        loss = losses(integrated(place.log_odds, effect), place.labels).sum()
        count = len(place.labels)
        yield {
            "country": place.country,
            "rings": rings,
            "statistic": statistic,
            "shift": shift,
            "size of the shift": abs(shift),
            "log loss": loss / count,
            "log loss above the own level's": (loss - own_level_loss(place.log_odds, place.labels))
            / count,
            "error of the level": best_level(place.log_odds, place.labels) - effect.mean,
        }


def alarm_table(by_country: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations over countries between what the alarm says and the error.

    Args:
        by_country: As of `alarm_rows`, one row or more for each country.

    Returns:
        Rows `statistic`, `error`, `value`, `low`, `high`, `p` and `countries`.
    """
    means = by_country.groupby("country").mean(numeric_only=True)
    generator = np.random.default_rng(SEED)
    drawn = generator.integers(len(means), size=(REPLICATES, len(means)))
    rows = []
    for statistic, error in FORETOLD:
        told = means[statistic].to_numpy()
        errors = means[error].to_numpy()
        correlation = spearmanr(told, errors)
        replicates = [spearmanr(told[places], errors[places]).statistic for places in drawn]
        low, high = np.nanquantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        rows.append(
            {
                "statistic": statistic,
                "error": error,
                "value": correlation.statistic,
                "low": low,
                "high": high,
                "p": correlation.pvalue,
                "countries": len(means),
            }
        )
    return pd.DataFrame(rows)
