"""The noise of every planned step at a site: how much a budget asks for, and what a stretch of the plan costs."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Adjacency, NoPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.events import (
    GaussianEvent,
    History,
    history_of_steps,
    noise_of_steps,
    slice_history,
)
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.schedules import (
    NoiseScale,
    PlannedChain,
    noise_multipliers,
    noise_scale,
    noise_without_privacy,
    planned_step_sizes,
)

Array = npt.NDArray[np.float64]

# A solved epsilon lies in [(1 - TOLERANCE) budget, budget].
TOLERANCE = 1e-3
# The least noise multiplier of a solved schedule is sought in this range.
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6


@dataclass(frozen=True)
class SolvedNoise:
    """The noise sigma_t of every planned step, (T,), and what it costs by its privacy-loss distribution.

    `noise_multiplier`: sigma of the couplings `constant` and `floor`; 0 where `floor` never needs
    its floor. `temperature`: tau of the couplings `temperature`, `langevin` and `floor`.
    """

    noise_multipliers: Array
    noise_multiplier: float | None
    temperature: float | None
    history: History
    epsilon: float
    delta: float
    adjacency: Adjacency


def solve_plan(plan: TrainingPlan, units: int) -> SolvedNoise:
    """Fix the noise of every step of a whole plan, all its chains together, at a site of so many privacy units.

    Without privacy the noise is a standard deviation on the sum, and whatever it is, the history
    says that there was none: epsilon is infinite. Raises UserError if no noise meets the budget.
    Raises ValueError if a decaying step size underflows to zero.
    """
    privacy = plan.privacy
    if isinstance(privacy, NoPrivacyPlan):
        history = (GaussianEvent(0.0, privacy.sampling_rate, plan.total_steps),)
        noise = noise_without_privacy(plan, units)
        return SolvedNoise(
            noise, None, privacy.temperature, history, math.inf, privacy.delta, privacy.adjacency
        )
    return solve_noise(
        privacy, planned_step_sizes(plan), units, friction=plan.sampler.momentum_lost
    )


def solve_noise(
    plan: PrivacyPlan, step_sizes: Array, units: int, *, friction: float = 1.0
) -> SolvedNoise:
    """Fix the noise of every planned step, solving the coupling's free parameter where the plan leaves it out.

    The free parameter is sigma for `constant` and `floor`, tau for `temperature` and `langevin`.
    Where the plan gives it, it is used as it is, whatever it costs. Solved, the whole plan costs at
    most its epsilon and at least 99.9 % of it, except that a `floor` whose Langevin noise alone
    meets the budget has sigma 0 and may cost less.

    `step_sizes`: a_t of the whole plan, (T,). `units`: n, as the site declares. `friction`: alpha
    of Hamiltonian dynamics in (0, 1], which the Langevin noise follows. Raises UserError if no
    noise multiplier between 0.001 and a million meets the budget to 0.1 %.
    """
    scale = NoiseScale(plan.clip_norm, plan.sampling_rate * units, units, friction)

    def multipliers(sigma: float | None, tau: float | None) -> Array:
        return noise_multipliers(plan.coupling, step_sizes, scale, sigma, tau)

    def solved(sigma: float | None, tau: float | None) -> SolvedNoise:
        noise = multipliers(sigma, tau)
        history = history_of_steps(noise, plan.sampling_rate)
        epsilon = pld_epsilon(history, plan.delta, plan.adjacency)
        return SolvedNoise(noise, sigma, tau, history, epsilon, plan.delta, plan.adjacency)

    if plan.coupling in ("constant", "floor"):
        if plan.noise_multiplier is not None:
            return solved(plan.noise_multiplier, plan.temperature)
        if (
            plan.coupling == "floor"
            and (unfloored := solved(0.0, plan.temperature)).epsilon <= plan.epsilon
        ):
            return unfloored
        return _solve(
            plan, lambda sigma: solved(sigma, plan.temperature), np.ones(step_sizes.shape)
        )
    if plan.temperature is not None:
        return solved(None, plan.temperature)
    unit = multipliers(None, 1.0)
    # In terms of the least noise multiplier: sigma_t = unit_t sqrt(tau).
    least = float(unit.min())
    return _solve(plan, lambda noise: solved(None, (noise / least) ** 2), unit / least)


def largest_prefix(
    noise_multipliers: Array,
    sampling_rate: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = "add_or_remove_one",
) -> int:
    """Return how many first steps, of sigma_t (T,) at one rate in (0, 1], meet the budget by their privacy loss."""

    def cost(steps: int) -> float:
        return pld_epsilon(
            history_of_steps(noise_multipliers[:steps], sampling_rate), delta, adjacency
        )

    steps = len(noise_multipliers)
    if cost(steps) <= epsilon:
        return steps
    return bisect_left(range(1, steps), True, key=lambda some: cost(some) > epsilon)


def solve_multiplier(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency = "add_or_remove_one",
) -> float:
    """Return the noise multiplier, 0.001 to 10^6, at which steps cost 99.9 to 100 % of epsilon, or raise UserError."""
    plan = PrivacyPlan(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, adjacency=adjacency
    )
    solved = solve_noise(plan, np.ones(steps), units=1)
    assert solved.noise_multiplier is not None
    return solved.noise_multiplier


def _solve(plan: PrivacyPlan, attempt: Callable[[float], SolvedNoise], shape: Array) -> SolvedNoise:
    """Scale noise of a given shape until it costs the budget: secant steps in logarithms, kept in a bracket."""
    steps, rate = len(shape), plan.sampling_rate
    if rate < 1 and -math.expm1(steps * math.log1p(-rate)) <= plan.delta:
        raise UserError(
            f"delta {plan.delta} is no less than the chance that a unit is used at all in {steps} "
            "steps at sampling "
            f"rate {rate}: any noise would do; choose a smaller delta, or give the noise yourself"
        )
    low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    x, slope = _clt_guess(plan, shape), -1.5
    previous: tuple[float, float] | None = None
    while high - low > 1e-6:
        solved = attempt(math.exp(x))
        if (1 - TOLERANCE) * plan.epsilon <= solved.epsilon <= plan.epsilon:
            return solved
        low, high = (x, high) if solved.epsilon > plan.epsilon else (low, x)
        following = (low + high) / 2
        if 0 < solved.epsilon < math.inf:
            gap = math.log(solved.epsilon / plan.epsilon) + TOLERANCE / 3
            if previous is not None and previous[0] != x and previous[1] != gap:
                slope = (gap - previous[1]) / (x - previous[0])
            previous = (x, gap)
            if low < x - gap / slope < high:
                following = x - gap / slope
        x = following
    raise UserError(
        f"no noise gives epsilon {plan.epsilon} at delta {plan.delta} over {steps} steps: the "
        "least noise multiplier "
        f"would leave [{LEAST_NOISE}, {MOST_NOISE:.0f}]; choose another epsilon, or give the noise yourself"
    )


def _clt_guess(plan: PrivacyPlan, shape: Array) -> float:
    """Guess log(scale) of sigma_t = scale shape_t by bisection on the central-limit epsilon."""
    history = history_of_steps(shape, plan.sampling_rate)
    low, high = math.log(LEAST_NOISE), math.log(MOST_NOISE)
    for _ in range(20):
        middle = (low + high) / 2
        scaled = tuple(
            replace(event, noise_multiplier=math.exp(middle) * event.noise_multiplier)
            for event in history
        )
        fits = gdp_epsilon(gdp_mu(scaled, plan.adjacency).mu, plan.delta) <= plan.epsilon
        low, high = (low, middle) if fits else (middle, high)
    return high


# Twice the tolerance of a solved epsilon: noise solved for the same budget on two machines differs
# by less.
NOISE_TOLERANCE = 2e-3


@lru_cache(maxsize=256)
def planned_chain(plan: TrainingPlan, units: int) -> PlannedChain:
    """Compute what a site solves, to `NOISE_TOLERANCE`, once for all sizes but by `floor`.

    Raises as `solve_plan`.
    """
    privacy = plan.privacy
    if isinstance(privacy, NoPrivacyPlan):
        return PlannedChain(plan, units, noise_without_privacy(plan, units))
    size, free = units, (privacy.noise_multiplier, privacy.temperature)
    if free[0 if privacy.coupling in ("constant", "floor") else 1] is None:
        size = units if privacy.coupling == "floor" else 1
        free = _solved(plan, size)
    scale = noise_scale(plan, size)
    return PlannedChain(
        plan, units, noise_multipliers(privacy.coupling, planned_step_sizes(plan), scale, *free)
    )


def chain_of_history(plan: TrainingPlan, units: int, history: History) -> PlannedChain:
    """Return the chains whose noise a ledger's history of the plan has fixed.

    Steps beyond it have infinite noise.
    """
    if isinstance(plan.privacy, NoPrivacyPlan):
        return PlannedChain(plan, units, noise_without_privacy(plan, units))
    known = noise_of_steps(history)
    return PlannedChain(
        plan, units, np.pad(known, (0, plan.total_steps - len(known)), constant_values=np.inf)
    )


@lru_cache(maxsize=256)
def _planned_history(plan: TrainingPlan, units: int) -> History:
    """Return the whole plan as the events that a ledger holds.

    Without privacy they have no noise.
    """
    privacy, sigmas = plan.privacy, planned_chain(plan, units).noise_multipliers
    return history_of_steps(
        0 * sigmas if isinstance(privacy, NoPrivacyPlan) else sigmas, privacy.sampling_rate
    )


@dataclass(frozen=True)
class PlannedStretch:
    """Steps of a plan at a site: public constants, which the server computes and no reply states.

    `weights`, `temperatures`: a_t and T_t (0 where the sampler has none) of the samples that are
    kept, shape (M,). `step_weight`: sum of a_t over the stretch. `temperature`,
    `temperature_range`: mean of T_t, weighted by a_t, and least and largest. `last_step_size`: a_t
    of its last step. `history`: what it does to the records, as the site's ledger holds it.
    `reached`: the same of all planned steps up to its last one, `planned`: of all.
    """

    weights: Array
    temperatures: Array
    step_weight: float
    temperature: float
    temperature_range: tuple[float, float]
    last_step_size: float
    history: History
    reached: History
    planned: History


def planned_stretch(plan: TrainingPlan, units: int, first_step: int, steps: int) -> PlannedStretch:
    """Compute a stretch of one step or more at a site of so many declared units.

    Raises as `planned_chain`.
    """
    chain, planned, end = (
        planned_chain(plan, units),
        _planned_history(plan, units),
        first_step + steps,
    )
    kept = [step for step in range(first_step, end) if plan.is_kept(step)]
    sizes, temperatures = chain.step_sizes[first_step:end], chain.temperatures[first_step:end]
    return PlannedStretch(
        weights=chain.step_sizes[kept],
        temperatures=chain.temperatures[kept],
        step_weight=float(sizes.sum()),
        temperature=float(np.average(temperatures, weights=sizes)),
        temperature_range=(float(temperatures.min()), float(temperatures.max())),
        last_step_size=float(sizes[-1]),
        history=slice_history(planned, first_step, steps),
        reached=slice_history(planned, 0, end),
        planned=planned,
    )


@lru_cache(maxsize=1024)
def _solved(plan: TrainingPlan, units: int) -> tuple[float | None, float | None]:
    """Solve sigma or the temperature, whichever the coupling leaves free."""
    solved = solve_plan(plan, units)
    return solved.noise_multiplier, solved.temperature
