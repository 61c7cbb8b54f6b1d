"""What each hospital's released states say of its clipped sums: running means over the rounds after burn-in.

    G_t = B [ (w_t - w_t') / a_t + (s/n) grad log p(w_t) ]

is the noisy sum of clipped gradients that a site's one step from the broadcast w_t to its state w_t' took, exactly.
Rounds weigh as 1 / sigma_t^2. Post-processing: nothing here costs privacy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.config.sampler import Prior
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.samplers.planned import PlannedChain

Floats = npt.NDArray[np.float64]
_ARRAYS = ("gradients", "states", "totals")


def noisy_clipped_sum(broadcast: Floats, state: Floats, chain: PlannedChain, step: int) -> Floats:
    """Return sum_i clip_C(grad l_i(w_t)) + sigma_t C xi_t, which one step from `broadcast` to `state` took.

    Both are of shape (d,) and were float32, whose rounding is |w| 2^-24 B / a_t of it. `step`: its number in the plan.
    """
    pull = _prior_pull(chain.plan.sampler.prior, broadcast) * chain.plan.prior_share / chain.units
    return chain.scale.expected_batch_size * ((broadcast - state) / chain.step_sizes[step] + pull)


def _prior_pull(prior: Prior, vector: Floats) -> Floats:
    return prior_gradient(prior, torch.from_numpy(vector)).numpy()


@dataclass
class HospitalSums:
    """Sums over rounds t after burn-in of omega_t G_t and omega_t w_t at every site, (K, d), and what weighs them.

    `totals`, (K, 3): of omega_t, of omega_t^2 (sigma_t C)^2, and rounds. Sites are in the order in which they came;
    `units` are n_k as declared.
    """

    sites: list[str] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    gradients: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    states: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    totals: Floats = field(default_factory=lambda: np.zeros((0, 3)))

    def add(self, site: str, chain: PlannedChain, step: int, broadcast: Floats, state: Floats) -> None:
        """Add one round of a site: it stepped from `broadcast` to `state`, flat vectors (d,)."""
        if site not in self.sites:
            self.sites.append(site)
            self.units.append(chain.units)
            for name, width in zip(_ARRAYS, (len(state), len(state), 3), strict=True):
                setattr(self, name, np.vstack([getattr(self, name).reshape(-1, width), np.zeros((1, width))]))
        row, sd = self.sites.index(site), float(chain.noise_multipliers[step]) * chain.plan.privacy.noise_unit
        weight = 1 / sd**2 if sd > 0 else 1.0
        self.gradients[row] += weight * noisy_clipped_sum(broadcast, state, chain, step)
        self.states[row] += weight * broadcast
        self.totals[row] += weight, (weight * sd) ** 2, 1

    def means(self) -> "HospitalMeans":
        """Divide the sums by their weights."""
        weights = self.totals[:, :1]
        noise = np.sqrt(self.totals[:, 1]) / self.totals[:, 0]
        return HospitalMeans(
            tuple(self.sites), np.array(self.units, dtype=np.float64), self.gradients / weights, self.states / weights,
            noise, self.totals[:, 2],
        )  # fmt: skip

    def arrays(self) -> dict[str, Floats]:
        """Return the arrays by name, as a checkpoint keeps them beside `sites` and `units`."""
        return {name: getattr(self, name) for name in _ARRAYS} if self.sites else {}

    @classmethod
    def of(cls, sites: Sequence[str], units: Sequence[int], arrays: Mapping[str, Floats]) -> "HospitalSums":
        """Read back what `arrays` gave."""
        kept = {name: np.array(arrays[name], dtype=np.float64) for name in _ARRAYS if name in arrays}
        return cls(list(sites), list(units), **kept)


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
