"""Averages of the sites' states: weighted, or such that a few hostile or broken sites cannot move them far.

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
    """Average the sites' float32 states, one by one in their order in float64, w = sum_k w_k w_k' / sum_k w_k.

    Weights are renormalised over the sites present. Raises ValueError if there is no state, or all
    of them are 0. Source: Deng et al. 2021, "On convergence of federated averaging Langevin
    dynamics", Algorithm 1; Plassier 2022.
    """
    total = sum(site_weights[site] for site in states)
    if not states or total <= 0:
        raise ValueError("no site with a positive weight sent a state")
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for site, state in states.items():
        for name, array in state.items():
            term = site_weights[site] / total * array.astype(np.float64)
            sums[name] = sums[name] + term if name in sums else term
    return {name: array.astype(np.float32) for name, array in sums.items()}


def coordinate_median(states: Mapping[str, Arrays]) -> Arrays:
    """Return the median over sites of each parameter, float32.

    Fewer than half of the sites cannot move it out of the range of the others. Source: Yin et al.
    2018, "Byzantine-robust distributed learning: towards optimal statistical rates", Definition 1.
    """
    return {name: np.median(stack, axis=0).astype(np.float32) for name, stack in _stacked(states)}


def trimmed_mean(states: Mapping[str, Arrays], trimmed: int) -> Arrays:
    """Return, of each parameter, the float64 mean over sites without the `trimmed` least and greatest values, float32.

    It bears so many bad sites, 0 or more, below half of all. Source: Yin et al. 2018,
    "Byzantine-robust distributed learning: towards optimal statistical rates", Definition 2.
    """
    kept = {
        name: np.sort(stack, axis=0)[trimmed : len(stack) - trimmed]
        for name, stack in _stacked(states)
    }
    return {
        name: stack.mean(axis=0, dtype=np.float64).astype(np.float32)
        for name, stack in kept.items()
    }


def move_factors(
    states: Mapping[str, Arrays], start: Arrays, site_weights: Mapping[str, float], bound: float
) -> dict[str, float]:
    """Say how far to shorten moves, so that no site moves the average more than `bound` times as far as the median.

    With m_k = |w_k - w_0| a site's part in the average's move is at most v_k m_k, v_k its weight.
    Its factor is

        min(1, c M / (v_k m_k)),    M the median of v_j m_j over the sites,

    of an even number of sites the lower one, so that as long as fewer than half of them are bad M
    is no longer than an honest site's. Of two sites nobody can say which one is bad, and neither is
    shortened. Planned noise is as long in v_k m_k at sites of every size where v_k is proportional
    to n_k. Source: Sun et al. 2019, "Can you really backdoor federated learning?" (norm
    thresholding, there to a fixed norm).

    States, at least one, are looked at one by one. `bound`: c >= 1. Returns the factors in [0, 1),
    by site.
    """
    parts = {site: site_weights[site] * distance(state, start) for site, state in states.items()}
    longest = bound * sorted(parts.values())[(len(parts) - 1) // 2] if len(parts) > 2 else math.inf
    return {site: longest / part for site, part in parts.items() if part > longest}


def shortened(state: Arrays, start: Arrays, factor: float) -> Arrays:
    """Shorten the move to a state w, w_0 + f (w - w_0), float32.

    At f = 1 it is returned as it is.
    """
    if factor == 1:
        return state
    moves = {name: factor * (state[name].astype(np.float64) - start[name]) for name in start}
    return {name: (start[name] + move).astype(np.float32) for name, move in moves.items()}


class Average(NamedTuple):
    """An average of states, what is to be said of it, and whether it is the weighted mean of what sites sent."""

    state: Arrays
    warnings: tuple[RunWarning, ...]
    is_mean: bool


def average_of_states(
    states: Mapping[str, Arrays],
    start: Arrays,
    rule: AveragingRule,
    site_weights: Mapping[str, float],
) -> Average:
    """Average one state or more by a rule's settings, with what is to be said of the sites.

    The weighted average and the bound on moves look at one state at a time; the others hold one
    array of all sites.
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
        few = {
            "sites": len(states),
            "trimmed": trimmed,
            "asked": rule.trimmed,
            "needed": 2 * rule.trimmed + 1,
        }
        warnings.append(warning("too-few-to-trim", **few))
    return Average(trimmed_mean(states, trimmed), tuple(warnings), is_mean=False)


def distance(state: Arrays, start: Arrays) -> float:
    """Return |w - w_0| over all arrays of the start w_0, in float64."""
    return math.sqrt(
        sum(float(np.square(state[name].astype(np.float64) - start[name]).sum()) for name in start)
    )


def _stacked(states: Mapping[str, Arrays]) -> list[tuple[str, npt.NDArray[np.float32]]]:
    names = next(iter(states.values())).keys()
    return [(name, np.stack([state[name] for state in states.values()])) for name in names]
