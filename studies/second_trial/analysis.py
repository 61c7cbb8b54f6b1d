"""Tables of the second trial: its rivals, and intervals at new hospitals."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from studies.stroke.comparison import held_out_split, trains_all
from studies.stroke.federation import Federation
from studies.stroke.places import observed_interval
from studies.stroke.resampling import LEVEL
from studies.stroke.rivals import RIVALS, TREES, Rival, Split, boosting

ONE_LEVEL = ("pooled", "random intercepts", "boosting", "alone", "public score, own level")
RIVALS_HERE = (
    *[rival for rival in RIVALS if rival.name in ONE_LEVEL],
    Rival("boosting with hospital", TREES, partial(boosting, by="hospitals")),
)
HELD_OUT = "20 and more, held out in turn"
TOO_SMALL = "below 20, never in training"


def coverage_rows(federation: Federation, split: Split) -> Iterator[dict[str, object]]:
    """Yield whether the 90 % interval of a new hospital's rate holds the observed one.

    The chance of its patients is in the interval. Where all hospitals train, those that are too
    small for it are new ones.
    """
    held_out = federation.held_out
    new = held_out_split(split, held_out).test if held_out else split.outside
    effect = federation.hospitals.effect()
    for hospital in np.unique(new.hospitals):
        patients = new.subset(new.hospitals == hospital)
        low, high = observed_interval(effect, federation.log_odds(patients.features))
        yield {
            "hospitals": HELD_OUT if held_out else TOO_SMALL,
            "privacy": federation.privacy,
            "seed": federation.seed,
            "hospital": hospital,
            "patients": len(patients),
            "rate": patients.labels.mean(),
            "low": low,
            "high": high,
            "holds": bool(low <= patients.labels.mean() <= high),
        }


def coverage_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Count how many intervals hold, with Wilson's 90 % interval as if hospitals were all apart."""
    counted = []
    for (which, privacy), part in rows.groupby(["hospitals", "privacy"], sort=False):
        holds = int(part["holds"].sum())
        count = len(part)
        low, high = proportion_confint(holds, count, alpha=1 - LEVEL, method="wilson")
        counted.append(
            {
                "hospitals": which,
                "privacy": privacy,
                "places": part["hospital"].nunique(),
                "intervals": count,
                "coverage": holds / count,
                "low": low,
                "high": high,
                "width": (part["high"] - part["low"]).mean(),
            }
        )
    return pd.DataFrame(counted)


def spread_table(federations: Sequence[Federation]) -> pd.DataFrame:
    """Return the standard deviation between hospitals, by federation in which all train."""
    rows = []
    for federation in filter(trains_all, federations):
        (spread,) = federation.hospitals.spreads
        low, high = spread.interval
        key = {"seed": federation.seed, "privacy": federation.privacy}
        rows.append(key | {"sd": spread.standard_deviation, "low": low, "high": high})
    return pd.DataFrame(rows)


def second_trial_tables(
    splits: Sequence[Split], federations: Sequence[Federation]
) -> Mapping[str, pd.DataFrame]:
    """Return table -> frame: `spread`, `coverage` and `coverage-by-hospital`.

    Args:
        splits: One for each seed.
        federations: One draw of the noise of each.
    """
    split_of_seed = {split.seed: split for split in splits}
    coverage = pd.DataFrame(
        [
            row
            for federation in federations
            for row in coverage_rows(federation, split_of_seed[federation.seed])
        ]
    )
    return {
        "spread": spread_table(federations),
        "coverage": coverage_table(coverage),
        "coverage-by-hospital": coverage,
    }
