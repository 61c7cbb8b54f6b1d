"""What each hospital's released states say of its clipped sums: running means over the rounds after burn-in.

    G_t = B [ (w_t - w_t') / a_t + (s/n) grad log p(w_t) ]

is the noisy sum of clipped gradients that a site's one step from the broadcast w_t to its state w_t' took, exactly.
Rounds weigh as 1 / sigma_t^2. Post-processing: nothing here costs privacy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.samplers.planned import PlannedChain

Floats = npt.NDArray[np.float64]
FACTS = 4


def noisy_clipped_sum(broadcast: Floats, state: Floats, chain: PlannedChain, step: int) -> Floats:
    """Return sum_i clip_C(grad l_i(w_t)) + sigma_t C xi_t, which one step from `broadcast` to `state` took.

    Both are of shape (d,) and were float32, whose rounding is |w| 2^-24 B / a_t of it. `step`: its number in the plan.
    """
    pull = prior_gradient(chain.plan.sampler.prior, torch.from_numpy(broadcast)).numpy()
    moved = (broadcast - state) / chain.step_sizes[step]
    return chain.scale.expected_batch_size * (moved + chain.plan.prior_share / chain.units * pull)


class HospitalSums:
    """Sums over rounds t after burn-in, of every site: omega_t G_t and omega_t w_t, and what weighs them.

    `rows`: site -> units n, sum of omega_t, rounds, sum of omega_t^2 (sigma_t C)^2, then both sums; (4 + 2 d,).
    """

    def __init__(self, rows: Mapping[str, Floats] | None = None) -> None:
        self.rows = {site: np.array(row, dtype=np.float64) for site, row in (rows or {}).items()}

    def add(self, site: str, chain: PlannedChain, step: int, broadcast: Floats, state: Floats) -> None:
        """Add one round of a site: it stepped from `broadcast` to `state`, flat vectors (d,)."""
        sd = float(chain.noise_multipliers[step]) * chain.plan.privacy.noise_unit
        weight = 1 / sd**2 if sd > 0 else 1.0
        gradient = noisy_clipped_sum(broadcast, state, chain, step)
        new = np.concatenate([(0.0, weight, 1.0, (weight * sd) ** 2), weight * gradient, weight * broadcast])
        row = self.rows.setdefault(site, np.zeros(len(new)))
        row += new
        row[0] = chain.units

    def means(self) -> "HospitalMeans":
        """Divide the sums of one site or more by their weights; sites in alphabetical order."""
        sites = tuple(sorted(self.rows))
        table = np.stack([self.rows[site] for site in sites])
        units, weights, rounds, squares = table[:, :FACTS].T
        gradients, states = np.split(table[:, FACTS:] / weights[:, None], 2, axis=1)
        return HospitalMeans(sites, units, gradients, states, np.sqrt(squares) / weights, rounds)


@dataclass(frozen=True)
class HospitalMeans:
    """Means over rounds of each site's noisy clipped sum and of the states w_t where it was taken, (K, d).

    `units`: n_k, (K,). `noise`: the standard deviation of the noise in `gradients`, sqrt(sum omega^2 sigma^2) C, (K,).
    `rounds`: how many of them, (K,).
    """

    sites: tuple[str, ...]
    units: Floats
    gradients: Floats
    states: Floats
    noise: Floats
    rounds: Floats

    @property
    def centre(self) -> Floats:
        """The averaged state after burn-in, (d,), of the sites with the most rounds."""
        return self.states[self.rounds == self.rounds.max()].mean(axis=0)
