"""Does a site's statement of its spending cost what it says?

Its epsilon and mu are computed again from its history.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.account import SMALL_DELTA
from fl_dpbayes.privacy.events import (
    GaussianEvent,
    History,
    covers,
    has_noise,
    joined,
    levels_of,
    read_history,
    steps_of,
)
from fl_dpbayes.privacy.filter import Budget, RuleName, SpendingRule, filter_epsilon, filter_orders
from fl_dpbayes.privacy.gdp import gdp_mu
from fl_dpbayes.privacy.planned_noise import NOISE_TOLERANCE, PlannedStretch
from fl_dpbayes.privacy.pld.loss_distribution import composition_work, pld_epsilon, prefix_epsilon
from fl_dpbayes.protocol import PrivacyStatement, TrainReply

# Two grids of a privacy-loss distribution differ by less (see `pld_epsilon`).
EPSILON_TOLERANCE = 2e-3
MU_TOLERANCE = 1e-6
# What a history may cost the server, in kinds of step and in points that are transformed: a
# fraction of a second.
MOST_KINDS = 64
MOST_RATES = 4
MOST_WORK = 2**21


class EpsilonRange(NamedTuple):
    """Between which values an epsilon lies."""

    least: float
    most: float


def reply_metrics(reply: TrainReply, stretch: PlannedStretch) -> dict[str, int | float]:
    """Return what a reply says again in Flower's MetricRecord.

    Args:
        reply: To a training request.
        stretch: The steps that it ran.

    Returns:
        Values by name; epsilon is that of the cohort so far.
    """
    epsilon = math.inf if reply.privacy.epsilon is None else reply.privacy.epsilon
    return {
        "units": reply.privacy.units,
        "steps": reply.steps,
        "epsilon": epsilon,
        "temperature": stretch.temperature,
    }


def checked_statement(
    statement: PrivacyStatement,
    reply_history: History,
    reached: History,
    previous: PrivacyStatement | None,
    delta: float,
    planned: History = (),
) -> PrivacyStatement:
    """Check what a site says of its spending against its history and what the server asked for.

    Epsilon is at least what the history costs by its privacy-loss distribution. It is at most what
    the planned steps up to the last one cost, where the history holds this run's steps alone, and
    else at most the budget, beyond which no filter admits a step. Whatever the history holds,
    epsilon is within the budget.

    Args:
        statement: Of the site, with its reply.
        reply_history: What the reply's own steps do to the records, as planned.
        reached: The same of all planned steps up to the reply's last one.
        previous: The last accepted statement of the same part of the site's units in this run.
        delta: Of the run.
        planned: The whole plan, where one is known.

    Returns:
        The statement, with its epsilon raised to what its history costs if rounding left it below.

    Raises:
        ValueError: Saying in a few words what does not fit.
    """
    if statement.delta != delta:
        raise ValueError("its privacy statement is for another delta")
    if previous is not None and _account_of(previous) != _account_of(statement):
        raise ValueError("its privacy statement is of another account than before")
    history = read_history(statement.history)
    if statement.steps != steps_of(history):
        raise ValueError("its privacy statement miscounts the steps of its history")
    earlier = read_history(previous.history) if previous is not None else ()
    run_history = (*earlier, *reply_history)
    if not _covers(history, run_history):
        raise ValueError("its privacy history lacks steps of this run at the planned noise")
    if not _continues(history, earlier):
        raise ValueError("its privacy history is not its earlier one, gone on with")
    if not _states_mu_of(statement, history):
        raise ValueError("its privacy statement's mu is not that of its history")
    if statement.steps == steps_of(run_history):
        least, most = _range_of_single_run(statement, history, reached, planned)
    else:
        least, most = _range_of_several_runs(statement, history, reached)
    epsilon = _infinite_if_none(statement.epsilon)
    if epsilon < (1 - EPSILON_TOLERANCE) * least:
        raise ValueError(f"it states epsilon {epsilon:.4g}, its history costs {least:.4g}")
    if epsilon > (1 + EPSILON_TOLERANCE) * most:
        raise ValueError(f"it states epsilon {epsilon:.4g}, its history allows at most {most:.4g}")
    budget = _infinite_if_none(statement.budget)
    if max(epsilon, least) > (1 + EPSILON_TOLERANCE) * budget:
        raise ValueError(
            f"it states epsilon {epsilon:.4g} of a budget of {budget:.4g}, beyond which "
            "no step runs"
        )
    if epsilon >= least:
        return statement
    return statement.model_copy(update={"epsilon": least})


def epsilon_bounds(history: History, delta: float, adjacency: Adjacency) -> EpsilonRange:
    """Bound what a history costs from both sides, in bounded time.

    Both bounds are its epsilon where that takes a fraction of a second. Else steps share as many
    kinds as do, with more noise and a lower sampling rate for the lower bound, less noise and a
    higher rate for the upper one.

    Args:
        history: What was done to the records.
        delta: In (0, 1).
        adjacency: What neighbouring data sets differ in.

    Returns:
        The bounds, which may be infinite.
    """
    kinds = _subsampled_kinds(history)
    unsampled = _unsampled_release(history)
    if len(kinds) <= MOST_KINDS:
        epsilon = _affordable_epsilon((*kinds, *unsampled), delta, adjacency)
        if epsilon is not None:
            return EpsilonRange(epsilon, epsilon)
    # All in one kind transform one grid, which is never too much.
    for most_kinds in (MOST_KINDS // 2, 1):
        cheaper = _shared_kinds(kinds, most_kinds, cheaper=True)
        dearer = _shared_kinds(kinds, most_kinds, cheaper=False)
        least = _affordable_epsilon((*cheaper, *unsampled), delta, adjacency)
        most = _affordable_epsilon((*dearer, *unsampled), delta, adjacency)
        if least is not None and most is not None:
            return EpsilonRange(least, most)
    raise AssertionError("one kind of step transforms one grid")


@dataclass(frozen=True)
class SmallDeltaCost:
    """What a site's steps cost at `SMALL_DELTA`.

    Attributes:
        site: The site's name.
        delta: `SMALL_DELTA`.
        epsilon: The upper end of `epsilon_bounds`.
    """

    site: str
    delta: float
    epsilon: float


def largest_at_small_delta(
    statements: Mapping[str, PrivacyStatement], adjacency: Adjacency
) -> SmallDeltaCost | None:
    """Account for the costliest site's steps once more at `SMALL_DELTA`.

    That delta discloses nobody outright.

    Args:
        statements: Site -> what it states of its spending. Those of one fixed schedule count, whose
            loss distribution is known.
        adjacency: What neighbouring data sets differ in.

    Returns:
        The cost; None if no site has such a statement, or every delta is as small.
    """
    epsilons = {
        site: statement.epsilon
        for site, statement in statements.items()
        if statement.epsilon_method == "pld"
        and statement.delta > SMALL_DELTA
        and statement.epsilon is not None
    }
    if not epsilons:
        return None
    site = max(epsilons, key=lambda name: epsilons[name])
    # A site's history is its own word, and must not choose how long the server computes.
    history = read_history(statements[site].history)
    bounds = epsilon_bounds(history, SMALL_DELTA, adjacency)
    return SmallDeltaCost(site=site, delta=SMALL_DELTA, epsilon=bounds.most)


def _infinite_if_none(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _account_of(statement: PrivacyStatement) -> tuple[object, ...]:
    return (
        statement.cohort,
        statement.unit,
        statement.units,
        statement.adjacency,
        statement.budget,
        statement.seeded,
    )


def _continues(history: History, earlier: History) -> bool:
    """Say whether a history begins with an earlier one, whose last event may have got more steps.

    A ledger only grows at its end. One that could be rewritten would be kept anew in every round.
    """
    if not earlier:
        return True
    *settled, last = earlier
    if len(history) < len(earlier) or list(history[: len(settled)]) != settled:
        return False
    last_now = history[len(settled)]
    return last_now == replace(last, steps=max(last.steps, last_now.steps))


def _covers(history: History, needed: History) -> bool:
    """Say whether each needed step has a hardly noisier partner of its rate in the history."""
    return all(
        covers(_at_rate(history, rate), _at_rate(needed, rate), NOISE_TOLERANCE)
        for rate in {event.sampling_rate for event in needed}
    )


def _at_rate(history: History, rate: float) -> History:
    return tuple(event for event in history if event.sampling_rate == rate)


def _states_mu_of(statement: PrivacyStatement, history: History) -> bool:
    mu = gdp_mu(history, statement.adjacency)
    stated_mu = _infinite_if_none(statement.mu)
    return statement.mu_kind == mu.kind and math.isclose(mu.mu, stated_mu, rel_tol=MU_TOLERANCE)


def _range_of_single_run(
    statement: PrivacyStatement, history: History, reached: History, planned: History
) -> EpsilonRange:
    """Return what may be stated for a history that holds this run's steps alone."""
    delta = statement.delta
    adjacency = statement.adjacency
    if statement.epsilon_method != "pld":
        bounds = epsilon_bounds(history, delta, adjacency)
        return bounds._replace(most=_most_by_rule(statement, history, bounds))
    if planned and history == joined(reached):
        # Site and server know the plan, which is composed once.
        epsilon = prefix_epsilon(planned, statement.steps, delta, adjacency)
        return EpsilonRange(epsilon, epsilon)
    least = epsilon_bounds(history, delta, adjacency).least
    most = epsilon_bounds(reached, delta, adjacency).most
    if planned:
        # A site that missed a round composes on the whole plan's grid as well, whose bound may be
        # less tight.
        most = max(most, prefix_epsilon(planned, steps_of(reached), delta, adjacency))
    return EpsilonRange(least, most)


def _range_of_several_runs(
    statement: PrivacyStatement, history: History, reached: History
) -> EpsilonRange:
    """Return what may be stated for a history that holds steps of other runs as well."""
    bounds = epsilon_bounds(history, statement.delta, statement.adjacency)
    # Steps that cost nothing must not share a kind with the planned ones.
    as_planned = epsilon_bounds(_as_planned(history, reached), statement.delta, statement.adjacency)
    return EpsilonRange(
        least=max(bounds.least, as_planned.least),
        most=_most_by_rule(statement, history, bounds),
    )


def _as_planned(history: History, planned: History) -> History:
    """Return the steps of a history at a planned rate, hardly noisier than those planned at it."""
    most_noise: dict[float, float] = {}
    for event in planned:
        hardly_more = event.noise_multiplier * (1 + NOISE_TOLERANCE)
        rate = event.sampling_rate
        most_noise[rate] = max(hardly_more, most_noise.get(rate, 0.0))
    return tuple(
        event
        for event in history
        if event.noise_multiplier <= most_noise.get(event.sampling_rate, -1.0)
    )


def _most_by_rule(statement: PrivacyStatement, history: History, bounds: EpsilonRange) -> float:
    """Return what a history may cost at most by the cohort's rule: no filter passes its budget."""
    if statement.budget is not None:
        return statement.budget
    if statement.epsilon_method == "pld":
        return bounds.most
    name: RuleName = statement.epsilon_method
    unlimited = Budget(
        epsilon=math.inf,
        delta=statement.delta,
        adjacency=statement.adjacency,
        orders=filter_orders(math.inf, statement.delta),
    )
    return filter_epsilon(SpendingRule(name), _with_few_kinds(history), unlimited)


def _with_few_kinds(history: History) -> History:
    """Let subsampled steps share at most `MOST_KINDS` kinds, none cheaper.

    A filter costs time for each kind.
    """
    kinds = _subsampled_kinds(history)
    if len(kinds) <= MOST_KINDS:
        return history
    unsampled = tuple(event for event in history if event.sampling_rate == 1)
    return *unsampled, *_shared_kinds(kinds, MOST_KINDS, cheaper=False)


def _subsampled_kinds(history: Iterable[GaussianEvent]) -> History:
    """Join the steps with subsampling that are of one kind: of equal noise and sampling rate."""
    subsampled = (event for event in history if event.sampling_rate < 1)
    return joined(
        sorted(subsampled, key=lambda event: (event.noise_multiplier, event.sampling_rate))
    )


def _unsampled_release(history: History) -> History:
    """Join all steps without subsampling into one release, which composes exactly."""
    events = tuple(event for event in history if event.sampling_rate == 1 and not event.is_free)
    if not has_noise(events):
        return (GaussianEvent(0.0, 1.0, 1),)
    return levels_of(events)


def _shared_kinds(kinds: History, most_kinds: int, *, cheaper: bool) -> History:
    """Let steps share at most so many kinds, which cost less than theirs, or else more.

    Cheaper is more noise at a lower rate.
    """
    rates = _rounded(
        [kind.sampling_rate for kind in kinds], min(MOST_RATES, most_kinds), up=not cheaper
    )
    sigmas = _rounded(
        [kind.noise_multiplier for kind in kinds], most_kinds // len(set(rates)), up=cheaper
    )
    return _subsampled_kinds(
        GaussianEvent(sigma, rate, kind.steps)
        for sigma, rate, kind in zip(sigmas, rates, kinds, strict=True)
    )


def _rounded(values: list[float], most: int, *, up: bool) -> list[float]:
    """Round values up or down to at most so many, evenly spread over those that there are."""
    distinct = sorted(set(values))
    if len(distinct) <= most:
        return values
    stride = math.ceil(len(distinct) / most)
    if up:
        edges = distinct[::-stride][::-1]
        return [edges[bisect_left(edges, value)] for value in values]
    edges = distinct[::stride]
    return [edges[bisect_right(edges, value) - 1] for value in values]


# Sites of equal noise and rate share an account.
@lru_cache(maxsize=256)
def _affordable_epsilon(history: History, delta: float, adjacency: Adjacency) -> float | None:
    """Return epsilon, or None where it would take too long."""
    subsampled_kinds = sum(event.sampling_rate < 1 for event in history)
    if subsampled_kinds > 1 and composition_work(history, delta, adjacency) > MOST_WORK:
        return None
    return pld_epsilon(history, delta, adjacency)
