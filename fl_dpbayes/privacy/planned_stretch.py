"""What a stretch of a site's chain is by its plan: public constants, which the server computes and no reply states."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.planned_noise import planned_chain, planned_history

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PlannedStretch:
    """Steps `first_step` to `first_step + steps` of a plan at a site.

    Attributes:
        weights: step sizes a_t of the samples that are kept, shape (M,).
        temperatures: T_t of these samples, 0 where the sampler has none, shape (M,).
        step_weight: sum of a_t over the stretch.
        temperature: mean of T_t over the stretch, weighted by a_t.
        temperature_range: its smallest and largest T_t.
        last_step_size: a_t of its last step.
        history: what it does to the records, as the site's ledger holds it.
        reached: the same of all planned steps up to its last one.
    """

    weights: Array
    temperatures: Array
    step_weight: float
    temperature: float
    temperature_range: tuple[float, float]
    last_step_size: float
    history: History
    reached: History


def planned_stretch(plan: TrainingPlan, units: int, first_step: int, steps: int) -> PlannedStretch:
    """Compute a stretch from the plan and the site's declared size.

    Args:
        plan: the whole run's plan.
        units: n, the number of privacy units that the site declares, above zero.
        first_step: 0-based, of the whole run.
        steps: how many, 1 or more, within the plan.

    Returns:
        The stretch.

    Raises:
        UserError: if no noise meets the plan's budget, so that no site can have run it.
        ValueError: if a decaying step size underflows to zero.
    """
    chain = planned_chain(plan, units)
    sizes, every = chain.step_sizes, chain.temperatures
    end = first_step + steps
    kept = [step for step in range(first_step, end) if plan.is_kept(step)]
    of_steps = sizes[first_step:end], every[first_step:end]
    return PlannedStretch(
        weights=sizes[kept],
        temperatures=every[kept],
        step_weight=float(of_steps[0].sum()),
        temperature=float(np.average(of_steps[1], weights=of_steps[0])),
        temperature_range=(float(of_steps[1].min()), float(of_steps[1].max())),
        last_step_size=float(sizes[end - 1]),
        history=planned_history(chain, range(first_step, end)),
        reached=planned_history(chain, range(end)),
    )
