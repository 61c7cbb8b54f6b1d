"""The warning before a run whose budget is far too small for its sites."""

import numpy as np

from fl_dpbayes.config import PrivacyPlan, Scenario, site_plan
from fl_dpbayes.privacy import solve_noise, solve_plan
from fl_dpbayes.report import rounded_up, significant
from fl_dpbayes.schedules import PlannedChain, planned_step_sizes

# Times the planned temperature.
TOO_HOT = 100.0
# So large an epsilon that noise is solved for the temperature alone.
AMPLE_EPSILON = 1e6


def weak_budget(scenario: Scenario, units: dict[str, int]) -> str:
    """Warn if noise makes the chain more than 100 times too hot at the smallest site.

    Args:
        scenario: The scenario.
        units: Training site -> declared number n of privacy units.

    Returns:
        The warning, with the epsilon that would do; "" where nothing is wrong, or the run is not
        private or has no temperature.
    """
    privacy = scenario.privacy
    if not isinstance(privacy, PrivacyPlan) or not scenario.sampler.has_temperature:
        return ""
    smallest = min(units, key=lambda site: units[site])
    plan = site_plan(scenario, len(units))
    noise = solve_plan(plan, units[smallest])
    chain = PlannedChain(plan, units[smallest], noise.noise_multipliers)
    temperature = float(np.average(chain.temperatures, weights=chain.step_sizes))
    planned = privacy.temperature or 1.0
    if privacy.coupling != "floor" or temperature <= TOO_HOT * planned:
        return ""
    enough = solve_noise(
        privacy.model_copy(update={"epsilon": AMPLE_EPSILON}),
        planned_step_sizes(plan),
        units[smallest],
        friction=plan.sampler.momentum_lost,
    )
    return (
        f"privacy.epsilon {privacy.epsilon:g} is far too small for the {units[smallest]:,} units "
        f"of {smallest}: noise makes the temperature {significant(temperature)} where {planned:g} "
        "is planned, so predictions will be little but noise. Epsilon "
        f"{rounded_up(enough.epsilon)} would do there, or more units, fewer steps or smaller ones."
    )
