"""Averages of the sites' states: weighted, or robust against a few hostile or broken sites.

The robust ones replace a mean of states (FALD's round, FedAvg of posterior means) and read no
precision. They consume the released states alone, need more good sites than bad ones, and count all
sites alike: with a weight for each, one site could claim the most. Where honest sites differ much,
they give up some of what the mean would use.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import AveragingRule, RunWarning, warning
from fl_dpbayes.posterior.alignment import state_warnings
from fl_dpbayes.posterior.samples import PerSite
from fl_dpbayes.protocol import Arrays


def average_states(states: Mapping[str, Arrays], site_weights: Mapping[str, float]) -> Arrays:
    """Average the sites' states, one by one in their order, in float64.

        w = sum_k v_k w_k / sum_k v_k

    Args:
        states: Site -> its state w_k, float32 arrays by name.
        site_weights: Site -> v_k >= 0; renormalised over the sites present.

    Returns:
        The average, float32.

    Raises:
        ValueError: If there is no state, or all weights are 0.

    Source: Deng et al. 2021, "On convergence of federated averaging Langevin dynamics", Algorithm
    1; Plassier et al. 2022, "Federated averaging Langevin dynamics".
    """
    total_weight = sum(site_weights[site] for site in states)
    if not states or total_weight <= 0:
        raise ValueError("no site with a positive weight sent a state")
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for site, state in states.items():
        share = site_weights[site] / total_weight
        for name, array in state.items():
            term = share * array.astype(np.float64)
            sums[name] = sums[name] + term if name in sums else term
    return {name: array.astype(np.float32) for name, array in sums.items()}


def coordinate_median(states: Mapping[str, Arrays]) -> Arrays:
    """Return the median over sites of each parameter, float32.

    Fewer than half of the sites cannot move it out of the range of the others.

    Source: Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical
    rates", Definition 1.
    """
    return {name: np.median(stack, axis=0).astype(np.float32) for name, stack in _stacked(states)}


def trimmed_mean(states: Mapping[str, Arrays], trimmed: int) -> Arrays:
    """Return the mean over sites of each parameter without its least and greatest values.

    Args:
        states: Site -> its state, float32 arrays by name.
        trimmed: How many values are left out at each end, 0 or more, below half of the sites; so
            many bad sites it bears.

    Returns:
        The mean, computed in float64, float32.

    Source: Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical
    rates", Definition 2.
    """
    means = {}
    for name, stack in _stacked(states):
        inner = np.sort(stack, axis=0)[trimmed : len(stack) - trimmed]
        means[name] = inner.mean(axis=0, dtype=np.float64).astype(np.float32)
    return means


def move_factors(
    states: Mapping[str, Arrays], start: Arrays, site_weights: Mapping[str, float], bound: float
) -> dict[str, float]:
    """Return by how much to shorten moves, so that no site moves an average far more than others.

    With m_k = |w_k - w_0| a site's part in the average's move is at most v_k m_k, v_k its weight.
    Its factor is

        min(1, c M / (v_k m_k)),    M the median of v_j m_j over the sites,

    of an even number of sites the lower one, so that as long as fewer than half of them are bad M
    is no longer than an honest site's. Of two sites nobody can say which one is bad, and neither is
    shortened. Planned noise is as long in v_k m_k at sites of every size where v_k is proportional
    to n_k. Source: Sun et al. 2019, "Can you really backdoor federated learning?" (norm
    thresholding, there to a fixed norm).

    Args:
        states: Site -> its state w_k, at least one, looked at one by one.
        start: w_0, arrays by name.
        site_weights: Site -> v_k >= 0.
        bound: c >= 1.

    Returns:
        Site -> factor in [0, 1), of the sites whose move is to be shortened.
    """
    lengths = {site: site_weights[site] * distance(state, start) for site, state in states.items()}
    if len(lengths) <= 2:
        return {}
    median = sorted(lengths.values())[(len(lengths) - 1) // 2]
    longest = bound * median
    return {site: longest / length for site, length in lengths.items() if length > longest}


def shortened(state: Arrays, start: Arrays, factor: float) -> Arrays:
    """Shorten the move to a state w to w_0 + f (w - w_0), float32; at f = 1 it stays as it is."""
    if factor == 1:
        return state
    moves = {name: factor * (state[name].astype(np.float64) - start[name]) for name in start}
    return {name: (start[name] + move).astype(np.float32) for name, move in moves.items()}


class Average(NamedTuple):
    """An average of states.

    Attributes:
        state: Float32 arrays by name.
        warnings: What is to be said of the sites.
        is_mean: Whether it is the weighted mean of what sites sent.
    """

    state: Arrays
    warnings: tuple[RunWarning, ...]
    is_mean: bool


def average_of_states(
    states: Mapping[str, Arrays],
    start: Arrays,
    rule: AveragingRule,
    site_weights: Mapping[str, float],
) -> Average:
    """Average states by a rule's settings.

    The weighted average and the bound on moves look at one state at a time; the others hold one
    array of all sites.

    Args:
        states: Site -> its state, at least one.
        start: The state that the sites' moves count from.
        rule: The scenario's section.
        site_weights: Site -> w_k >= 0.

    Returns:
        The average, with what is to be said of the sites.
    """
    warnings = list(state_warnings(states))
    factors: dict[str, float] = {}
    if rule.move_bound != "none":
        factors = move_factors(
            states=states, start=start, site_weights=site_weights, bound=rule.move_bound
        )
        warnings += [warning("move-shortened", site, bound=rule.move_bound) for site in factors]
    bounded = PerSite(
        list(states), lambda site: shortened(states[site], start, factors.get(site, 1.0))
    )
    if rule.robust == "median":
        return Average(coordinate_median(bounded), tuple(warnings), is_mean=False)
    if rule.robust == "none":
        mean = average_states(bounded, site_weights)
        return Average(mean, tuple(warnings), is_mean=not factors)
    assert rule.trimmed is not None  # the section's validation
    trimmed = min(rule.trimmed, (len(bounded) - 1) // 2)
    if trimmed < rule.trimmed:
        warnings.append(
            warning(
                "too-few-to-trim",
                sites=len(bounded),
                trimmed=trimmed,
                asked=rule.trimmed,
                needed=2 * rule.trimmed + 1,
            )
        )
    return Average(trimmed_mean(bounded, trimmed), tuple(warnings), is_mean=False)


def distance(state: Arrays, start: Arrays) -> float:
    """Return |w - w_0| over all arrays of the start w_0, in float64."""
    return math.sqrt(
        sum(float(np.square(state[name].astype(np.float64) - start[name]).sum()) for name in start)
    )


def _stacked(states: Mapping[str, Arrays]) -> list[tuple[str, npt.NDArray[np.float32]]]:
    names = next(iter(states.values())).keys()
    return [(name, np.stack([state[name] for state in states.values()])) for name in names]
