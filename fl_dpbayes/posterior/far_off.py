"""Which sites end far off the others: one statistic of released states for every aggregation rule.

It costs no privacy. It tells that a site differs, never why: other patients, a fault and a lie look
alike.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.protocol import Arrays
from fl_dpbayes.schedules import PlannedChain

Floats = npt.NDArray[np.float64]

# Fixed before any federation was run whose false alarms are counted. By simulation of federations
# of sites that differ by one Gaussian in p directions, some site of 4 is farther in .145 of them
# for p = 2, .068 for p = 3, .018 for p = 5, .001 for p = 10; some site of 8 in .024, .009, .001 and
# none of 6,000.
LARGEST_RATIO = 2.0
# The median of two others is as far from each of them as half of the third one's way.
FEWEST_SITES = 4
# A site with far more noise than another is no measure for it.
COMPARABLE_NOISE = 2.0
FEWEST_COMPARABLE = 3
SKETCH_SIZE = 256
# Where the others are all at one place.
LARGEST_STATED = 1e9


def sketched_move(start: Arrays, state: Arrays, seed: int) -> Floats:
    """Fold the move w - w_0 of a state into 256 numbers.

        s_b = sum over i = b (mod 256) of e_i (w - w_0)_i

    The signs e_i are drawn from a seed that no site may know, so that nobody can choose a move that
    they hide. Of up to 256 parameters nothing is lost; of more, distances between sketches are
    right on average.

    Args:
        start: w_0, arrays by name.
        state: w, of the same names and shapes.
        seed: 0 or more, equal for all sites and rounds.

    Returns:
        The sketch, shape (256,).
    """
    generator = np.random.default_rng(seed)
    sketch = np.zeros(SKETCH_SIZE)
    first = 0
    for name, origin in start.items():
        signs = 2 * generator.integers(0, 2, origin.size, dtype=np.int8) - 1
        signed = signs * (state[name].astype(np.float64) - origin).reshape(-1)
        padded = np.pad(signed, (0, -origin.size % SKETCH_SIZE))
        folded = padded.reshape(-1, SKETCH_SIZE).sum(axis=0)
        sketch += np.roll(folded, first)
        first += origin.size
    return sketch


def noise_of_mean(chain: PlannedChain, rounds: int) -> float:
    """Return the planned noise in a site's mean move, up to a factor that all sites share.

        sqrt(mean_t (a_t sigma_t C / B)^2 / R)

    C / B is the noise unit over the expected batch size.

    Args:
        chain: The site's plan.
        rounds: R, of which the mean is taken, 1 or more.

    Returns:
        A number above 0, or 0 where the plan adds no noise.
    """
    unit = chain.plan.privacy.noise_unit / chain.scale.expected_batch_size
    steps = chain.step_sizes * chain.noise_multipliers * unit
    return float(np.sqrt(np.square(steps).mean() / rounds))


def relative_distances(moves: Mapping[str, Floats], noise: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as far off each site is as any other site is.

    With m_k the median, over all sites but k, of each number of x_j, and v_k the planned noise in
    x_k,

        D_k = |x_k - m_k|,    ratio_k = D_k / max over j != k of D_j max(1, v_k / v_j).

    What a site's own larger noise explains does not count against it, and the maximum is over sites
    j with v_j <= 2 v_k where these are three or more. One site of four or more cannot move m_k out
    of the range of the others.

    Args:
        moves: Site -> its mean move x_k, all of one shape.
        noise: Site -> v_k >= 0.

    Returns:
        Site -> ratio, at most `LARGEST_STATED`; empty for fewer than four sites.
    """
    if len(moves) < FEWEST_SITES:
        return {}
    positions = np.stack(list(moves.values()))
    distances = np.linalg.norm(positions - _medians_of_others(positions), axis=1)
    planned = np.array([noise[site] for site in moves])
    ratios = {}
    for number, site in enumerate(moves):
        compared = np.arange(len(moves)) != number
        with_alike_noise = compared & (planned <= COMPARABLE_NOISE * planned[number])
        if with_alike_noise.sum() >= FEWEST_COMPARABLE:
            compared = with_alike_noise
        factors = _noise_factors(planned[number], planned[compared])
        largest = float((distances[compared] * factors).max())
        ratios[site] = _ratio(float(distances[number]), largest)
    return ratios


def far_off_warnings(ratios: Mapping[str, float]) -> tuple[RunWarning, ...]:
    """Name each site that is more than `LARGEST_RATIO` times as far off as any other."""
    return tuple(
        warning("far-off", site, times=ratio)
        for site, ratio in ratios.items()
        if ratio > LARGEST_RATIO
    )


def _medians_of_others(positions: Floats) -> Floats:
    """Return, for each of K rows, the median of each column without that row, (K, p)."""
    ordered = np.sort(positions, axis=0)
    ranks = positions.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
    count = len(positions)
    middle = {(count - 2) // 2, (count - 1) // 2}
    values = [np.where(ranks > place, ordered[place], ordered[place + 1]) for place in middle]
    return np.mean(values, axis=0)


def _noise_factors(noise: float, of_compared: Floats) -> Floats:
    """Return max(1, v_k / v_j), 1 where v_j is 0."""
    ones = np.ones_like(of_compared)
    ratios = np.divide(noise, of_compared, out=ones, where=of_compared > 0)
    return np.maximum(1.0, ratios)


def _ratio(distance: float, scale: float) -> float:
    if distance == 0:
        return 0.0
    if scale <= 0:
        return LARGEST_STATED
    return min(LARGEST_STATED, distance / scale)
