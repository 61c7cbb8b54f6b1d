"""How many of the requested steps a cohort's budget admits, when requests may depend on earlier releases.

The rule is fixed by the plan of the cohort's first run, before anything is released, and never changes:

`gdp filter`: the first plan uses every record in every step (sampling rate 1). Admitted are steps as long as
    sum 1/sigma_t^2 <= mu^2, where mu-GDP is the budget (epsilon, delta). This is exact, also where sigma_t depends on
    earlier releases: Koskela, Tobaben and Honkela 2023 (Individual privacy accounting with Gaussian differential
    privacy); Smith and Thakurta 2022 (Fully adaptive composition for Gaussian differential privacy). A later
    subsampled step counts as if it were not subsampled, which is more than it costs.

`rdp filter`: the Renyi filter (below) admits all of the first plan that its privacy-loss distribution admits.
    Admitted are steps as long as some order alpha of the cohort's fixed orders has

        sum_t R_t(alpha) + log((alpha-1)/alpha) - (log(delta/k) + log alpha) / (alpha-1) <= epsilon,    k orders.

    Each order alone is valid for adaptively chosen steps (Feldman and Zrnic 2021, Individual privacy accounting via
    a Renyi filter; Lecuyer 2021, Practical privacy filters and odometers with Renyi differential privacy), with the
    conversion of Canonne, Kamath and Steinke 2020 (Proposition 12). Divide the outcomes by the first order that
    admits their last step: on each share the process equals one that stops by that order alone, so P <= exp(epsilon)
    Q + delta/k there, and the shares add up to delta.

`fixed schedule`: the Renyi filter does not admit all of it. The schedule is the longest prefix of the first plan whose
    privacy-loss distribution gives at most epsilon; it is spent as a stock of steps. Admitted are steps, of whichever
    run, that can be matched one to one with steps of the stock that are no more private: sampling rate at most the
    stock's and noise multiplier at least that of the matched step. Such a process is never worse than the whole
    schedule: let V(L, S) be the largest E[(1 - exp(epsilon - L'))_+] of the final privacy loss L' that an adversary
    reaches from loss L with the set S of stock steps left. A matched step is dominated by its stock step
    (Zhu, Dong and Wang 2022, Optimal accounting of differential privacy via characteristic function, Theorem 10), and
    the sum of the losses in S has one distribution whatever the order, so by induction over |S|, V(L, S) is reached
    by running all of S, in any order. Best-fit matching finds a partner whenever one exists (the sets of
    partners are nested), so comparing sorted lists decides.

Why the rule may depend on the first plan, and only on it: if the rule could change after a release, an adversary would
take, outcome by outcome, whichever rule then allows more, and each rule could fail with probability delta. Under
`rdp filter` every path, that of a single run included, satisfies the Renyi filter, so the privacy-loss value of a run
whose end was fixed beforehand is only the sharper of two valid statements. Under `fixed schedule` every path stays
inside one schedule. Under `gdp filter` there is one rule for all.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.events import GaussianEvent, History, history_of_steps
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.rdp import renyi_divergences
from fl_dpbayes.privacy.solve import largest_prefix

RuleName = Literal["fixed schedule", "rdp filter", "gdp filter"]


@dataclass(frozen=True)
class Budget:
    """What a cohort may spend in each of its parts, fixed when its ledger is made.

    Attributes:
        epsilon: > 0.
        delta: in (0, 1).
        adjacency: which data sets are neighbours.
        orders: Renyi orders of the filter, each > 1.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    orders: tuple[float, ...]


@dataclass(frozen=True)
class SpendingRule:
    """How a part's budget is spent: fixed by its first plan.

    Attributes:
        name: which of the three rules.
        schedule: the stock of steps of `fixed schedule`; empty for the filters.
    """

    name: RuleName
    schedule: History = ()


def filter_orders(epsilon: float, delta: float) -> tuple[float, ...]:
    """Choose the orders of a cohort's Renyi filter from its budget alone.

    For Gaussian steps the order that admits most is alpha = 1 + b / mu, where b = sqrt(2 log(1/delta)) and mu solves
    epsilon = mu^2/2 + mu b. Subsampled steps want a smaller one: among whole orders, those near half and 0.7 of
    alpha - 1 together stayed within 11 % of the best single epsilon on 48 settings (a usual grid of 14: 11 to 33 %),
    because each further order costs every other log(k) / (alpha - 1).

    Args:
        epsilon: the budget, > 0.
        delta: in (0, 1).

    Returns:
        One or two whole orders, each 2 or more, rising.
    """
    b = math.sqrt(-2 * math.log(delta))
    best = b / (math.sqrt(b**2 + 2 * epsilon) - b)
    return tuple(sorted({max(2.0, float(round(1 + share * best))) for share in (0.5, 0.7)}))


def choose_rule(plan: History, budget: Budget) -> SpendingRule:
    """Choose the rule for a part of a cohort from the plan of its first run.

    Args:
        plan: events of the whole run, all at one sampling rate.
        budget: the cohort's.

    Returns:
        The rule; a `fixed schedule` without a step admits nothing.
    """
    sampling_rate = plan[0].sampling_rate
    if sampling_rate == 1:
        return SpendingRule("gdp filter")
    sigmas = noise_of_steps(plan)
    steps = largest_prefix(sigmas, sampling_rate, budget.epsilon, budget.delta, budget.adjacency)
    schedule = history_of_steps(sigmas[:steps], sampling_rate)
    if steps > 0 and renyi_epsilon(schedule, budget) <= budget.epsilon:
        return SpendingRule("rdp filter")
    return SpendingRule("fixed schedule", schedule)


def admitted_steps(rule: SpendingRule, spent: History, requested: History, budget: Budget) -> int:
    """Count the first steps of a request that the budget admits on top of what was spent.

    Args:
        rule: that of the part.
        spent: every event reserved in the part so far, whether it completed or not.
        requested: the request's events, in order, all at one sampling rate.
        budget: the cohort's.

    Returns:
        How many, from 0 to all.
    """
    if rule.name == "gdp filter":
        return _admitted_by_gdp(spent, requested, budget)
    if rule.name == "rdp filter":
        return _admitted_by_renyi(spent, requested, budget)
    return _admitted_by_schedule(rule.schedule, spent, requested)


def filter_epsilon(rule: SpendingRule, spent: History, budget: Budget) -> float:
    """Give the epsilon that holds for everything spent in a part, by its rule.

    Args:
        rule: that of the part.
        spent: every event reserved in the part.
        budget: the cohort's.

    Returns:
        Epsilon at the cohort's delta. A fixed schedule counts whole.
    """
    if not any(not event.is_free for event in spent):
        return 0.0
    if rule.name == "gdp filter":
        return gdp_epsilon(gdp_mu(_without_subsampling(spent), budget.adjacency).mu, budget.delta)
    if rule.name == "rdp filter":
        return renyi_epsilon(spent, budget)
    return pld_epsilon(rule.schedule, budget.delta, budget.adjacency)


def renyi_epsilon(history: History, budget: Budget) -> float:
    """Turn a history into epsilon by the best of the cohort's orders, each holding its share of delta."""
    epsilons = _renyi_conversion(budget) + renyi_divergences(history, budget.orders, budget.adjacency)
    return max(0.0, float(np.min(epsilons)))


def noise_of_steps(history: History) -> npt.NDArray[np.float64]:
    """Write a history's noise multipliers step by step, shape (T,)."""
    return np.repeat([event.noise_multiplier for event in history], [event.steps for event in history]).astype(float)


def _renyi_conversion(budget: Budget) -> npt.NDArray[np.float64]:
    alpha = np.asarray(budget.orders)
    delta = budget.delta / len(alpha)
    return np.log1p(-1 / alpha) - (np.log(delta) + np.log(alpha)) / (alpha - 1)


def _admitted_by_renyi(spent: History, requested: History, budget: Budget) -> int:
    costs = [
        renyi_divergences((_one_step(event),), budget.orders, budget.adjacency) * np.ones((event.steps, 1))
        for event in requested
    ]
    before = _renyi_conversion(budget) + renyi_divergences(spent, budget.orders, budget.adjacency)
    epsilons = (before + np.cumsum(np.concatenate(costs), axis=0)).min(axis=1)
    return _longest(len(epsilons), lambda steps: bool(epsilons[steps - 1] <= budget.epsilon))


def _admitted_by_gdp(spent: History, requested: History, budget: Budget) -> int:
    def squared_mu(history: History) -> float:
        return gdp_mu(_without_subsampling(history), budget.adjacency).mu ** 2

    costs = [np.full(event.steps, squared_mu((_one_step(event),))) for event in requested]
    squares = squared_mu(spent) + np.cumsum(np.concatenate(costs))
    return _longest(
        len(squares), lambda steps: gdp_epsilon(float(np.sqrt(squares[steps - 1])), budget.delta) <= budget.epsilon
    )


def _admitted_by_schedule(schedule: History, spent: History, requested: History) -> int:
    if not schedule or any(event.sampling_rate > schedule[0].sampling_rate for event in requested):
        return 0
    stock, used, wanted = np.sort(noise_of_steps(schedule)), noise_of_steps(spent), noise_of_steps(requested)

    def fits(steps: int) -> bool:
        needed = np.sort(np.concatenate([used, wanted[:steps]]))
        return len(needed) <= len(stock) and bool(np.all(needed >= stock[: len(needed)]))

    return _longest(len(wanted), fits)


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    return bisect_left(range(1, most + 1), True, key=lambda steps: not fits(steps))


def _one_step(event: GaussianEvent) -> GaussianEvent:
    return replace(event, steps=1)


def _without_subsampling(history: History) -> History:
    return tuple(
        GaussianEvent(event.noise_multiplier, 1.0, event.steps) for event in history if event.sampling_rate > 0
    )
