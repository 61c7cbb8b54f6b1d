"""How far a chain can get from its start in a number of planned steps: clipping and the planned noise bound it."""

import math

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.config import FlatPrior, GaussianPrior, LaplacePrior
from fl_dpbayes.samplers.algorithm import Algorithm, build_algorithm
from fl_dpbayes.samplers.state_vectors import ChainState
from fl_dpbayes.schedules import PlannedChain

Array = npt.NDArray[np.float64]

# With this probability an honest chain leaves the bound in one stretch.
FAILURE_PROBABILITY = 1e-12


def displacement_bound(
    chain: PlannedChain,
    steps: range,
    *,
    most_units: float,
    parameters: int,
    start_norm: float,
    start_momentum: float = 0.0,
) -> Array | None:
    """Bound how far a chain is from its start after each step of a stretch, and how long its momentum is.

    A step is linear in x_t = (w_t - w_0, m_t), so x_t is what clipped sums of b members carry, b
    bounded by Bernstein's inequality, plus Gaussian noise of known covariance
    (docs/proofs/displacement.md).

    `chain`: with at least sigma_t for its noise multipliers. `most_units`: how many units the site
    may hold, at least the declared n. `start_norm`: |w_0|. `start_momentum`: |m_0|. Returns shape
    (steps, 2): after each step the greatest
    |w_t - w_0| and |m_t|, exceeded with probability at most 1e-12 in the whole stretch. None where there is no such
    bound: without a clip norm, for samplers whose step is not linear or whose samples are draws, and for other priors.
    """
    plan = chain.plan
    privacy, prior, share = plan.privacy, plan.sampler.prior, plan.prior_share / chain.units
    if privacy.clip_norm is None or not plan.sampler.has_temperature:
        return None
    tail = math.log(3 * len(steps) / FAILURE_PROBABILITY)
    joined = most_units * privacy.sampling_rate
    members = min(most_units, joined + tail / 3 + math.sqrt(tail**2 / 9 + 2 * tail * joined))
    expected_batch_size = chain.scale.expected_batch_size
    push, pull = members * privacy.clip_norm / expected_batch_size, 0.0
    if isinstance(prior, GaussianPrior):
        pull = share / prior.scale**2
        push += pull * start_norm
    elif isinstance(prior, LaplacePrior):
        push += share * math.sqrt(parameters) / prior.scale
    elif not isinstance(prior, FlatPrior):
        return None
    length = math.sqrt(parameters) + math.sqrt(2 * tail)
    algorithm = build_algorithm(plan.sampler, torch.nn.Identity())
    pushed, covariance, rows = np.array([0.0, start_momentum]), np.zeros((2, 2)), []
    for number in steps:
        transition, gain = _update(algorithm, float(chain.step_sizes[number]), pull)
        pushed = np.abs(transition) @ pushed + np.abs(gain) * push
        noise = gain * (chain.noise_multipliers[number] * privacy.noise_unit / expected_batch_size)
        covariance = transition @ covariance @ transition.T + np.outer(noise, noise)
        rows.append(pushed + length * np.sqrt(np.diag(covariance)))
    return np.array(rows)


def _update(algorithm: Algorithm, step_size: float, pull: float) -> tuple[Array, Array]:
    """Read A and g of x <- A x + g d off the step itself, d without the pull of the prior at w_0."""
    position, momentum, push = torch.eye(3, dtype=torch.float64)
    state = ChainState({"parameters": position, "momentum": momentum})
    after = algorithm.step(state, push + pull * position, step_size)
    moved = after.vectors.get("momentum", torch.zeros_like(momentum))
    columns = torch.stack([after.parameters, moved]).numpy()
    return columns[:, :2], columns[:, 2]
