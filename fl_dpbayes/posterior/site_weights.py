"""How much each training site counts, and what to say where one site counts most."""

from collections.abc import Mapping

from fl_dpbayes.config.aggregation import Aggregation, largest_share, weighing
from fl_dpbayes.config.site_weighing import cannot_be_kept
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.rules.weights import capped_weights, uniform_weights, unit_weights


def size_weights(rule: Aggregation, units: Mapping[str, int]) -> dict[str, float]:
    """Weigh each site by its declared size, none above the rule's `largest_share`.

    Args:
        rule: the scenario's choice.
        units: site -> number of privacy units that it declares.

    Returns:
        Site -> weight, summing to 1.

    Raises:
        ValueError: if no site declares a unit.
    """
    weights, share = unit_weights(units), largest_share(rule)
    return weights if share is None else capped_weights(weights, share)


def weigh_sites(rule: Aggregation, units: Mapping[str, int]) -> tuple[dict[str, float], RunWarning | None]:
    """Weigh the training sites as a rule asks.

    Args:
        rule: the scenario's choice.
        units: site -> number of privacy units that it declares; at least one site.

    Returns:
        Site -> w_k, summing to 1; and a warning where too few sites are here for the largest share to hold, or one of
        three or more has most of the weight.

    Raises:
        ValueError: if sites are weighed by size and none declares a unit.
    """
    weights = uniform_weights(units) if weighing(rule) == "uniform" else size_weights(rule, units)
    share = largest_share(rule)
    if share is not None and cannot_be_kept(share, len(units)):
        return weights, warning("share-not-kept", sites=len(units), weight=1 / len(units), share=share)
    heaviest = max(weights, key=lambda site: weights[site])
    if len(weights) < 3 or weights[heaviest] <= 0.5:
        return weights, None
    stated = {"units": units[heaviest], "all": sum(units.values()), "weight": weights[heaviest]}
    return weights, warning("heaviest", heaviest, **stated)
