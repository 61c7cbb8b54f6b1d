"""What becomes of a request to spend, by what the ledger holds already; nothing is written here.

A run has one plan, and no later round may ask for a step of an earlier one: so a run never releases
more than its plan, which a site's policy bounds, however much budget the cohort has left.
"""

from dataclasses import dataclass

from fl_dpbayes.privacy.events import slice_history
from fl_dpbayes.privacy.filter import SpendingRule, admitted_steps, choose_rule, filter_epsilon
from fl_dpbayes.privacy.ledger.state import LedgerState, Reservation, Spending, StoredPlan
from fl_dpbayes.privacy.ledger.takeover import is_worked_on, may_take_over
from fl_dpbayes.protocol import RefusalCode


@dataclass(frozen=True)
class Refused:
    """Why nothing may run.

    Attributes:
        code: The reason.
        field: Of the request, which caused it; "" if none did.
    """

    code: RefusalCode
    field: str = ""


@dataclass(frozen=True)
class Completed:
    """This very request was completed under an earlier reservation, whose reply is sent again."""

    reservation: Reservation


@dataclass(frozen=True)
class LeftOpen:
    """A dead process left a reservation of this very request open: its work goes on."""

    reservation: Reservation


@dataclass(frozen=True)
class Admitted:
    """Steps that the budget admits.

    Attributes:
        rule: By which the part's budget is spent.
        steps: How many, above 0.
    """

    rule: SpendingRule
    steps: int


Decision = Refused | Completed | LeftOpen | Admitted


def decide(state: LedgerState, spending: Spending) -> Decision:
    """Decide on a request to spend.

    Args:
        state: Of the cohort, which is not closed.
        spending: What the request asks to spend.

    Returns:
        What becomes of it.
    """
    plan = state.plans.get(spending.plan_key)
    if plan is not None and plan != StoredPlan(spending.plan_digest, spending.plan):
        return Refused(RefusalCode.PLAN_CHANGED, "plan")
    of_plan = [
        reservation
        for reservation in state.reservations.values()
        if reservation.plan_key == spending.plan_key
    ]
    of_round = [reservation for reservation in of_plan if reservation.round == spending.round]
    for earlier in of_plan:
        if earlier.round != spending.round and earlier.overlaps(spending):
            return Refused(RefusalCode.POLICY_DENIED, "first_step")
    for earlier in of_round:
        if earlier.request_digest != spending.request_digest:
            return Refused(RefusalCode.REQUEST_CHANGED, "round")
    for earlier in of_round:
        if earlier.state == "done":
            return Completed(earlier)
    if any(is_worked_on(earlier) for earlier in of_round):
        return Refused(RefusalCode.ALREADY_RESERVED, "round")
    for earlier in of_round:
        if may_take_over(earlier):
            return LeftOpen(earlier)
    return _admit(state, spending)


def _admit(state: LedgerState, spending: Spending) -> Admitted | Refused:
    budget = state.most()
    rule = state.rules.get(spending.part)
    if rule is None:
        assert state.cohort is not None
        rule = choose_rule(spending.plan, budget, state.cohort.planned_runs)
    requested = slice_history(spending.plan, spending.first_step, spending.steps)
    # A stock of steps was bought as a whole, for what it costs together: a lowered budget admits
    # all of it or nothing.
    stock_was_cut = rule.name == "fixed schedule" and budget != state.budget()
    if stock_was_cut and filter_epsilon(rule, requested, budget) > budget.epsilon:
        return Refused(RefusalCode.BUDGET_EXHAUSTED)
    steps = admitted_steps(
        rule, spent=state.spent_in(spending.part), requested=requested, budget=budget
    )
    if steps == 0:
        return Refused(RefusalCode.BUDGET_EXHAUSTED)
    return Admitted(rule, steps)
