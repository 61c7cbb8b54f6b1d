"""The average of the sites' states that a scenario asks for: weighted, or robust against bad sites."""

from collections.abc import Mapping
from typing import NamedTuple

from fl_dpbayes.config.aggregation import AveragingRule
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.rules.alignment import state_warnings
from fl_dpbayes.posterior.rules.fald import average_states
from fl_dpbayes.posterior.rules.robust import coordinate_median, move_factors, shortened, trimmed_mean
from fl_dpbayes.posterior.site_samples import PerSite
from fl_dpbayes.protocol.arrays import Arrays


class Average(NamedTuple):
    """An average of states, what is to be said of it, and whether it is the weighted mean of what sites sent."""

    state: Arrays
    warnings: tuple[RunWarning, ...]
    is_mean: bool


def average_of_states(
    states: Mapping[str, Arrays], start: Arrays, rule: AveragingRule, site_weights: Mapping[str, float]
) -> Average:
    """Average states by a rule's settings.

    The weighted average and the bound on moves look at one state at a time; the robust ones hold one array of all
    sites.

    Args:
        states: site -> state, at least one.
        start: where all of them started, which moves count from.
        rule: the scenario's choice.
        site_weights: site -> w_k, for a bound on moves and for the average that is not robust.

    Returns:
        The average, with a warning for each site whose hidden units are in another order or whose move was shortened,
        and for sites too few to trim.
    """
    warnings, factors = list(state_warnings(states)), dict[str, float]()
    if rule.move_bound != "none":
        factors = move_factors(states, start, site_weights, rule.move_bound)
        warnings += [warning("move-shortened", site, bound=rule.move_bound) for site in factors]
    sent = states
    states = PerSite(list(sent), lambda site: shortened(sent[site], start, factors.get(site, 1.0)))
    if rule.robust == "median":
        return Average(coordinate_median(states), tuple(warnings), is_mean=False)
    if rule.robust == "none":
        return Average(average_states(states, site_weights), tuple(warnings), is_mean=not factors)
    assert rule.trimmed is not None  # the section's validation
    trimmed = min(rule.trimmed, (len(states) - 1) // 2)
    if trimmed < rule.trimmed:
        warnings.append(
            warning(
                "too-few-to-trim", sites=len(states), trimmed=trimmed, asked=rule.trimmed, needed=2 * rule.trimmed + 1
            )
        )
    return Average(trimmed_mean(states, trimmed), tuple(warnings), is_mean=False)
