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
from fl_dpbayes.posterior.hierarchical.distribution import Floats
from fl_dpbayes.samplers.planned import PlannedChain

# The bank's name for the sums of all sites; no site can be called so.
HOSPITALS = "sums of hospitals"
FACTS = 4


def summed_round(chain: PlannedChain, step: int, broadcast: Floats, state: Floats) -> Floats:
    """Return what a round adds to its site's sums, omega_t = 1 / (sigma_t C)^2 being its weight; (4 + 2 d,).

    That is n, omega_t, 1, (omega_t sigma_t C)^2, then omega_t G_t and omega_t w_t. `step`: its number in the plan.
    `broadcast`, `state`: w_t and w_t', (d,); both were float32, whose rounding is |w| 2^-24 B / a_t of G_t.
    """
    sd = float(chain.noise_multipliers[step]) * chain.plan.privacy.noise_unit
    weight = 1 / sd**2 if sd > 0 else 1.0
    pull = prior_gradient(chain.plan.sampler.prior, torch.from_numpy(broadcast)).numpy()
    moved = (broadcast - state) / chain.step_sizes[step]
    gradient = chain.scale.expected_batch_size * (moved + chain.plan.prior_share / chain.units * pull)
    facts = (chain.units, weight, 1.0, (weight * sd) ** 2)
    return np.concatenate([facts, weight * gradient, weight * broadcast])


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


def site_means(rows: Mapping[str, npt.NDArray]) -> HospitalMeans:
    """Divide the sums of one site or more, added up over rounds, by their weights; sites in alphabetical order."""
    sites = tuple(sorted(rows))
    table = np.stack([rows[site] for site in sites])
    units, weights, rounds, squares = table[:, :FACTS].T
    gradients, states = np.split(table[:, FACTS:] / weights[:, None], 2, axis=1)
    return HospitalMeans(sites, units / rounds, gradients, states, np.sqrt(squares) / weights, rounds)
