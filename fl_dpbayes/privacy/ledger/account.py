"""What a part of a cohort has spent so far, as the site accounts for it."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.filter import filter_epsilon
from fl_dpbayes.privacy.gdp import GdpMu, gdp_mu
from fl_dpbayes.privacy.ledger.state import LedgerState, Part, Reservation, slice_history
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon

EpsilonMethod = Literal["pld", "rdp filter", "gdp filter"]


@dataclass(frozen=True)
class Spent:
    """The spend of one part.

    Attributes:
        part: of the cohort.
        history: every event reserved, completed or not.
        steps: their number.
        epsilon: at the cohort's delta, by `method`.
        method: `pld` for the fixed schedule of a single run; else the filter by which the part is spent.
        mu: Gaussian differential privacy of the history, with its kind.
    """

    part: Part
    history: History
    steps: int
    epsilon: float
    method: EpsilonMethod
    mu: GdpMu


def spent(state: LedgerState, part: Part) -> Spent:
    """Account for a part.

    A single run that repeated no step costs what the planned steps up to its last one cost together, by their
    privacy-loss distribution, whichever of them it skipped. That holds if where it ends was fixed beforehand (by its
    plan, or by the budget); `planned_epsilon` holds if the server ended it because of what it saw. Anything else, and
    a run that skipped so much that this passes the budget, costs what the part's rule says.

    Args:
        state: of the cohort.
        part: which part.

    Returns:
        The spend.
    """
    history, budget = state.spent_in(part), state.budget()
    epsilon = _single_run_epsilon(state, part)
    method: EpsilonMethod = "pld"
    if epsilon is None or epsilon > budget.epsilon:
        rule = state.rules[part]
        epsilon = filter_epsilon(rule, history, budget)
        method = "pld" if rule.name == "fixed schedule" else rule.name
    steps = sum(event.steps for event in history)
    return Spent(part, history, steps, epsilon, method, gdp_mu(history, budget.adjacency))


def planned_epsilon(state: LedgerState, part: Part) -> float | None:
    """Account for the whole plan of a part's only run, where the run has not reached its end.

    Args:
        state: of the cohort.
        part: which part.

    Returns:
        Epsilon at the cohort's delta; None if there is nothing unfinished, or more than one run.
    """
    reservations, budget = state.reserved_in(part), state.budget()
    if not reservations or not _is_single_run(reservations):
        return None
    plan = state.plans[part, reservations[0].run, reservations[0].purpose].history
    if max(one.first_step + one.steps for one in reservations) == sum(event.steps for event in plan):
        return None
    return pld_epsilon(plan, budget.delta, budget.adjacency)


def _single_run_epsilon(state: LedgerState, part: Part) -> float | None:
    reservations, budget = state.reserved_in(part), state.budget()
    if not reservations:
        return 0.0
    if not _is_single_run(reservations):
        return None
    plan = state.plans[part, reservations[0].run, reservations[0].purpose].history
    reached = max(reservation.first_step + reservation.steps for reservation in reservations)
    return pld_epsilon(slice_history(plan, 0, reached), budget.delta, budget.adjacency)


def _is_single_run(reservations: list[Reservation]) -> bool:
    if len({(reservation.run, reservation.purpose) for reservation in reservations}) > 1:
        return False
    in_order = sorted(reservations, key=lambda reservation: reservation.first_step)
    return all(earlier.first_step + earlier.steps <= later.first_step for earlier, later in pairwise(in_order))
