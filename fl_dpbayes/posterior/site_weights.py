"""How much each training site counts, from public constants only."""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config import Rule, RunWarning, cannot_be_kept, warning

ROUNDING = 1e-9


def unit_weights(units: Mapping[str, int], power: float = 1.0) -> dict[str, float]:
    """Weigh each site by its declared size, w_k = n_k^p / sum_j n_j^p.

    Args:
        units: Site -> n_k, 1 or more.
        power: p.

    Returns:
        Site -> w_k, which sum to 1.
    """
    total = sum(count**power for count in units.values())
    return {site: count**power / total for site, count in units.items()}


def capped_weights(weights: Mapping[str, float], largest_share: float) -> dict[str, float]:
    """Keep every site's weight at or below a share of the whole.

        w_k <- min(c, lambda w_k),    lambda >= 1 such that the weights sum to 1

    The other sites gain what it loses, in proportion. All weights are 1/K where K c <= 1.

    Args:
        weights: Site -> w_k >= 0, which sum to 1.
        largest_share: c in (0, 1].

    Returns:
        Site -> weight; they sum to 1 unless all are at the cap.
    """
    if largest_share * len(weights) <= 1:
        return {site: 1 / len(weights) for site in weights}
    values = np.array(list(weights.values()))
    capped = np.zeros(len(values), dtype=bool)
    while True:
        uncapped_sum = values[~capped].sum()
        factor = 1.0
        if uncapped_sum > 0:
            factor = (1 - largest_share * capped.sum()) / uncapped_sum
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
        rule: The scenario's section.
        units: Site -> number of privacy units that it declares; at least one site.

    Returns:
        Site -> w_k, which sum to 1; and warnings of each site that would weigh more than it may,
        of one that has most of the weight nevertheless, and of a bound that too few sites are here
        to keep.
    """
    count = len(units)
    if rule.weighing == "uniform":
        return dict.fromkeys(units, 1 / count), ()
    by_size = unit_weights(units, rule.power)
    bound = rule.share_bound(count)
    weights = capped_weights(by_size, bound)
    if cannot_be_kept(bound, count):
        return weights, (warning("share-not-kept", sites=count, weight=1 / count, share=bound),)
    all_units = sum(units.values())
    warnings = [
        warning(
            "share-cut",
            site,
            units=units[site],
            asked=by_size[site],
            all=all_units,
            share=bound,
        )
        for site in units
        if by_size[site] > bound * (1 + ROUNDING)
    ]
    heaviest = max(weights, key=lambda site: weights[site])
    if count >= 3 and weights[heaviest] > 0.5 * (1 + ROUNDING):
        warnings.append(
            warning(
                "heaviest",
                heaviest,
                units=units[heaviest],
                all=all_units,
                weight=weights[heaviest],
            )
        )
    return weights, tuple(warnings)
