"""The noise of every planned step at a site, known from the plan and the site's declared size alone."""

from functools import lru_cache

import numpy as np

from fl_dpbayes.config.plan import NoPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.privacy.events import GaussianEvent, History, history_of_steps, noise_of_steps
from fl_dpbayes.privacy.solve import SolvedNoise, solve_noise
from fl_dpbayes.samplers.noise import noise_multipliers
from fl_dpbayes.samplers.planned import PlannedChain, noise_scale, noise_without_privacy, planned_step_sizes

# Twice the tolerance of a solved epsilon: noise solved for the same budget on two machines differs by less.
NOISE_TOLERANCE = 2e-3


def planned_chain(plan: TrainingPlan, units: int) -> PlannedChain:
    """Compute what a site of this size solves, its noise to `NOISE_TOLERANCE`.

    Only the solved noise of `floor` depends on the size, so that of the other couplings is solved once for all sites.

    Args:
        plan: the whole run's plan.
        units: n, the number of privacy units that the site declares, above zero.

    Returns:
        The run's chains at the site.

    Raises:
        UserError: if no noise meets the plan's budget.
        ValueError: if a decaying step size underflows to zero.
    """
    privacy, declared = plan.privacy, units
    if isinstance(privacy, NoPrivacyPlan):
        return PlannedChain(plan, units, noise_without_privacy(plan, units))
    sigma, temperature = privacy.noise_multiplier, privacy.temperature
    if privacy.coupling in ("constant", "floor") and sigma is None:
        sigma, _ = _solved(plan, units if privacy.coupling == "floor" else 1)
    elif privacy.coupling in ("temperature", "langevin") and temperature is None:
        _, temperature = _solved(plan, 1)
        units = 1
    sizes, scale = planned_step_sizes(plan), noise_scale(plan, units)
    return PlannedChain(plan, declared, noise_multipliers(privacy.coupling, sizes, scale, sigma, temperature))


def chain_of_history(plan: TrainingPlan, units: int, history: History) -> PlannedChain:
    """Return the chains whose noise a ledger's history of the plan has fixed; steps beyond it have infinite noise."""
    if isinstance(plan.privacy, NoPrivacyPlan):
        return PlannedChain(plan, units, noise_without_privacy(plan, units))
    noise = np.full(plan.total_steps, np.inf)
    known = noise_of_steps(history)
    noise[: len(known)] = known
    return PlannedChain(plan, units, noise)


def planned_history(chain: PlannedChain, steps: range) -> History:
    """Return a stretch of the plan as the events that a ledger holds; without privacy they have no noise."""
    rate = chain.plan.privacy.sampling_rate
    if isinstance(chain.plan.privacy, NoPrivacyPlan):
        return (GaussianEvent(0.0, rate, len(steps)),)
    return history_of_steps(chain.noise_multipliers[steps.start : steps.stop], rate)


@lru_cache(maxsize=1024)
def _solved(plan: TrainingPlan, units: int) -> tuple[float | None, float | None]:
    """Solve sigma or the temperature, whichever the coupling leaves free."""
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    solved: SolvedNoise = solve_noise(privacy, planned_step_sizes(plan), units, friction=plan.sampler.momentum_lost)
    return solved.noise_multiplier, solved.temperature
