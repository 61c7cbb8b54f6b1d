"""Does a site's statement of its spending cost what it says?

Its epsilon and mu are computed again from its history.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.account import SMALL_DELTA
from fl_dpbayes.privacy.events import (
    GaussianEvent,
    History,
    has_noise,
    joined,
    levels_of,
    read_history,
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
MOST_KINDS, MOST_RATES, MOST_WORK = 64, 4, 2**21


Kind = tuple[float, float]
Events = tuple[tuple[float, float, int], ...]


def reply_metrics(reply: TrainReply, stretch: PlannedStretch) -> dict[str, int | float]:
    """Return what a reply says again in Flower's MetricRecord.

    Epsilon is that of the cohort so far.
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
    own: History,
    reached: History,
    previous: PrivacyStatement | None,
    delta: float,
    planned: History = (),
) -> PrivacyStatement:
    """Check what a site says of its spending against its own history and against what the server asked for.

    Epsilon is at least what the history costs by its privacy-loss distribution. It is at most what
    the planned steps up to the last one cost, where the history holds this run's steps alone, and
    else at most the budget, beyond which no filter admits a step. `planned`: the whole plan, where
    one is known. `previous`: the last accepted statement of the same part of the site's units in
    this run. Whatever it holds, epsilon is within the budget. Raises ValueError saying in a few
    words what does not fit.
    """
    if statement.delta != delta:
        raise ValueError("its privacy statement is for another delta")
    if previous is not None and _account_of(previous) != _account_of(statement):
        raise ValueError("its privacy statement is of another account than before")
    history = read_history(statement.history)
    if statement.steps != sum(event.steps for event in history):
        raise ValueError("its privacy statement miscounts the steps of its history")
    before = read_history(previous.history) if previous is not None else ()
    known = (*before, *own)
    if not _covers(history, known):
        raise ValueError("its privacy history lacks steps of this run at the planned noise")
    if not _goes_on(before, history):
        raise ValueError("its privacy history is not its earlier one, gone on with")
    mu = gdp_mu(history, statement.adjacency)
    if (statement.mu_kind, statement.mu is None) != (
        mu.kind,
        math.isinf(mu.mu),
    ) or not math.isclose(
        mu.mu, math.inf if statement.mu is None else statement.mu, rel_tol=MU_TOLERANCE
    ):
        raise ValueError("its privacy statement's mu is not that of its history")
    alone = statement.steps == sum(event.steps for event in known)
    if alone and planned and statement.epsilon_method == "pld" and history == joined(reached):
        # Site and server know the plan, which is composed once.
        least = most = prefix_epsilon(planned, statement.steps, delta, statement.adjacency)
    else:
        least, most = _epsilon_range(statement, history, reached if alone else None)
        if alone and planned and statement.epsilon_method == "pld":
            # A site that missed a round composes on the whole plan's grid as well, whose bound may
            # be less tight.
            steps = sum(event.steps for event in reached)
            most = max(most, prefix_epsilon(planned, steps, delta, statement.adjacency))
    if not alone:
        # Steps that cost nothing must not share a kind with the planned ones.
        least = max(
            least, epsilon_bounds(_as_planned(history, reached), delta, statement.adjacency)[0]
        )
    epsilon = math.inf if statement.epsilon is None else statement.epsilon
    if epsilon < (1 - EPSILON_TOLERANCE) * least:
        raise ValueError(f"it states epsilon {epsilon:.4g}, its history costs {least:.4g}")
    if epsilon > (1 + EPSILON_TOLERANCE) * most:
        raise ValueError(f"it states epsilon {epsilon:.4g}, its history allows at most {most:.4g}")
    budget = math.inf if statement.budget is None else statement.budget
    if max(epsilon, least) > (1 + EPSILON_TOLERANCE) * budget:
        raise ValueError(
            f"it states epsilon {epsilon:.4g} of a budget of {budget:.4g}, beyond which "
            "no step runs"
        )
    return statement if epsilon >= least else statement.model_copy(update={"epsilon": least})


def epsilon_bounds(history: History, delta: float, adjacency: Adjacency) -> tuple[float, float]:
    """Bound what a history costs from both sides, in bounded time.

    Both are its epsilon where that takes a fraction of a second. Else steps share as many kinds as
    do, with more noise and a lower sampling rate for the lower bound, less noise and a higher rate
    for the upper one.
    """
    kinds, whole = _kinds(history)
    if len(kinds) <= MOST_KINDS:
        exact = _epsilon((*_events(kinds), *whole), delta, adjacency)
        if exact is not None:
            return exact, exact
    # All in one kind transform one grid, which is never too much.
    for most in (MOST_KINDS // 2, 1):
        least, greatest = (
            _epsilon((*_shared(kinds, most, up), *whole), delta, adjacency) for up in (True, False)
        )
        if least is not None and greatest is not None:
            return least, greatest
    raise AssertionError("one kind of step transforms one grid")


def _account_of(statement: PrivacyStatement) -> tuple[object, ...]:
    return (
        statement.cohort,
        statement.unit,
        statement.units,
        statement.adjacency,
        statement.budget,
        statement.seeded,
    )


def _goes_on(before: History, history: History) -> bool:
    """Say whether a history begins with an earlier one, whose last event may have got more steps.

    A ledger only grows at its end. One that could be rewritten would be kept anew in every round.
    """
    if not before:
        return True
    *settled, last = before
    if len(history) < len(before) or list(history[: len(settled)]) != settled:
        return False
    now = history[len(settled)]
    grown = replace(last, steps=max(last.steps, now.steps))
    return now == grown


def _covers(history: History, needed: History) -> bool:
    """Say whether each needed step has a partner of the same rate in the history with hardly more noise.

    The sets of partners are nested, so counting decides.
    """
    for rate in {event.sampling_rate for event in needed}:
        wanted, counts = _sorted_steps(needed, rate)
        found, present = _sorted_steps(history, rate)
        positions = np.searchsorted(found, wanted * (1 + NOISE_TOLERANCE), side="right")
        if (np.concatenate([[0], present])[positions] < counts).any():
            return False
    return True


def _as_planned(history: History, planned: History) -> History:
    """Return the steps of a history at a planned rate with hardly more noise than the planned ones at that rate."""
    most: dict[float, float] = {}
    for event in planned:
        hardly_more = event.noise_multiplier * (1 + NOISE_TOLERANCE)
        most[event.sampling_rate] = max(hardly_more, most.get(event.sampling_rate, 0.0))
    return tuple(
        event for event in history if event.noise_multiplier <= most.get(event.sampling_rate, -1.0)
    )


def _sorted_steps(history: History, rate: float) -> tuple[np.ndarray, np.ndarray]:
    events = sorted(
        (event.noise_multiplier, event.steps) for event in history if event.sampling_rate == rate
    )
    return np.array([sigma for sigma, _ in events]), np.cumsum(
        [steps for _, steps in events], dtype=np.int64
    )


def _epsilon_range(
    statement: PrivacyStatement, history: History, reached: History | None
) -> tuple[float, float]:
    delta, adjacency = statement.delta, statement.adjacency
    least, most = epsilon_bounds(history, delta, adjacency)
    if statement.epsilon_method == "pld" and reached is not None:
        return least, epsilon_bounds(reached, delta, adjacency)[1]
    if statement.budget is not None:
        return least, statement.budget
    if statement.epsilon_method == "pld":
        return least, most
    name: RuleName = statement.epsilon_method
    unlimited = Budget(math.inf, delta, adjacency, filter_orders(math.inf, delta))
    return least, filter_epsilon(SpendingRule(name), _no_cheaper(history), unlimited)


def _no_cheaper(history: History) -> History:
    """Let subsampled steps share at most `MOST_KINDS` kinds, none cheaper: a filter costs time for each kind."""
    kinds, _ = _kinds(history)
    if len(kinds) <= MOST_KINDS:
        return history
    whole = tuple(event for event in history if event.sampling_rate == 1)
    return *whole, *(GaussianEvent(*event) for event in _shared(kinds, MOST_KINDS, up=False))


def _kinds(history: History) -> tuple[dict[Kind, int], Events]:
    """Count subsampled steps by kind, and join all others into one release, which composes exactly (`levels_of`)."""
    kinds: dict[Kind, int] = Counter()
    for event in history:
        if event.sampling_rate < 1:
            kinds[event.noise_multiplier, event.sampling_rate] += event.steps
    whole = tuple(event for event in history if event.sampling_rate == 1 and not event.is_free)
    if not has_noise(whole):
        return kinds, ((0.0, 1.0, 1),)
    return kinds, tuple((level.noise_multiplier, 1.0, 1) for level in levels_of(whole))


def _shared(kinds: dict[Kind, int], most: int, up: bool) -> Events:
    """Let steps share at most so many kinds, which cost less than theirs (`up`: noise up, rate down) or more."""
    rates = _rounded([rate for _, rate in kinds], min(MOST_RATES, most), not up)
    sigmas = _rounded([sigma for sigma, _ in kinds], most // len(set(rates)), up)
    joined: dict[Kind, int] = Counter()
    for sigma, rate, steps in zip(sigmas, rates, kinds.values(), strict=True):
        joined[sigma, rate] += steps
    return _events(joined)


def _rounded(values: list[float], most: int, up: bool) -> list[float]:
    """Round values up or down to at most so many, evenly spread over those that there are."""
    distinct = sorted(set(values))
    if len(distinct) <= most:
        return values
    stride = math.ceil(len(distinct) / most)
    edges = distinct[::-stride][::-1] if up else distinct[::stride]
    return [
        edges[bisect_left(edges, value) if up else bisect_right(edges, value) - 1]
        for value in values
    ]


def _events(kinds: dict[Kind, int]) -> Events:
    return tuple((sigma, rate, steps) for (sigma, rate), steps in sorted(kinds.items()))


# Sites of equal noise and rate share an account.
@lru_cache(maxsize=256)
def _epsilon(events: Events, delta: float, adjacency: Adjacency) -> float | None:
    """Return epsilon, or None where it would take too long."""
    history = tuple(GaussianEvent(*event) for event in events)
    if (
        sum(rate < 1 for _, rate, _ in events) > 1
        and composition_work(history, delta, adjacency) > MOST_WORK
    ):
        return None
    return pld_epsilon(history, delta, adjacency)


def largest_at_small_delta(
    rows: Sequence[dict[str, Any]], adjacency: Adjacency
) -> dict[str, Any] | None:
    """Account for the costliest site's steps once more at `SMALL_DELTA`, which discloses nobody outright.

    Of the summary's privacy `rows` those of one fixed schedule count, whose loss distribution is
    known. Returns `site`, `delta`, `epsilon` (the upper one of `epsilon_bounds`); None if no site
    has such a row, or every delta is as small.
    """
    known = [
        row for row in rows if row.get("epsilon_method") == "pld" and row["delta"] > SMALL_DELTA
    ]
    largest = max(
        (row for row in known if math.isfinite(row["epsilon"])),
        key=lambda row: row["epsilon"],
        default=None,
    )
    if largest is None:
        return None
    # A site's history is its own word, and must not choose how long the server computes.
    _, epsilon = epsilon_bounds(read_history(largest["history"]), SMALL_DELTA, adjacency)
    return {"site": largest["site"], "delta": SMALL_DELTA, "epsilon": epsilon}
