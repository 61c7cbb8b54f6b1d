"""Intervals of figures over hospitals: countries are drawn anew, and hospitals within each."""

import numpy as np
import pandas as pd

from studies.stroke.rivals import SEED, Floats, Names

LEVEL = 0.9
REPLICATES = 2_000


def drawn_hospitals(countries: Names, generator: np.random.Generator) -> Floats:
    """Draw countries anew, and hospitals anew within each of them.

    Args:
        countries: That of every hospital, shape (K,).
        generator: Draws.

    Returns:
        How often each hospital is drawn, shape (REPLICATES, K).
    """
    names = np.unique(countries)
    each = np.full(len(names), 1 / len(names))
    drawn_countries = generator.multinomial(len(names), each, size=REPLICATES)
    counts = np.zeros((REPLICATES, len(countries)))
    for name, times in zip(names, drawn_countries.T, strict=True):
        members = np.flatnonzero(countries == name)
        # A country that is drawn twice draws its hospitals twice.
        shares = np.full(len(members), 1 / len(members))
        counts[:, members] = generator.multinomial(times * len(members), shares)
    return counts


def ratio(rows: pd.DataFrame, above: pd.Series, below: pd.Series) -> dict[str, float]:
    """Return sum(above) / sum(below) with its 90 % interval.

    Args:
        rows: With columns `country` and `hospital`; all rows of a hospital are drawn together.
        above: A figure of every row.
        below: A figure of every row.

    Returns:
        `value`, `low`, `high` and the number of `hospitals`.
    """
    keys = [rows["country"], rows["hospital"]]
    numerators = above.groupby(keys).sum()
    denominators = below.groupby(keys).sum().to_numpy(np.float64)
    countries = numerators.index.get_level_values("country").to_numpy(str)
    drawn = drawn_hospitals(countries, np.random.default_rng(SEED))
    ratios = (drawn @ numerators.to_numpy(np.float64)) / (drawn @ denominators)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "value": numerators.sum() / denominators.sum(),
        "low": low,
        "high": high,
        "hospitals": len(numerators),
    }
