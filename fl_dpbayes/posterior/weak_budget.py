"""The warning of a run whose budget is far too small for its sites."""

import math
from collections.abc import Mapping

from fl_dpbayes.config import (
    PrivacyPlan,
    RunWarning,
    Scenario,
    TrainingPlan,
    site_plan,
    warning,
)
from fl_dpbayes.models import model_shapes
from fl_dpbayes.privacy import planned_chain, solve_noise
from fl_dpbayes.schedules import planned_step_sizes

# From this share on the noise's the log loss was above that of the plain rate at three tables of
# four that were tried (heart, two of made-up patients; not breast cancer).
DROWNED = 0.3


def weak_budget(scenario: Scenario, units: Mapping[str, int]) -> tuple[RunWarning, ...]:
    """Warn if noise drowns what a run can learn.

    Args:
        scenario: The scenario.
        units: Training site -> declared number n of privacy units.

    Returns:
        The warning, with the epsilon up to which noise drowns; none where nothing is wrong, or the
        run is not private.
    """
    privacy = scenario.privacy
    if not isinstance(privacy, PrivacyPlan) or not units:
        return ()
    plan = site_plan(scenario, len(units))
    shapes = model_shapes(scenario.model, scenario.data.source.task)
    share = noise_share(plan, units, parameters=sum(map(math.prod, shapes.values())))
    if share <= DROWNED:
        return ()
    multiplier = max(
        float(planned_chain(plan, size).noise_multipliers.max()) for size in units.values()
    )
    enough = solve_noise(
        privacy.model_copy(
            update={
                "coupling": "constant",
                "temperature": None,
                "noise_multiplier": multiplier * DROWNED / share,
            }
        ),
        planned_step_sizes(plan),
        min(units.values()),
    )
    return (
        warning(
            "weak-budget",
            epsilon=privacy.epsilon,
            units=sum(units.values()),
            sites=len(units),
            drowned_to=enough.epsilon,
            times=share / DROWNED,
        ),
    )


def noise_share(plan: TrainingPlan, units: Mapping[str, int], parameters: int) -> float:
    """Return how long the noise is on the mean gradient of all steps and sites, in clip norms.

        sqrt(d sum_k sum_t sigma_kt^2) / (q N T)

    Args:
        plan: The plan of each site.
        units: Site -> n_k > 0; N is their sum.
        parameters: d, the number of trained parameters.
    """
    squares = sum(
        float((planned_chain(plan, size).noise_multipliers ** 2).sum()) for size in units.values()
    )
    steps = plan.total_steps
    total = plan.privacy.sampling_rate * sum(units.values())
    return math.sqrt(parameters * squares) / (total * steps)
