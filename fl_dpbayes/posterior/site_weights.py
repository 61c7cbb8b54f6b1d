"""How much each training site counts, from public constants only, and what to say where one site counts most."""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config import Rule, RunWarning, cannot_be_kept, warning

ROUNDING = 1e-9


def unit_weights(units: Mapping[str, int], power: float = 1.0) -> dict[str, float]:
    """Weigh each site by its declared size, w_k = n_k^p / sum_j n_j^p.

    A site that trains declares one unit or more.
    """
    total = sum(count**power for count in units.values())
    return {site: count**power / total for site, count in units.items()}


def capped_weights(weights: Mapping[str, float], largest_share: float) -> dict[str, float]:
    """Keep every site's weight at or below a share of the whole.

    The others gain what it loses, in proportion.

    w_k <- min(c, lambda w_k) with lambda >= 1 such that the weights sum to 1; all are 1/K where K c
    <= 1. `weights`: site -> w_k >= 0, summing to 1. `largest_share`: c in (0, 1]. Returned weights
    sum to 1 unless all are at the cap.
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


def weigh_sites(
    rule: Rule, units: Mapping[str, int]
) -> tuple[dict[str, float], tuple[RunWarning, ...]]:
    """Weigh the training sites as a rule asks.

    Sites that count by size weigh as its power, and none above the rule's bound on a share.

    Args:
        rule: the scenario's section.
        units: site -> number of privacy units that it declares; at least one site.

    Returns:
        Site -> w_k, summing to 1; and a warning of each site that would weigh more than it may, of one that has most of
        it all nevertheless, and of a bound that too few sites are here to keep.
    """
    count = len(units)
    if rule.weighing == "uniform":
        return dict.fromkeys(units, 1 / count), ()
    asked = unit_weights(units, rule.power)
    bound = rule.share_bound(count)
    weights = capped_weights(asked, bound)
    if cannot_be_kept(bound, count):
        return weights, (warning("share-not-kept", sites=count, weight=1 / count, share=bound),)
    stated = {"all": sum(units.values()), "share": bound}
    warnings = [
        warning("share-cut", site, units=units[site], asked=asked[site], **stated)
        for site in units
        if asked[site] > bound * (1 + ROUNDING)
    ]
    heaviest = max(weights, key=lambda site: weights[site])
    if count >= 3 and weights[heaviest] > 0.5 * (1 + ROUNDING):
        said = {"units": units[heaviest], "all": stated["all"], "weight": weights[heaviest]}
        warnings.append(warning("heaviest", heaviest, **said))
    return weights, tuple(warnings)
