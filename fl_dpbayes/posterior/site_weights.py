"""How much each training site counts, from public constants only, and what to say where one site counts most."""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config.errors import RunWarning, warning
from fl_dpbayes.config.rule import Rule, cannot_be_kept


def unit_weights(units: Mapping[str, int], power: float = 1.0) -> dict[str, float]:
    """Weigh each site by its declared size, w_k = n_k^p / sum_j n_j^p; a site that trains declares one unit or more."""
    total = sum(count**power for count in units.values())
    return {site: count**power / total for site, count in units.items()}


def capped_weights(weights: Mapping[str, float], largest_share: float) -> dict[str, float]:
    """Keep every site's weight at or below a share of the whole; the others gain what it loses, in proportion.

    w_k <- min(c, lambda w_k) with lambda >= 1 such that the weights sum to 1; all are 1/K where K c <= 1. `weights`:
    site -> w_k >= 0, summing to 1. `largest_share`: c in (0, 1]. Returned weights sum to 1 unless all are at the cap.
    """
    if largest_share * len(weights) <= 1:
        return {site: 1 / len(weights) for site in weights}
    values = np.array(list(weights.values()))
    capped = np.zeros(len(values), dtype=bool)
    while True:
        rest = values[~capped].sum()
        factor = (1 - largest_share * capped.sum()) / rest if rest > 0 else 1.0
        scaled = np.where(capped, largest_share, factor * values)
        if not (scaled > largest_share * (1 + 1e-12)).any():
            return dict(zip(weights, map(float, scaled), strict=True))
        capped |= scaled > largest_share


def size_weights(rule: Rule, units: Mapping[str, int]) -> dict[str, float]:
    """Weigh each site by the rule's power of its declared size, none above the rule's `largest_share`."""
    weights = unit_weights(units, rule.power)
    return weights if rule.cap is None else capped_weights(weights, rule.cap)


def weigh_sites(rule: Rule, units: Mapping[str, int]) -> tuple[dict[str, float], RunWarning | None]:
    """Weigh the training sites as a rule asks.

    `units`: site -> number of privacy units that it declares; at least one site. Returns site -> w_k, summing to 1; and
    a warning where too few sites are here for the largest share, or one of three or more has most of it all.
    """
    uniform = {site: 1 / len(units) for site in units}
    weights = uniform if rule.weighing == "uniform" else size_weights(rule, units)
    if rule.cap is not None and cannot_be_kept(rule.cap, len(units)):
        return weights, warning("share-not-kept", sites=len(units), weight=1 / len(units), share=rule.cap)
    heaviest = max(weights, key=lambda site: weights[site])
    if len(weights) < 3 or weights[heaviest] <= 0.5:
        return weights, None
    stated = {"units": units[heaviest], "all": sum(units.values()), "weight": weights[heaviest]}
    return weights, warning("heaviest", heaviest, **stated)
