"""How many steps a budget admits to requests that adapt, by one rule for good.

docs/proofs/spending-rules.md has the rules and their proofs.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import (
    History,
    covers,
    history_of_steps,
    noise_of_steps,
    slice_history,
    steps_of,
)
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.planned_noise import largest_prefix
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.rdp import renyi_divergences

RuleName = Literal["fixed schedule", "rdp filter", "gdp filter"]


@dataclass(frozen=True)
class Budget:
    """What a cohort may spend in each of its parts, fixed when its ledger is made.

    Attributes:
        epsilon: >= 0, infinite if nothing limits it.
        delta: In (0, 1).
        adjacency: For which epsilon holds.
        orders: Of the Renyi filter, each > 1.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    orders: tuple[float, ...]


@dataclass(frozen=True)
class SpendingRule:
    """How a part's budget is spent, fixed by its first plan.

    Attributes:
        name: Which of the three rules it is.
        schedule: The stock of steps of a `fixed schedule`.
    """

    name: RuleName
    schedule: History = ()


def filter_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Choose the orders of a cohort's Renyi filter from its budget alone.

    Args:
        epsilon: The budget.
        delta: In (0, 1).

    Returns:
        One or two whole orders, >= 2, rising.
    """
    b = math.sqrt(-2 * math.log(delta))
    best = b / (math.sqrt(b**2 + 2 * epsilon) - b)
    return tuple(sorted({max(2.0, float(round(1 + share * best))) for share in (0.5, 0.7)}))


def choose_rule(plan: History, budget: Budget, planned_runs: int = 1) -> SpendingRule:
    """Choose a part's rule from its cohort's first plan.

    Args:
        plan: Events of a whole run, at one sampling rate.
        budget: Of the part.
        planned_runs: For how many runs the cohort was declared. Of several, the plan so many times
            is one schedule.

    Returns:
        The rule. A `fixed schedule` of no step admits nothing.
    """
    sampling_rate = plan[0].sampling_rate
    if sampling_rate == 1:
        return SpendingRule("gdp filter")
    sigmas = np.tile(noise_of_steps(plan), planned_runs)
    steps = largest_prefix(
        sigmas,
        sampling_rate=sampling_rate,
        epsilon=budget.epsilon,
        delta=budget.delta,
        adjacency=budget.adjacency,
    )
    schedule = history_of_steps(sigmas[:steps], sampling_rate)
    if planned_runs == 1 and steps > 0 and renyi_epsilon(schedule, budget) <= budget.epsilon:
        return SpendingRule("rdp filter")
    return SpendingRule("fixed schedule", schedule)


def admitted_steps(rule: SpendingRule, spent: History, requested: History, budget: Budget) -> int:
    """Count the first steps of a request that the budget admits.

    Args:
        rule: Of the part that pays.
        spent: What was spent in the part before.
        requested: What the request asks for.
        budget: Of the part.

    Returns:
        A number from 0 to all requested steps.
    """
    match rule.name:
        case "fixed schedule":
            return _admitted_by_schedule(rule.schedule, spent, requested)
        case "gdp filter":
            return _admitted_by_gdp(spent, requested, budget)
        case "rdp filter":
            return _admitted_by_renyi(spent, requested, budget)


def filter_epsilon(rule: SpendingRule, spent: History, budget: Budget) -> float:
    """Return the epsilon of everything spent in a part, at the cohort's delta.

    Args:
        rule: Of the part. A fixed schedule counts whole once anything was spent.
        spent: Everything spent in the part.
        budget: Of the part.

    Returns:
        epsilon >= 0, which may be infinite.
    """
    if all(event.is_free for event in spent):
        return 0.0
    match rule.name:
        case "fixed schedule":
            return pld_epsilon(rule.schedule, budget.delta, budget.adjacency)
        case "gdp filter":
            mu = gdp_mu(_without_subsampling(spent), budget.adjacency).mu
            return gdp_epsilon(mu, budget.delta)
        case "rdp filter":
            return renyi_epsilon(spent, budget)


def renyi_epsilon(history: History, budget: Budget) -> float:
    """Turn a history into epsilon by the best of the cohort's orders, each with its share of delta.

    Args:
        history: What was done to the records.
        budget: Its orders, delta and adjacency.

    Returns:
        epsilon >= 0, which may be infinite.
    """
    divergences = renyi_divergences(history, budget.orders, budget.adjacency)
    return max(0.0, float(np.min(_renyi_conversion(budget) + divergences)))


def _renyi_conversion(budget: Budget) -> npt.NDArray[np.float64]:
    """Return what turns the divergence at each order into epsilon: epsilon = D_alpha + this."""
    alpha = np.asarray(budget.orders)
    delta = budget.delta / len(alpha)
    return np.log1p(-1 / alpha) - (np.log(delta) + np.log(alpha)) / (alpha - 1)


def _admitted_by_renyi(spent: History, requested: History, budget: Budget) -> int:
    divergences = partial(renyi_divergences, orders=budget.orders, adjacency=budget.adjacency)
    step_costs = np.concatenate(
        [divergences((replace(event, steps=1),)) * np.ones((event.steps, 1)) for event in requested]
    )
    spent_before = _renyi_conversion(budget) + divergences(spent)
    epsilons = (spent_before + np.cumsum(step_costs, axis=0)).min(axis=1)
    return _longest(len(epsilons), lambda steps: bool(epsilons[steps - 1] <= budget.epsilon))


def _admitted_by_gdp(spent: History, requested: History, budget: Budget) -> int:
    def squared_mu(history: History) -> float:
        return gdp_mu(_without_subsampling(history), budget.adjacency).mu ** 2

    step_costs = np.concatenate(
        [np.full(event.steps, squared_mu((replace(event, steps=1),))) for event in requested]
    )
    mus = np.sqrt(squared_mu(spent) + np.cumsum(step_costs))
    return _longest(
        len(mus), lambda steps: gdp_epsilon(float(mus[steps - 1]), budget.delta) <= budget.epsilon
    )


def _admitted_by_schedule(schedule: History, spent: History, requested: History) -> int:
    """Count the steps that find a partner of no more noise in the stock, one for each."""
    if not schedule or any(event.sampling_rate > schedule[0].sampling_rate for event in requested):
        return 0

    def fits(steps: int) -> bool:
        return covers(schedule, (*spent, *slice_history(requested, 0, steps)))

    return _longest(steps_of(requested), fits)


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits, where all smaller ones fit too."""
    return bisect_left(range(1, most + 1), True, key=lambda steps: not fits(steps))


def _without_subsampling(history: History) -> History:
    return tuple(replace(event, sampling_rate=1.0) for event in history if event.sampling_rate > 0)
