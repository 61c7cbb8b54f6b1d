"""The step sizes and the noise of a whole plan, all its chains one after the other."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.protocol.plan import AnyPrivacyPlan, NoPrivacyPlan, TrainingPlan
from fl_dpbayes.protocol.sampler import SGD, SGHMC, MCDropout, Sampler
from fl_dpbayes.schedules.noise import langevin_noise, temperatures
from fl_dpbayes.schedules.step_size import step_sizes

Array = npt.NDArray[np.float64]


def planned_step_sizes(plan: TrainingPlan) -> Array:
    """Return a_t of every step of a plan; each chain starts the schedule anew.

    Args:
        plan: the whole run's plan.

    Returns:
        Shape (plan.total_steps,), above zero.

    Raises:
        ValueError: if a decaying step size underflows to zero.
    """
    return np.tile(step_sizes(plan.step_size, plan.chain_steps), plan.chains)


def friction(sampler: Sampler) -> float:
    """Return the share of the momentum that a step of the sampler loses, 1 where it has none.

    Gradient descent with momentum beta is stochastic gradient Hamiltonian Monte Carlo with friction 1 - beta.
    """
    match sampler:
        case SGHMC():
            return sampler.friction
        case SGD() | MCDropout():
            return 1.0 - sampler.momentum
        case _:
            return 1.0


def has_temperature(sampler: Sampler) -> bool:
    """Say whether the sampler is Langevin dynamics at some temperature, so that T_t of its steps means something."""
    return sampler.kind.removeprefix("dp-") in ("sgld", "sgd", "sghmc")


def check_temperature(sampler: Sampler, privacy: AnyPrivacyPlan) -> None:
    """Check that noise is shaped or raised for a temperature only where the sampler has one.

    Args:
        sampler: the plan's algorithm.
        privacy: its noise.

    Raises:
        ValueError: naming the key, and the remedy.
    """
    if has_temperature(sampler):
        return
    if isinstance(privacy, NoPrivacyPlan):
        if privacy.temperature is not None:
            raise ValueError(
                f"privacy.temperature is {privacy.temperature:g}: sampler.kind {sampler.kind!r} has no temperature, so "
                "its noise would serve nothing: remove privacy.temperature, or choose sampler.kind 'sgld'"
            )
    elif privacy.coupling != "constant":
        raise ValueError(
            f"privacy.coupling is {privacy.coupling!r}, which makes noise for a temperature that sampler.kind "
            f"{sampler.kind!r} does not have: set privacy.coupling = 'constant' and remove privacy.temperature, or "
            "choose sampler.kind 'dp-sgld', 'dp-sgd' or 'dp-sghmc'"
        )


def noise_without_privacy(plan: TrainingPlan, privacy: NoPrivacyPlan, units: int) -> Array:
    """Return the standard deviation of the noise on the sum in a run without privacy.

    Args:
        plan: the whole run's plan.
        privacy: its settings.
        units: n, above zero.

    Returns:
        Shape (plan.total_steps,): sqrt(2 alpha tau / (n a_t)) B at temperature tau and friction alpha, or the constant.
    """
    sizes = planned_step_sizes(plan)
    if privacy.temperature is None:
        return np.full(sizes.shape, privacy.noise_standard_deviation)
    return langevin_noise(
        sizes,
        privacy.temperature,
        clip_norm=privacy.noise_unit,
        expected_batch_size=privacy.sampling_rate * units,
        units=units,
        friction=friction(plan.sampler),
    )


def planned_temperatures(plan: TrainingPlan, noise_multipliers: Array, units: int) -> Array:
    """Return the instantaneous temperature T_t of every step of a plan, by the formula of `temperatures`.

    Args:
        plan: the whole run's plan.
        noise_multipliers: sigma_t in the plan's noise unit, shape (plan.total_steps,).
        units: n, above zero.

    Returns:
        Shape (plan.total_steps,); 0 for a sampler without a temperature.
    """
    if not has_temperature(plan.sampler):
        return np.zeros(plan.total_steps)
    return temperatures(
        planned_step_sizes(plan),
        noise_multipliers,
        clip_norm=plan.privacy.noise_unit,
        expected_batch_size=plan.privacy.sampling_rate * units,
        units=units,
        friction=friction(plan.sampler),
    )
