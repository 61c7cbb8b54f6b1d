"""What a second run of the same plan costs a cohort, before the first has begun."""

from dataclasses import dataclass

from fl_dpbayes.privacy.events import History, joined, slice_history
from fl_dpbayes.privacy.filter import Budget, RuleName, admitted_steps, choose_rule, filter_epsilon
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon


@dataclass(frozen=True)
class SecondRun:
    """The epsilon of two runs of one plan, each at the cohort's delta.

    `rule`: by which steps are counted from the second run on. `steps`: of the first run, as far as
    the budget admits its plan; `admitted`: of the second. `first`: epsilon of the first run alone,
    by its privacy-loss distribution. `after_one`: with one step of the second. `whole`: with all
    that are admitted. `as_one_plan`: what the same steps cost by their privacy-loss distribution,
    had they been one plan from the start.
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
        What both cost; an `admitted` of 0 where the budget has no room for a second run.
    """
    rule = choose_rule(plan, budget, planned_runs)
    steps = admitted_steps(rule, (), plan, budget)
    first = slice_history(plan, 0, steps)
    admitted = admitted_steps(rule, first, plan, budget) if steps else 0

    def both(more: int) -> History:
        return joined((*first, *slice_history(plan, 0, more)))

    def counted(more: int) -> float:
        return filter_epsilon(rule, both(more), budget) if more else alone

    alone = pld_epsilon(first, budget.delta, budget.adjacency) if steps else 0.0
    together = pld_epsilon(both(admitted), budget.delta, budget.adjacency) if admitted else alone
    return SecondRun(
        rule=rule.name,
        steps=steps,
        admitted=admitted,
        first=alone,
        after_one=counted(min(admitted, 1)),
        whole=counted(admitted),
        as_one_plan=together,
    )
