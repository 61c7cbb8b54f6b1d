"""The noise of every planned step at a site, known from the plan and the site's declared size alone."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import NoPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import friction
from fl_dpbayes.privacy.events import GaussianEvent, History, history_of_steps
from fl_dpbayes.privacy.solve import SolvedNoise, solve_noise
from fl_dpbayes.samplers.noise import noise_multipliers
from fl_dpbayes.samplers.planned import noise_without_privacy, planned_step_sizes

Array = npt.NDArray[np.float64]

# Twice the tolerance of a solved epsilon: noise solved for the same budget on two machines differs by less.
NOISE_TOLERANCE = 2e-3


def planned_noise(plan: TrainingPlan, units: int) -> Array:
    """Compute what a site of this size solves, to `NOISE_TOLERANCE`.

    Only the solved noise of `floor` depends on the size, so that of the other couplings is solved once for all sites.

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
    if privacy.coupling in ("constant", "floor") and sigma is None:
        sigma, _ = _solved(plan, units if privacy.coupling == "floor" else 1)
    elif privacy.coupling in ("temperature", "langevin") and temperature is None:
        _, temperature = _solved(plan, 1)
        units = 1
    return noise_multipliers(
        privacy.coupling,
        step_sizes=planned_step_sizes(plan),
        noise_multiplier=sigma,
        temperature=temperature,
        clip_norm=privacy.clip_norm,
        expected_batch_size=privacy.sampling_rate * units,
        units=units,
        friction=friction(plan.sampler),
    )


def planned_history(plan: TrainingPlan, noise: Array, first_step: int, steps: int) -> History:
    """Return a stretch of the plan as the events that a ledger holds.

    Args:
        plan: the whole run's plan.
        noise: sigma_t of the whole run, as `planned_noise` gives it.
        first_step: 0-based.
        steps: how many.

    Returns:
        Events in the order of the steps; without privacy they have no noise.
    """
    rate = plan.privacy.sampling_rate
    if isinstance(plan.privacy, NoPrivacyPlan):
        return (GaussianEvent(0.0, rate, steps),)
    return history_of_steps(noise[first_step : first_step + steps], rate)


@lru_cache(maxsize=1024)
def _solved(plan: TrainingPlan, units: int) -> tuple[float | None, float | None]:
    """Solve sigma or the temperature, whichever the coupling leaves free."""
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    solved: SolvedNoise = solve_noise(privacy, planned_step_sizes(plan), units, friction=friction(plan.sampler))
    return solved.noise_multiplier, solved.temperature
