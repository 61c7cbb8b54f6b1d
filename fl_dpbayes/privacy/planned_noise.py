"""The noise of every planned step at a site, and what a stretch is, from the plan and the site's declared size."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import NoPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.privacy.events import GaussianEvent, History, history_of_steps, noise_of_steps
from fl_dpbayes.privacy.solve import SolvedNoise, solve_noise
from fl_dpbayes.samplers.noise import noise_multipliers
from fl_dpbayes.samplers.planned import PlannedChain, noise_scale, noise_without_privacy, planned_step_sizes

Array = npt.NDArray[np.float64]

# Twice the tolerance of a solved epsilon: noise solved for the same budget on two machines differs by less.
NOISE_TOLERANCE = 2e-3


def planned_chain(plan: TrainingPlan, units: int) -> PlannedChain:
    """Compute what a site of this size solves, its noise to `NOISE_TOLERANCE`.

    Only the solved noise of `floor` depends on the size, so that of the other couplings is solved once for all sites.

    Raises UserError if no noise meets the plan's budget. Raises ValueError if a decaying step size underflows to
    zero.
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


@dataclass(frozen=True)
class PlannedStretch:
    """Steps of a plan at a site: public constants, which the server computes and no reply states.

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
    """Compute a stretch of one step or more from the plan and the number of units that the site declares.

    Raises UserError if no noise meets the plan's budget, so that no site can have run it. Raises ValueError if a
    decaying step size underflows to zero.
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


@lru_cache(maxsize=1024)
def _solved(plan: TrainingPlan, units: int) -> tuple[float | None, float | None]:
    """Solve sigma or the temperature, whichever the coupling leaves free."""
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    solved: SolvedNoise = solve_noise(privacy, planned_step_sizes(plan), units, friction=plan.sampler.momentum_lost)
    return solved.noise_multiplier, solved.temperature
