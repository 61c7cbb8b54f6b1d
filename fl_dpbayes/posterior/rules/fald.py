"""FALD: federated averaging of Langevin chains.

Convention A: each site targets p(w)^{1/K} p(D_k|w), so its request carries the prior share s = 1/K. Every round starts
at the broadcast state, each site takes E steps on the mean gradient of its own records, and the server averages the
states by w_k. One sample per round: the averaged state.

With E = 1 the averaged chain is Langevin dynamics on p(w) prod_k p(D_k|w)^(w_k N / n_k), for w_k = n_k/N the posterior
given all records, at temperature T = N sum_k w_k^2 T_k / n_k. With E > 1 the sites drift towards their own posteriors
between averages, a bias that grows with E and with how much the sites differ (`drift`).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.aggregation import FALD
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.rules.weights import unit_weights
from fl_dpbayes.protocol.arrays import Arrays

# Sites weigh as their sizes but for rounding.
EQUAL_WEIGHTS = 1e-9


def average_states(states: Mapping[str, Arrays], site_weights: Mapping[str, float]) -> Arrays:
    """Average the sites' states, w = sum_k w_k w_k' / sum_k w_k.

    Args:
        states: site -> parameter arrays, equal names and shapes, float32; looked at one by one.
        site_weights: site -> w_k >= 0; renormalised over the sites present.

    Returns:
        The averaged arrays, float32; the sum is taken in float64 in the order of `states`.

    Raises:
        ValueError: if there is no state, or all weights are 0.

    References:
        Deng et al. 2021, "On convergence of federated averaging Langevin dynamics", Algorithm 1; Plassier et al. 2022.
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


def averaged_temperature(
    temperatures: Mapping[str, float], site_weights: Mapping[str, float], units: Mapping[str, int]
) -> float:
    """Return the temperature of the chain of weighted means, T = N sum_k w_k^2 T_k / n_k.

    A step adds a^2 sum_k w_k^2 sigma_k^2 C^2 / B_k^2 = 2 a sum_k w_k^2 T_k / n_k to the mean's variance, by
    T_k = a n_k sigma_k^2 C^2 / (2 B_k^2), and Langevin dynamics of N records at temperature T adds 2 a T / N. For
    w_k = n_k/N it is sum_k w_k T_k. A median or a trimmed mean of states has no such temperature.

    Args:
        temperatures: site -> T_k >= 0.
        site_weights: site -> w_k; renormalised over the sites present.
        units: site -> declared number of units n_k, above 0; N is their sum over the sites present.

    Returns:
        T >= 0, relative to the posterior in which each record of site k counts w_k N / n_k times.

    Raises:
        ValueError: if there is no site, or all weights are 0.
    """
    total = sum(site_weights[site] for site in temperatures)
    if not temperatures or total <= 0:
        raise ValueError("no site with a positive weight sent a temperature")
    parts = ((site_weights[site] / total) ** 2 * heat / units[site] for site, heat in temperatures.items())
    return sum(units[site] for site in temperatures) * sum(parts)


def target_warnings(rule: FALD, weights: Mapping[str, float], units: Mapping[str, int]) -> tuple[RunWarning, ...]:
    """Say where the averaged chain of these weights does not target the posterior given all records, each once."""
    if rule.robust != "none":
        return (warning("no-temperature", robust=rule.robust),)
    counted = {site: weights[site] / share for site, share in unit_weights(units).items()}
    least, most = min(counted, key=lambda site: counted[site]), max(counted, key=lambda site: counted[site])
    if counted[most] - counted[least] <= EQUAL_WEIGHTS:
        return ()
    times = {"most_times": counted[most], "least_times": counted[least]}
    return (warning("reweighted", most=most, least=least, **times),)
