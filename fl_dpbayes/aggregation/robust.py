"""Averages of the sites' states that a few hostile or broken sites cannot move far.

No convention: they replace a mean of states (FALD's round, FedAvg of posterior means) and read no precision. They
consume the released states alone, need more good sites than bad ones, and count all sites alike: with a weight for
each, one site could claim the most. Where honest sites differ much, they give up some of what the mean would use.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.aggregation.chains import chains, sample_shapes, unflatten
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


def bound_move(state: Arrays, start: Arrays, bound: float) -> tuple[Arrays, float]:
    """Shorten a site's move from the broadcast state to a norm bound, w0 + (w - w0) min(1, b / |w - w0|).

    Args:
        state: what the site sent, w.
        start: what it was sent, w0.
        bound: greatest norm of the move over all parameters, b > 0; a public constant.

    Returns:
        The bounded state, float32, and the factor in (0, 1] by which the move was shortened.

    Raises:
        ValueError: if the bound is not above 0.

    References:
        Sun et al. 2019, "Can you really backdoor federated learning?" (norm thresholding).
    """
    if not bound > 0:
        raise ValueError(f"the bound on a site's move is {bound}: it must be above 0")
    moves = {name: state[name].astype(np.float64) - start[name].astype(np.float64) for name in start}
    norm = np.sqrt(sum(float(np.square(move).sum()) for move in moves.values()))
    factor = 1.0 if norm <= bound else float(bound / norm)
    if factor == 1.0:
        return state, factor
    return {name: (start[name] + factor * move).astype(np.float32) for name, move in moves.items()}, factor


def bound_draws(samples: PosteriorSamples, start: Arrays, bound: float) -> tuple[PosteriorSamples, float]:
    """Shorten every sample's move from a state by `bound_move`.

    Args:
        samples: what the site sent.
        start: what it was sent.
        bound: greatest norm of a sample's move, > 0.

    Returns:
        The samples with their weights and temperatures, and the least factor (1 if none was shortened).

    Raises:
        ValueError: if the bound is not above 0.

    References:
        As `bound_move`.
    """
    bounded = [
        bound_move({name: array[index] for name, array in samples.arrays.items()}, start, bound)
        for index in range(len(samples))
    ]
    if not bounded:
        return samples, 1.0
    arrays = {name: np.stack([state[name] for state, _ in bounded]) for name in samples.arrays}
    return PosteriorSamples(arrays, samples.weights, samples.temperatures), min(factor for _, factor in bounded)


def _stacked(states: Mapping[str, Arrays]) -> list[tuple[str, npt.NDArray[np.float32]]]:
    if not states:
        raise ValueError("no site sent a state")
    names = next(iter(states.values())).keys()
    return [(name, np.stack([state[name] for state in states.values()])) for name in names]
