"""How much each site counts: from public constants only."""

from collections.abc import Mapping

import numpy as np


def unit_weights(units: Mapping[str, int]) -> dict[str, float]:
    """Weigh each site by its declared size, w_k = n_k / N.

    Args:
        units: site -> declared number of privacy units n_k, >= 0.

    Returns:
        Site -> weight; the weights sum to 1.

    Raises:
        ValueError: if no site has a unit.
    """
    total = sum(units.values())
    if total <= 0:
        raise ValueError("no site declares a unit, so there is nothing to weigh")
    return {site: count / total for site, count in units.items()}


def uniform_weights(units: Mapping[str, int]) -> dict[str, float]:
    """Weigh every site alike, w_k = 1 / K.

    Args:
        units: site -> declared number of privacy units; only the names are used.

    Returns:
        Site -> weight; the weights sum to 1.

    Raises:
        ValueError: if there is no site.
    """
    if not units:
        raise ValueError("there is no site to weigh")
    return {site: 1 / len(units) for site in units}


def capped_weights(weights: Mapping[str, float], largest_share: float) -> dict[str, float]:
    """Keep every site's weight at or below a share of the whole; the others gain what it loses, in proportion.

    w_k <- min(c, lambda w_k) with lambda >= 1 such that the weights sum to 1; all are 1/K where K c <= 1.

    Args:
        weights: site -> w_k >= 0, summing to 1.
        largest_share: c in (0, 1].

    Returns:
        Site -> weight; they sum to 1 unless every site of weight above 0 is at the cap.
    """
    if largest_share * len(weights) <= 1:
        return uniform_weights(dict.fromkeys(weights, 0))
    values = np.array(list(weights.values()))
    capped = np.zeros(len(values), dtype=bool)
    while True:
        rest = values[~capped].sum()
        factor = (1 - largest_share * capped.sum()) / rest if rest > 0 else 1.0
        scaled = np.where(capped, largest_share, factor * values)
        if not (scaled > largest_share * (1 + 1e-12)).any():
            return dict(zip(weights, map(float, scaled), strict=True))
        capped |= scaled > largest_share
