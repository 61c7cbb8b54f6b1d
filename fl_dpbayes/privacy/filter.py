"""How many steps a budget admits to requests that adapt, by one rule for good: docs/proofs/spending-rules.md."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import History, history_of_steps, noise_of_steps
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.planned_noise import largest_prefix
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.rdp import renyi_divergences

RuleName = Literal["fixed schedule", "rdp filter", "gdp filter"]


@dataclass(frozen=True)
class Budget:
    """What a cohort may spend in each of its parts, and its Renyi orders (each > 1), fixed when its ledger is made."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    orders: tuple[float, ...]


@dataclass(frozen=True)
class SpendingRule:
    """How a part's budget is spent, fixed by its first plan.

    `schedule` is the stock of `fixed schedule`.
    """

    name: RuleName
    schedule: History = ()


def filter_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Choose the orders of a cohort's Renyi filter from its budget alone: one or two whole ones, >= 2, rising."""
    b = math.sqrt(-2 * math.log(delta))
    best = b / (math.sqrt(b**2 + 2 * epsilon) - b)
    return tuple(sorted({max(2.0, float(round(1 + share * best))) for share in (0.5, 0.7)}))


def choose_rule(plan: History, budget: Budget, planned_runs: int = 1) -> SpendingRule:
    """Choose a part's rule from its cohort's first plan, of one sampling rate.

    A schedule of no step admits nothing.

    `planned_runs`: for how many runs the cohort was declared; of several, the plan so many times is
    one schedule.
    """
    sampling_rate = plan[0].sampling_rate
    if sampling_rate == 1:
        return SpendingRule("gdp filter")
    sigmas = np.tile(noise_of_steps(plan), planned_runs)
    steps = largest_prefix(sigmas, sampling_rate, budget.epsilon, budget.delta, budget.adjacency)
    schedule = history_of_steps(sigmas[:steps], sampling_rate)
    if planned_runs == 1 and steps > 0 and renyi_epsilon(schedule, budget) <= budget.epsilon:
        return SpendingRule("rdp filter")
    return SpendingRule("fixed schedule", schedule)


def admitted_steps(rule: SpendingRule, spent: History, requested: History, budget: Budget) -> int:
    """Count the first steps of a request, from 0 to all, that the budget admits on top of what was spent."""
    if rule.name == "fixed schedule":
        return _admitted_by_schedule(rule.schedule, spent, requested)
    return (_admitted_by_gdp if rule.name == "gdp filter" else _admitted_by_renyi)(
        spent, requested, budget
    )


def filter_epsilon(rule: SpendingRule, spent: History, budget: Budget) -> float:
    """Give the epsilon, at the cohort's delta, of everything spent in a part.

    A fixed schedule counts whole.
    """
    if all(event.is_free for event in spent):
        return 0.0
    if rule.name == "gdp filter":
        return gdp_epsilon(gdp_mu(_without_subsampling(spent), budget.adjacency).mu, budget.delta)
    if rule.name == "rdp filter":
        return renyi_epsilon(spent, budget)
    return pld_epsilon(rule.schedule, budget.delta, budget.adjacency)


def renyi_epsilon(history: History, budget: Budget) -> float:
    """Turn a history into epsilon by the best of the cohort's orders, each holding its share of delta."""
    epsilons = _renyi_conversion(budget) + renyi_divergences(
        history, budget.orders, budget.adjacency
    )
    return max(0.0, float(np.min(epsilons)))


def _renyi_conversion(budget: Budget) -> npt.NDArray[np.float64]:
    alpha = np.asarray(budget.orders)
    delta = budget.delta / len(alpha)
    return np.log1p(-1 / alpha) - (np.log(delta) + np.log(alpha)) / (alpha - 1)


def _admitted_by_renyi(spent: History, requested: History, budget: Budget) -> int:
    cost = partial(renyi_divergences, orders=budget.orders, adjacency=budget.adjacency)
    costs = [cost((replace(event, steps=1),)) * np.ones((event.steps, 1)) for event in requested]
    before = _renyi_conversion(budget) + cost(spent)
    epsilons = (before + np.cumsum(np.concatenate(costs), axis=0)).min(axis=1)
    return _longest(len(epsilons), lambda steps: bool(epsilons[steps - 1] <= budget.epsilon))


def _admitted_by_gdp(spent: History, requested: History, budget: Budget) -> int:
    def squared_mu(history: History) -> float:
        return gdp_mu(_without_subsampling(history), budget.adjacency).mu ** 2

    costs = [np.full(event.steps, squared_mu((replace(event, steps=1),))) for event in requested]
    mus = np.sqrt(squared_mu(spent) + np.cumsum(np.concatenate(costs)))
    return _longest(
        len(mus), lambda steps: gdp_epsilon(float(mus[steps - 1]), budget.delta) <= budget.epsilon
    )


def _admitted_by_schedule(schedule: History, spent: History, requested: History) -> int:
    if not schedule or any(event.sampling_rate > schedule[0].sampling_rate for event in requested):
        return 0
    stock, used, wanted = (
        np.sort(noise_of_steps(schedule)),
        noise_of_steps(spent),
        noise_of_steps(requested),
    )

    def fits(steps: int) -> bool:
        needed = np.sort(np.concatenate([used, wanted[:steps]]))
        return len(needed) <= len(stock) and bool((needed >= stock[: len(needed)]).all())

    return _longest(len(wanted), fits)


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    return bisect_left(range(1, most + 1), True, key=lambda steps: not fits(steps))


def _without_subsampling(history: History) -> History:
    return tuple(replace(event, sampling_rate=1.0) for event in history if event.sampling_rate > 0)
