"""What is told before a run whose budget is far too small for its sites."""

import numpy as np

from fl_dpbayes.config import PrivacyPlan, Scenario, site_plan
from fl_dpbayes.privacy import solve_noise, solve_plan
from fl_dpbayes.report import rounded_up, significant
from fl_dpbayes.schedules import PlannedChain, planned_step_sizes

TOO_HOT = 100.0
AMPLE = 1e6


def weak_budget(scenario: Scenario, units: dict[str, int]) -> str:
    """Say that the noise makes the chain more than 100 times too hot at the smallest site, and which epsilon would do.

    `units`: training site -> declared n. Empty where nothing is wrong, or the run is not private or
    has no temperature.
    """
    privacy = scenario.privacy
    if not isinstance(privacy, PrivacyPlan) or not scenario.sampler.has_temperature:
        return ""
    name = min(units, key=lambda site: units[site])
    plan = site_plan(scenario, len(units))
    chain = PlannedChain(plan, units[name], solve_plan(plan, units[name]).noise_multipliers)
    reached, wanted = (
        float(np.average(chain.temperatures, weights=chain.step_sizes)),
        privacy.temperature or 1.0,
    )
    if privacy.coupling != "floor" or reached <= TOO_HOT * wanted:
        return ""
    enough, friction = privacy.model_copy(update={"epsilon": AMPLE}), plan.sampler.momentum_lost
    needed = solve_noise(enough, planned_step_sizes(plan), units[name], friction=friction).epsilon
    said = (
        f"privacy.epsilon {privacy.epsilon:g} is far too small for the {units[name]:,} units "
        f"of {name}: noise makes"
    )
    hot = (
        f"the temperature {significant(reached)} where {wanted:g} is planned, so predictions "
        "will be little but noise"
    )
    return (
        f"{said} {hot}. Epsilon {rounded_up(needed)} would do there, or more units, fewer "
        "steps or smaller ones."
    )
