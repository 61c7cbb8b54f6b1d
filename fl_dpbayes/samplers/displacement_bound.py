"""How far a chain can get from its start in planned steps: clipping and the planned noise bound it.

The proof is in docs/proofs/displacement.md.
"""

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
    """Bound a chain's distance from its start, and its momentum, after each step of a stretch.

    A step is linear in x_t = (w_t - w_0, m_t). So x_t is what clipped sums of b members carry, b
    bounded by Bernstein's inequality, plus Gaussian noise of known covariance.

    Args:
        chain: The plan, with at least sigma_t for its noise multipliers.
        steps: Numbers of the stretch's steps within the run.
        most_units: How many units the site may hold, at least the declared n.
        parameters: d, the number of parameters.
        start_norm: |w_0|.
        start_momentum: |m_0|.

    Returns:
        Shape (steps, 2): after each step the greatest |w_t - w_0| and |m_t|, exceeded with
        probability at most 1e-12 in the whole stretch. None where there is no such bound: without
        a clip norm, for samplers whose step is not linear or whose samples are draws, and for
        other priors.
    """
    plan = chain.plan
    privacy = plan.privacy
    prior = plan.sampler.prior
    if privacy.clip_norm is None or not plan.sampler.has_temperature:
        return None
    tail = math.log(3 * len(steps) / FAILURE_PROBABILITY)
    members = _most_members(most_units, sampling_rate=privacy.sampling_rate, tail=tail)
    expected_batch_size = chain.scale.expected_batch_size
    # The mean energy's gradient at w is at most `push`, plus `pull` times w - w_0.
    push = members * privacy.clip_norm / expected_batch_size
    pull = 0.0
    prior_weight = plan.prior_share / chain.units
    if isinstance(prior, GaussianPrior):
        pull = prior_weight / prior.scale**2
        push += pull * start_norm
    elif isinstance(prior, LaplacePrior):
        push += prior_weight * math.sqrt(parameters) / prior.scale
    elif not isinstance(prior, FlatPrior):
        return None
    # A standard normal vector of d entries is longer with probability at most exp(-tail).
    noise_length = math.sqrt(parameters) + math.sqrt(2 * tail)
    algorithm = build_algorithm(plan.sampler, torch.nn.Identity())
    pushed = np.array([0.0, start_momentum])
    covariance = np.zeros((2, 2))
    bounds = []
    for number in steps:
        transition, gain = _linear_step(
            algorithm, step_size=float(chain.step_sizes[number]), pull=pull
        )
        pushed = np.abs(transition) @ pushed + np.abs(gain) * push
        noise = gain * (chain.noise_multipliers[number] * privacy.noise_unit / expected_batch_size)
        covariance = transition @ covariance @ transition.T + np.outer(noise, noise)
        bounds.append(pushed + noise_length * np.sqrt(np.diag(covariance)))
    return np.array(bounds)


def _most_members(most_units: float, sampling_rate: float, tail: float) -> float:
    """Bound a batch's size, exceeded with probability exp(-tail), by Bernstein's inequality."""
    mean = most_units * sampling_rate
    return min(most_units, mean + tail / 3 + math.sqrt(tail**2 / 9 + 2 * tail * mean))


def _linear_step(algorithm: Algorithm, step_size: float, pull: float) -> tuple[Array, Array]:
    """Read A and g of x <- A x + g d off the step itself.

    d is the gradient without the pull of the prior at w_0.
    """
    # Columns of the result: what follows from a unit of position, of momentum and of gradient.
    position, momentum, push = torch.eye(3, dtype=torch.float64)
    state = ChainState({"parameters": position, "momentum": momentum})
    after = algorithm.step(state, push + pull * position, step_size)
    momentum_after = after.vectors.get("momentum", torch.zeros_like(momentum))
    columns = torch.stack([after.parameters, momentum_after]).numpy()
    return columns[:, :2], columns[:, 2]
