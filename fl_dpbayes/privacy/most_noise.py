"""The most noise that any site adds under a plan, known from the plan and the site's declared size alone."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fl_dpbayes.privacy.solve import solve_noise
from fl_dpbayes.protocol.plan import NoPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.schedules.noise import noise_multipliers
from fl_dpbayes.schedules.planned import friction, noise_without_privacy, planned_step_sizes

Array = npt.NDArray[np.float64]

# Twice the tolerance of a solved epsilon, in noise: a site may have solved on another machine.
ROUNDING = 1.01


def most_noise(plan: TrainingPlan, units: int) -> Array:
    """Bound the noise multiplier of every planned step from above.

    It equals what a site of this size solves, to 1 %, but for the coupling `floor`: there sigma is at most that of the
    coupling `constant`, because Langevin noise only adds privacy, so sigma_t <= max(sigma_constant, langevin_t).

    Args:
        plan: the whole run's plan.
        units: n, the number of privacy units that the site declares, above zero.

    Returns:
        sigma_t in the plan's noise unit, shape (plan.total_steps,).

    Raises:
        UserError: if no noise meets the plan's budget.
        ValueError: if a decaying step size underflows to zero.
    """
    privacy = plan.privacy
    if isinstance(privacy, NoPrivacyPlan):
        return noise_without_privacy(plan, privacy, units)
    sigma, temperature = privacy.noise_multiplier, privacy.temperature
    if privacy.coupling in ("constant", "floor"):
        sigma = sigma or float(_solved(plan).max())
    elif temperature is None:
        return _solved(plan) * ROUNDING
    return ROUNDING * noise_multipliers(
        privacy.coupling,
        step_sizes=planned_step_sizes(plan),
        noise_multiplier=sigma,
        temperature=temperature,
        clip_norm=privacy.clip_norm,
        expected_batch_size=privacy.sampling_rate * units,
        units=units,
        friction=friction(plan.sampler),
    )


@lru_cache(maxsize=4)
def _solved(plan: TrainingPlan) -> Array:
    """Solve the noise that no site's size enters: that of `constant`, or of a coupling whose temperature is solved."""
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    if privacy.coupling == "floor":
        privacy = privacy.model_copy(update={"coupling": "constant", "temperature": None})
    return solve_noise(privacy, planned_step_sizes(plan), units=1, friction=friction(plan.sampler)).noise_multipliers
