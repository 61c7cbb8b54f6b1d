"""The step sizes and the noise of a whole plan, all its chains one after the other."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import NoPrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import friction, has_temperature
from fl_dpbayes.samplers.noise import langevin_noise, temperatures
from fl_dpbayes.samplers.step_size import step_sizes

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
