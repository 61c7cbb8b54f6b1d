"""FALD: federated averaging of Langevin chains.

Convention A: each site targets p(w)^{1/K} p(D_k|w), so its request carries the prior share s = 1/K.
Every round starts at the broadcast state, each site takes E steps on the mean gradient of its own
records, and the server averages the states by w_k. One sample per round: the averaged state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import FALD, RunWarning, warning
from fl_dpbayes.posterior.site_weights import unit_weights
from fl_dpbayes.protocol import Arrays

# Sites weigh as their sizes but for rounding.
EQUAL_WEIGHTS = 1e-9
Array = npt.NDArray[np.float64]
_COORDINATES = 256
# With so many standard errors, a mean of noise is not taken for a drift.
_SIGNIFICANT = 4.0


def averaged_temperature(
    temperatures: Mapping[str, float], site_weights: Mapping[str, float], units: Mapping[str, int]
) -> float:
    """Return the temperature of the chain of weighted means, T = N sum_k w_k^2 T_k / n_k.

    With one step a round it is Langevin dynamics on p(w) prod_k p(D_k|w)^(w_k N / n_k), for w_k =
    n_k/N the posterior given all records.

    A step adds a^2 sum_k w_k^2 sigma_k^2 C^2 / B_k^2 = 2 a sum_k w_k^2 T_k / n_k to the mean's
    variance, by T_k = a n_k sigma_k^2 C^2 / (2 B_k^2), and Langevin dynamics of N records at
    temperature T adds 2 a T / N. For w_k = n_k/N it is sum_k w_k T_k. A median or a trimmed mean of
    states has no such temperature.

    Args:
        temperatures: Site -> T_k >= 0, of the sites present.
        site_weights: Site -> w_k >= 0; renormalised over the sites present.
        units: Site -> n_k > 0, as declared; N is their sum over the sites present.

    Returns:
        T >= 0.
    """
    total_weight = sum(site_weights[site] for site in temperatures)
    parts = (
        (site_weights[site] / total_weight) ** 2 * temperature / units[site]
        for site, temperature in temperatures.items()
    )
    return sum(units[site] for site in temperatures) * sum(parts)


def target_warnings(
    rule: FALD, weights: Mapping[str, float], units: Mapping[str, int]
) -> tuple[RunWarning, ...]:
    """Say where the averaged chain does not target the posterior given all records.

    Args:
        rule: The scenario's section.
        weights: Site -> w_k, which sum to 1.
        units: Site -> n_k > 0, as declared.

    Returns:
        At most one warning.
    """
    if rule.robust != "none":
        return (warning("no-temperature", robust=rule.robust),)
    # How many times each site's records count.
    times = {site: weights[site] / share for site, share in unit_weights(units).items()}
    least = min(times, key=lambda site: times[site])
    most = max(times, key=lambda site: times[site])
    if times[most] - times[least] <= EQUAL_WEIGHTS:
        return ()
    return (
        warning(
            "reweighted",
            most=most,
            least=least,
            most_times=times[most],
            least_times=times[least],
        ),
    )


@dataclass
class _Moments:
    """Sums over rounds of vectors of p numbers."""

    count: int = 0
    total: Array = field(default_factory=lambda: np.zeros(()))
    squares: float = 0.0

    def add(self, vector: Array) -> None:
        self.count += 1
        self.total = self.total + vector
        self.squares += float(vector @ vector)

    @property
    def mean_square(self) -> float:
        """|mean|^2 / p."""
        return float(np.square(self.total / self.count).mean())

    @property
    def variance(self) -> float:
        """Variance over rounds, averaged over the p numbers; needs two rounds."""
        return max(0.0, self.squares / self.total.size - self.count * self.mean_square) / (
            self.count - 1
        )


class DriftMeter:
    """Collects rounds of a chain of averages whose sites take E steps from each average.

    With E > 1 the sites drift towards their own posteriors between averages, a bias that grows with
    E and with how much the sites differ.

    In equilibrium site k ends d_k = -(I - M_k)(m - m_k) from the average on the mean, M_k = (I - a
    H_k)^E, with H_k and m_k the curvature and mode of its own part of the posterior and sum_k w_k
    d_k = 0. The average's mean m solves this; the posterior's solves sum_k w_k H_k (m - m_k) = 0.
    To first order in a they differ by

        ((E - 1) / (2 E)) H^-1 sum_k w_k H_k d_k,    H = sum_k w_k H_k,

    0 for one step, or for sites of equal curvature. With curvatures that differ by as much as they
    amount to, that is about (E - 1) / (2 E) sqrt(sum_k w_k |d_k|^2), which released states tell.
    """

    def __init__(self, local_steps: int) -> None:
        self._local_steps = local_steps
        self._average = _Moments()
        self._sites: dict[str, _Moments] = {}
        self._weights: dict[str, float] = {}

    def add(
        self, states: Mapping[str, Arrays], average: Arrays, site_weights: Mapping[str, float]
    ) -> None:
        """Add a round's last states and their average; up to 256 numbers of each are used.

        Args:
            states: Site -> its last state; looked at one by one.
            average: Their average.
            site_weights: Site -> w_k >= 0.
        """
        if self._local_steps == 1:
            return
        centre = _chosen(average)
        self._average.add(centre)
        for site, state in states.items():
            self._sites.setdefault(site, _Moments()).add(_chosen(state) - centre)
            self._weights[site] = site_weights[site]

    def drift(self) -> float | None:
        """Estimate how far the averaged chain's mean is from the posterior's.

        Root mean square over parameters, in standard deviations of the chain.

        Returns:
            The distance >= 0: 0 where no site is away from the average by more than noise
            explains, or at one step a round. None before the second round.
        """
        if self._local_steps == 1:
            return 0.0
        sites = {site: moments for site, moments in self._sites.items() if moments.count > 1}
        if not sites or self._average.count < 2 or self._average.variance <= 0:
            return None
        total_weight = sum(self._weights[site] for site in sites)
        noise = 0.0
        mean_square = 0.0
        for site, moments in sites.items():
            share = self._weights[site] / total_weight
            noise += share * moments.variance / moments.count
            mean_square += share * moments.mean_square
        excess = mean_square - noise
        if excess <= _SIGNIFICANT * np.sqrt(2 / self._average.total.size) * noise:
            return 0.0
        step_factor = (self._local_steps - 1) / (2 * self._local_steps)
        return float(step_factor * np.sqrt(excess / self._average.variance))


def _chosen(state: Arrays) -> Array:
    """Pick up to 256 numbers of a state, evenly spaced."""
    size = sum(array.size for array in state.values())
    places = np.linspace(0, size - 1, min(size, _COORDINATES)).astype(int)
    chosen = []
    first = 0
    for array in state.values():
        inside = places[(places >= first) & (places < first + array.size)] - first
        chosen.append(array.reshape(-1)[inside].astype(np.float64))
        first += array.size
    return np.concatenate(chosen)
