"""What a second run of the same plan costs a cohort, before the first has begun."""

from dataclasses import dataclass

from fl_dpbayes.privacy.events import History, joined, slice_history
from fl_dpbayes.privacy.filter import Budget, RuleName, admitted_steps, choose_rule, filter_epsilon
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon


@dataclass(frozen=True)
class SecondRun:
    """The epsilon of two runs of one plan, each at the cohort's delta.

    Attributes:
        rule: By which steps are counted from the second run on.
        steps: Of the first run, as far as the budget admits its plan.
        admitted: Steps of the second run that the budget admits.
        first: epsilon of the first run alone, by its privacy-loss distribution.
        after_one: epsilon of both with one step of the second run.
        whole: epsilon of both with all admitted steps of the second run.
        as_one_plan: What the same steps cost by their privacy-loss distribution, had they been one
            plan from the start.
    """

    rule: RuleName
    steps: int
    admitted: int
    first: float
    after_one: float
    whole: float
    as_one_plan: float


def price_of_second_run(plan: History, budget: Budget, planned_runs: int = 1) -> SecondRun:
    """Count what a second run of a plan adds to the first, by the rule that the first one fixes.

    Args:
        plan: Events of a whole run, at one sampling rate.
        budget: Of the part of the cohort that pays.
        planned_runs: How many runs the cohort was declared for.

    Returns:
        What both cost; `admitted` is 0 where the budget has no room for a second run.
    """
    rule = choose_rule(plan, budget, planned_runs)
    first_steps = admitted_steps(rule, spent=(), requested=plan, budget=budget)
    first_run = slice_history(plan, first_step=0, steps=first_steps)
    second_steps = 0
    first_epsilon = 0.0
    if first_steps:
        second_steps = admitted_steps(rule, spent=first_run, requested=plan, budget=budget)
        first_epsilon = pld_epsilon(first_run, budget.delta, budget.adjacency)

    def both_runs(steps: int) -> History:
        return joined((*first_run, *slice_history(plan, first_step=0, steps=steps)))

    def both_by_rule(steps: int) -> float:
        if steps == 0:
            return first_epsilon
        return filter_epsilon(rule, both_runs(steps), budget)

    as_one_plan = first_epsilon
    if second_steps:
        as_one_plan = pld_epsilon(both_runs(second_steps), budget.delta, budget.adjacency)
    return SecondRun(
        rule=rule.name,
        steps=first_steps,
        admitted=second_steps,
        first=first_epsilon,
        after_one=both_by_rule(min(second_steps, 1)),
        whole=both_by_rule(second_steps),
        as_one_plan=as_one_plan,
    )
