"""The noise of every planned step at a site.

How much of it a budget asks for, and what a stretch of the plan costs.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

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
    noise_without_privacy,
    planned_step_sizes,
)

Array = npt.NDArray[np.float64]

# A solved epsilon lies in [(1 - TOLERANCE) budget, budget].
TOLERANCE = 1e-3
# Twice the tolerance of a solved epsilon: noise solved for the same budget on two machines differs
# by less.
NOISE_TOLERANCE = 2e-3
# The least noise multiplier of a solved schedule is sought in this range.
LEAST_NOISE = 1e-3
MOST_NOISE = 1e6


@dataclass(frozen=True)
class SolvedNoise:
    """The noise of every planned step, and what it costs by its privacy-loss distribution.

    Attributes:
        noise_multipliers: sigma_t >= 0, shape (T,).
        noise_multiplier: sigma of the couplings `constant` and `floor`; 0 where `floor` never
            needs its floor.
        temperature: tau of the couplings `temperature`, `langevin` and `floor`.
        history: The steps as events.
        delta: In (0, 1).
        adjacency: For which epsilon holds.
    """

    noise_multipliers: Array
    noise_multiplier: float | None
    temperature: float | None
    history: History
    delta: float
    adjacency: Adjacency

    @cached_property
    def epsilon(self) -> float:
        """What the history costs at delta."""
        return pld_epsilon(self.history, self.delta, self.adjacency)


@dataclass(frozen=True)
class PlannedStretch:
    """Steps of a plan at a site: public constants, which the server computes and no reply states.

    Attributes:
        weights: a_t of the samples that are kept, shape (M,).
        temperatures: T_t of the same samples (0 where the sampler has none), shape (M,).
        step_weight: Sum of a_t over the stretch.
        temperature: Mean of T_t over the stretch, weighted by a_t.
        temperature_range: Least and largest T_t of the stretch.
        last_step_size: a_t of its last step.
        history: What the stretch does to the records, as the site's ledger holds it.
        reached: The same of all planned steps up to the stretch's last one.
        planned: The same of all planned steps.
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


def solve_plan(plan: TrainingPlan, units: int) -> SolvedNoise:
    """Fix the noise of every step of a whole plan, all its chains together.

    Without privacy the noise is a standard deviation on the sum, and whatever it is, the history
    says that there was none: epsilon is infinite.

    Args:
        plan: The plan of the run.
        units: n > 0 privacy units, as the site declares.

    Returns:
        The noise and its cost.

    Raises:
        UserError: If no noise meets the budget.
        ValueError: If a decaying step size underflows to zero.
    """
    privacy = plan.privacy
    if isinstance(privacy, NoPrivacyPlan):
        return SolvedNoise(
            noise_multipliers=noise_without_privacy(plan, units),
            noise_multiplier=None,
            temperature=privacy.temperature,
            history=(GaussianEvent(0.0, privacy.sampling_rate, plan.total_steps),),
            delta=privacy.delta,
            adjacency=privacy.adjacency,
        )
    return solve_noise(
        privacy,
        step_sizes=planned_step_sizes(plan),
        units=units,
        friction=plan.sampler.momentum_lost,
    )


# A site of a simulation and its server ask for the same in one process.
_solved_plan = lru_cache(maxsize=256)(solve_plan)


def solve_noise(
    plan: PrivacyPlan, step_sizes: Array, units: int, *, friction: float = 1.0
) -> SolvedNoise:
    """Fix the noise of every planned step, solving the coupling's parameter where it is left out.

    The parameter is sigma for `constant` and `floor`, tau for `temperature` and `langevin`. Where
    the plan gives it, it is used as it is, whatever it costs. Solved, the whole plan costs at most
    its epsilon and at least 99.9 % of it, except that a `floor` whose Langevin noise alone meets
    the budget has sigma 0 and may cost less.

    Args:
        plan: Coupling, budget, clip norm and sampling rate.
        step_sizes: a_t > 0 of the whole plan, shape (T,).
        units: n > 0, as the site declares.
        friction: alpha of Hamiltonian dynamics in (0, 1], which the Langevin noise follows.

    Returns:
        The noise and its cost.

    Raises:
        UserError: If no noise multiplier between 0.001 and a million meets the budget to 0.1 %.
    """
    scale = NoiseScale(
        clip_norm=plan.clip_norm,
        expected_batch_size=plan.sampling_rate * units,
        units=units,
        friction=friction,
    )

    def with_noise(noise_multiplier: float | None, temperature: float | None) -> SolvedNoise:
        sigmas = noise_multipliers(
            plan.coupling,
            step_sizes=step_sizes,
            scale=scale,
            noise_multiplier=noise_multiplier,
            temperature=temperature,
        )
        return SolvedNoise(
            noise_multipliers=sigmas,
            noise_multiplier=noise_multiplier,
            temperature=temperature,
            history=history_of_steps(sigmas, plan.sampling_rate),
            delta=plan.delta,
            adjacency=plan.adjacency,
        )

    if not _is_solved(plan):
        return with_noise(plan.noise_multiplier, plan.temperature)
    if plan.coupling == "floor":
        without_floor = with_noise(0.0, plan.temperature)
        if without_floor.epsilon <= plan.epsilon:
            return without_floor
    if plan.coupling in ("constant", "floor"):
        return _search_noise(
            plan, lambda sigma: with_noise(sigma, plan.temperature), np.ones(step_sizes.shape)
        )
    at_temperature_one = noise_multipliers(
        plan.coupling, step_sizes=step_sizes, scale=scale, temperature=1.0
    )
    least = float(at_temperature_one.min())
    # sigma_t is proportional to sqrt(tau).
    return _search_noise(
        plan, lambda sigma: with_noise(None, (sigma / least) ** 2), at_temperature_one / least
    )


def _is_solved(plan: PrivacyPlan) -> bool:
    """Say whether the plan leaves its coupling's free parameter to be solved."""
    if plan.coupling in ("constant", "floor"):
        return plan.noise_multiplier is None
    return plan.temperature is None


def solve_multiplier(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    adjacency: Adjacency = "add_or_remove_one",
) -> float:
    """Return the constant noise multiplier at which steps cost 99.9 to 100 % of epsilon.

    Args:
        epsilon: The budget, > 0.
        delta: In (0, 1).
        sampling_rate: In (0, 1].
        steps: Their number, 1 or more.
        adjacency: For which epsilon holds.

    Returns:
        sigma, between 0.001 and a million.

    Raises:
        UserError: If no noise multiplier in this range meets the budget.
    """
    plan = PrivacyPlan(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, adjacency=adjacency
    )
    solved = solve_noise(plan, step_sizes=np.ones(steps), units=1)
    assert solved.noise_multiplier is not None
    return solved.noise_multiplier


def largest_prefix(
    noise_multipliers: Array,
    sampling_rate: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = "add_or_remove_one",
) -> int:
    """Return how many first steps meet the budget by their privacy-loss distribution.

    Args:
        noise_multipliers: sigma_t of every step, shape (T,).
        sampling_rate: Of all steps, in (0, 1].
        epsilon: The budget.
        delta: In (0, 1).
        adjacency: For which epsilon holds.

    Returns:
        A number of steps from 0 to T.
    """

    def exceeds_budget(steps: int) -> bool:
        history = history_of_steps(noise_multipliers[:steps], sampling_rate)
        return pld_epsilon(history, delta, adjacency) > epsilon

    steps = len(noise_multipliers)
    if not exceeds_budget(steps):
        return steps
    return bisect_left(range(1, steps), True, key=exceeds_budget)


def planned_chain(plan: TrainingPlan, units: int) -> PlannedChain:
    """Compute the chain whose noise a site solves, to `NOISE_TOLERANCE`.

    Args:
        plan: The plan of the run.
        units: n > 0, as the site declares.

    Returns:
        The chain with the noise of every step.

    Raises:
        UserError: If no noise meets the budget.
        ValueError: If a decaying step size underflows to zero.
    """
    return PlannedChain(plan, units, _noise_at(plan, units).noise_multipliers)


def chain_of_history(plan: TrainingPlan, units: int, history: History) -> PlannedChain:
    """Return the chain whose noise a ledger's history of the plan has fixed.

    Args:
        plan: The plan of the run.
        units: n > 0, as the site declares.
        history: Its first steps; those beyond it have infinite noise.

    Returns:
        The chain with the noise of every step.
    """
    if isinstance(plan.privacy, NoPrivacyPlan):
        return PlannedChain(plan, units, noise_without_privacy(plan, units))
    sigmas = noise_of_steps(history)
    steps_beyond = plan.total_steps - len(sigmas)
    return PlannedChain(plan, units, np.pad(sigmas, (0, steps_beyond), constant_values=np.inf))


def planned_stretch(plan: TrainingPlan, units: int, first_step: int, steps: int) -> PlannedStretch:
    """Compute what a stretch of a plan weighs, how warm it is and what it does to the records.

    Args:
        plan: The plan of the run.
        units: n > 0, as the site declares.
        first_step: From 0.
        steps: One or more.

    Returns:
        The public constants of the stretch.

    Raises:
        UserError: If no noise meets the budget.
        ValueError: If a decaying step size underflows to zero.
    """
    chain = planned_chain(plan, units)
    planned_history = _noise_at(plan, units).history
    end = first_step + steps
    sizes = chain.step_sizes[first_step:end]
    temperatures = chain.temperatures[first_step:end]
    sample_steps = [step for step in range(first_step, end) if plan.is_kept(step)]
    return PlannedStretch(
        weights=chain.step_sizes[sample_steps],
        temperatures=chain.temperatures[sample_steps],
        step_weight=float(sizes.sum()),
        temperature=float(np.average(temperatures, weights=sizes)),
        temperature_range=(float(temperatures.min()), float(temperatures.max())),
        last_step_size=float(sizes[-1]),
        history=slice_history(planned_history, first_step, steps),
        reached=slice_history(planned_history, 0, end),
        planned=planned_history,
    )


def _noise_at(plan: TrainingPlan, units: int) -> SolvedNoise:
    """Solve the noise of a plan; once for all sizes of a site where it does not depend on them."""
    privacy = plan.privacy
    if isinstance(privacy, PrivacyPlan) and _is_solved(privacy) and privacy.coupling != "floor":
        return _solved_plan(plan, 1)
    return _solved_plan(plan, units)


def _search_noise(
    plan: PrivacyPlan, solve: Callable[[float], SolvedNoise], shape: Array
) -> SolvedNoise:
    """Scale noise of a given shape until it costs the budget: bracketed secant steps in logarithms.

    `solve` costs the noise whose least multiplier is given; the least of `shape` is 1.
    """
    steps = len(shape)
    _check_delta(plan, steps)
    low = math.log(LEAST_NOISE)
    high = math.log(MOST_NOISE)
    log_noise = _guess_log_noise(plan, shape)
    slope = -1.5
    previous: tuple[float, float] | None = None
    while high - low > 1e-6:
        solved = solve(math.exp(log_noise))
        if (1 - TOLERANCE) * plan.epsilon <= solved.epsilon <= plan.epsilon:
            return solved
        if solved.epsilon > plan.epsilon:
            low = log_noise
        else:
            high = log_noise
        following = (low + high) / 2
        if 0 < solved.epsilon < math.inf:
            gap = math.log(solved.epsilon / plan.epsilon) + TOLERANCE / 3
            if previous is not None:
                previous_log_noise, previous_gap = previous
                if previous_log_noise != log_noise and previous_gap != gap:
                    slope = (gap - previous_gap) / (log_noise - previous_log_noise)
            previous = (log_noise, gap)
            secant = log_noise - gap / slope
            if low < secant < high:
                following = secant
        log_noise = following
    raise UserError(
        f"no noise gives epsilon {plan.epsilon} at delta {plan.delta} over {steps} steps: the "
        f"least noise multiplier would leave [{LEAST_NOISE}, {MOST_NOISE:.0f}]; choose another "
        "epsilon, or give the noise yourself"
    )


def _check_delta(plan: PrivacyPlan, steps: int) -> None:
    """Raise UserError where delta alone covers the chance that a unit is used at all."""
    rate = plan.sampling_rate
    if rate < 1 and -math.expm1(steps * math.log1p(-rate)) <= plan.delta:
        raise UserError(
            f"delta {plan.delta} is no less than the chance that a unit is used at all in {steps} "
            f"steps at sampling rate {rate}: any noise would do; choose a smaller delta, or give "
            "the noise yourself"
        )


def _guess_log_noise(plan: PrivacyPlan, shape: Array) -> float:
    """Guess log(scale) of sigma_t = scale shape_t by bisection on the central-limit epsilon."""
    history = history_of_steps(shape, plan.sampling_rate)
    low = math.log(LEAST_NOISE)
    high = math.log(MOST_NOISE)
    for _ in range(20):
        middle = (low + high) / 2
        scale = math.exp(middle)
        scaled = tuple(
            replace(event, noise_multiplier=scale * event.noise_multiplier) for event in history
        )
        mu = gdp_mu(scaled, plan.adjacency).mu
        if gdp_epsilon(mu, plan.delta) <= plan.epsilon:
            high = middle
        else:
            low = middle
    return high
