"""How far a chain can get from its start in a number of planned steps: clipping and the planned noise bound it."""

import math

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.sampler import SGD, SGHMC, SGLD, FlatPrior, GaussianPrior, LaplacePrior, Sampler
from fl_dpbayes.samplers.planned import planned_step_sizes

Array = npt.NDArray[np.float64]

# With this probability an honest chain leaves the bound in one stretch.
FAILURE_PROBABILITY = 1e-12


def reach(
    plan: TrainingPlan,
    noise_multipliers: Array,
    *,
    units: int,
    most_units: float,
    first_step: int,
    steps: int,
    parameters: int,
    start_norm: float,
    start_momentum: float = 0.0,
) -> Array | None:
    """Bound how far a chain is from its start after each step of a stretch, and how long its momentum is.

    The update is linear in x_t = (w_t - w_0, m_t), the second part for samplers with momentum:

        x_{t+1} = A_t x_t + g_t (G_t / B + s/n grad(-log p)(w_0) + sigma_t C xi_t / B),

    A_t with the pull s / (n scale^2) of a Gaussian prior. So x_t = D_t + N_t. D_t carries the clipped sums, of which
    |G_t| <= C b with b members of the batch, hence

        |D_{t+1}| <= |A_t| |D_t| + |g_t| (C b / B + prior's part),    entry by entry,

    and b is at most most_units q + u/3 + sqrt(u^2/9 + 2 u most_units q) but with probability exp(-u) (Bernstein), never
    above most_units. N_t is Gaussian with covariance P_t (x) I, P_{t+1} = A_t P_t A_t^T + g_t g_t^T (sigma_t C / B)^2,
    and |xi| <= sqrt(d) + sqrt(2 u) but with probability exp(-u) for xi ~ N(0, I_d).

    Args:
        plan: the whole run's plan.
        noise_multipliers: at least sigma_t of each step of the whole run in the plan's noise unit, shape
            (plan.total_steps,).
        units: n, the number of privacy units that the site declares, above zero.
        most_units: how many the site may hold, at least n.
        first_step: number of the stretch's first step within the run.
        steps: how many, within one chain.
        parameters: number of the model's parameters, d.
        start_norm: |w_0|.
        start_momentum: |m_0|, 0 for a sampler without momentum.

    Returns:
        Shape (steps, 2): after each step the greatest |w_t - w_0| and |m_t|, exceeded with probability at most 1e-12 in
        the whole stretch. None where there is no such bound: without a clip norm, for Adam (its step has no noise of
        known size), for Bayes by backprop and dropout (whose samples are draws), for a prior of another kind, and for
        one that a cavity replaces.

    References:
        Boucheron, Lugosi and Massart 2013, "Concentration inequalities", Corollary 2.11 (Bernstein) and Theorem 5.6
        (Gaussian concentration).
    """
    privacy, prior, share = plan.privacy, plan.prior, plan.prior_share / units
    linear = isinstance(plan.sampler, SGLD | SGD | SGHMC) and plan.prior_source != "cavity"
    if privacy.clip_norm is None or not linear:
        return None
    tail = math.log(3 * steps / FAILURE_PROBABILITY)
    joined = most_units * privacy.sampling_rate
    members = min(most_units, joined + tail / 3 + math.sqrt(tail**2 / 9 + 2 * tail * joined))
    expected_batch_size = privacy.sampling_rate * units
    push, pull = members * privacy.clip_norm / expected_batch_size, 0.0
    match prior:
        case GaussianPrior():
            pull = share / prior.scale**2
            push += pull * start_norm
        case LaplacePrior():
            push += share * math.sqrt(parameters) / prior.scale
        case FlatPrior():
            pass
        case _:
            return None
    length = math.sqrt(parameters) + math.sqrt(2 * tail)
    stretch = slice(first_step, first_step + steps)
    pushed, covariance, rows = np.array([0.0, start_momentum]), np.zeros((2, 2)), []
    for step_size, sigma in zip(planned_step_sizes(plan)[stretch], noise_multipliers[stretch], strict=True):
        transition, gain = _update(plan.sampler, float(step_size), pull)
        pushed = np.abs(transition) @ pushed + np.abs(gain) * push
        noise = gain * (sigma * privacy.noise_unit / expected_batch_size)
        covariance = transition @ covariance @ transition.T + np.outer(noise, noise)
        rows.append(pushed + length * np.sqrt(np.diag(covariance)))
    return np.array(rows)


def _update(sampler: Sampler, step_size: float, pull: float) -> tuple[Array, Array]:
    """Return A and g of x <- A x + g d, where d is the drift without the pull of the prior at w_0.

    Langevin: w <- w - a d. Momentum beta: m <- beta m + d, w <- w - a m. Hamiltonian: v <- (1 - alpha) v - a d,
    w <- w + v.
    """
    a = step_size
    match sampler:
        case SGHMC():
            kept = 1 - sampler.friction
            return np.array([[1 - a * pull, kept], [-a * pull, kept]]), np.array([-a, -a])
        case SGD(momentum=beta) if beta > 0:
            return np.array([[1 - a * pull, -a * beta], [pull, beta]]), np.array([-a, 1.0])
        case _:
            return np.array([[1 - a * pull, 0.0], [0.0, 0.0]]), np.array([-a, 0.0])
