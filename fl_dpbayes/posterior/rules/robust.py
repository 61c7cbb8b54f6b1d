"""Averages of the sites' states that a few hostile or broken sites cannot move far.

No convention: they replace a mean of states (FALD's round, FedAvg of posterior means) and read no precision. They
consume the released states alone, need more good sites than bad ones, and count all sites alike: with a weight for
each, one site could claim the most. Where honest sites differ much, they give up some of what the mean would use.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.posterior.rules.chains import chains, sample_shapes, unflatten
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.arrays import Arrays


def posterior_means(site_samples: Mapping[str, PosteriorSamples]) -> dict[str, Arrays]:
    """Return each site's posterior mean m_k = sum_t v_t w_t as a state, for the averages below.

    Args:
        site_samples: site -> samples; sites without one are left out.

    Returns:
        Site -> parameter arrays, float32.

    Raises:
        ValueError: if no site sent a sample.
    """
    shapes = sample_shapes(site_samples)
    return {
        chain.site: {name: array[0] for name, array in unflatten(chain.mean[np.newaxis], shapes).items()}
        for chain in chains(site_samples)
    }


def coordinate_median(states: Mapping[str, Arrays]) -> Arrays:
    """Return the median over sites of each parameter.

    Fewer than half of the sites cannot move it out of the range of the others.

    Args:
        states: site -> parameter arrays, equal names and shapes.

    Returns:
        Parameter arrays, float32.

    Raises:
        ValueError: if there is no state.

    References:
        Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", Definition 1.
    """
    return {name: np.median(stack, axis=0).astype(np.float32) for name, stack in _stacked(states)}


def trimmed_mean(states: Mapping[str, Arrays], trimmed: int) -> Arrays:
    """Return, of each parameter, the mean over sites without the `trimmed` least and the `trimmed` greatest values.

    Args:
        states: site -> parameter arrays, equal names and shapes.
        trimmed: how many bad sites it must bear, b >= 0, below half of the sites.

    Returns:
        Parameter arrays, float32; the mean is taken in float64.

    Raises:
        ValueError: if there is no state, or nothing is left after trimming.

    References:
        Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", Definition 2.
    """
    if not 0 <= 2 * trimmed < len(states):
        raise ValueError(f"trimmed is {trimmed} for {len(states)} sites: it must be 0 or more and below half of them")
    return {
        name: np.sort(stack, axis=0)[trimmed : len(stack) - trimmed].mean(axis=0, dtype=np.float64).astype(np.float32)
        for name, stack in _stacked(states)
    }


def move_factors(
    states: Mapping[str, Arrays], start: Arrays, site_weights: Mapping[str, float], bound: float
) -> dict[str, float]:
    """Say how far to shorten moves, so that no site moves the average more than `bound` times as far as the median.

    With m_k = |w_k - w_0| a site's part in the average's move is at most v_k m_k, v_k its weight. Its factor is

        min(1, c M / (v_k m_k)),    M the median of v_j m_j over the sites,

    of an even number of sites the lower one, so that as long as fewer than half of them are bad M is no longer than
    an honest site's. Of two sites nobody can say which one is bad, and neither is shortened. Planned noise is as long
    in v_k m_k at sites of every size where v_k is proportional to n_k.

    Args:
        states: site -> what it sent, w_k, at least one; looked at one by one.
        start: what all of them were sent, w_0.
        site_weights: site -> v_k >= 0.
        bound: c, at least 1.

    Returns:
        Site -> factor in [0, 1), of those that are to be shortened by `shortened`.

    Raises:
        ValueError: if the bound is below 1, or there is no state.

    References:
        Sun et al. 2019, "Can you really backdoor federated learning?" (norm thresholding, there to a fixed norm).
    """
    if not bound >= 1:
        raise ValueError(f"the bound on moves is {bound} times the median move: it must be 1 or more")
    if not states:
        raise ValueError("no site sent a state")
    parts = {site: site_weights[site] * _distance(state, start) for site, state in states.items()}
    longest = bound * sorted(parts.values())[(len(parts) - 1) // 2] if len(parts) > 2 else math.inf
    return {site: longest / part for site, part in parts.items() if part > longest}


def shortened(state: Arrays, start: Arrays, factor: float) -> Arrays:
    """Shorten a move, w_0 + f (w - w_0).

    Args:
        state: what a site sent, w.
        start: what it was sent, w_0.
        factor: f in [0, 1]; at 1 the state is returned as it is.

    Returns:
        The state, float32.
    """
    if factor == 1:
        return state
    return {
        name: (start[name] + factor * (state[name].astype(np.float64) - start[name])).astype(np.float32)
        for name in start
    }


def _distance(state: Arrays, start: Arrays) -> float:
    return math.sqrt(sum(float(np.square(state[name].astype(np.float64) - start[name]).sum()) for name in start))


def _stacked(states: Mapping[str, Arrays]) -> list[tuple[str, npt.NDArray[np.float32]]]:
    if not states:
        raise ValueError("no site sent a state")
    names = next(iter(states.values())).keys()
    return [(name, np.stack([state[name] for state in states.values()])) for name in names]
