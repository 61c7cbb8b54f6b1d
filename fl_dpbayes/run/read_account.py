"""From the arguments of `account` and `solve` to the library's calls, checked."""

import json
import tomllib
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.account import Account, account
from fl_dpbayes.privacy.events import GaussianEvent, History, read_history
from fl_dpbayes.privacy.pld import pld_epsilon
from fl_dpbayes.privacy.solve import SolvedNoise, largest_prefix, solve_noise
from fl_dpbayes.protocol.plan import MAX_STEPS, Adjacency, PrivacyPlan, StepSizeSchedule
from fl_dpbayes.schedules.step_size import step_sizes


def account_of(
    sigma: float | None, q: float | None, steps: int | None, history: Path | None, delta: float, adjacency: str
) -> Account:
    """Account for one mechanism or a history file.

    Args:
        sigma: noise multiplier, with `q` and `steps`; or None.
        q: sampling rate.
        steps: number of steps.
        history: a JSON list of `[noise_multiplier, sampling_rate, steps]` instead of the three.
        delta: in (0, 1).
        adjacency: which data sets are neighbours.

    Returns:
        The account by every method.

    Raises:
        UserError: if neither or both forms are given, or a value is out of range.
    """
    given = [value is not None for value in (sigma, q, steps)]
    if (history is not None) == any(given) or (any(given) and not all(given)):
        raise UserError("give either --sigma, --q and --steps together, or --history FILE")
    if not 0 < delta < 1:
        raise UserError(f"--delta is {delta}: it must lie between 0 and 1")
    try:
        rows = [[sigma, q, steps]] if history is None else json.loads(history.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise ValueError("expected a JSON list of [noise_multiplier, sampling_rate, steps]")
        events: History = read_history(rows)
    except OSError as error:
        raise UserError(f"--history {history} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise UserError(str(error)) from None
    return account(events, delta, adjacency)  # type: ignore[arg-type]


def solved(
    epsilon: float,
    delta: float,
    q: float,
    steps: int,
    coupling: str,
    schedule: str,
    units: int,
    clip_norm: float,
    temperature: float,
    adjacency: str,
) -> SolvedNoise:
    """Solve the free parameter of a coupling for a target epsilon.

    Args:
        epsilon: target, > 0.
        delta: in (0, 1).
        q: sampling rate, in (0, 1].
        steps: number of steps, >= 1.
        coupling: `constant`, `temperature`, `langevin` or `floor`.
        schedule: step sizes as a TOML table.
        units: n >= 1.
        clip_norm: C > 0.
        temperature: tau of `floor`; others ignore it.
        adjacency: which data sets are neighbours.

    Returns:
        The solved noise.

    Raises:
        UserError: if a value is out of range, or the target cannot be met.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise UserError(f"--steps is {steps}: it must lie between 1 and {MAX_STEPS}")
    if units < 1:
        raise UserError(f"--units is {units}: it must be 1 or more")
    try:
        sizes = TypeAdapter(StepSizeSchedule).validate_python(tomllib.loads(f"value = {schedule}")["value"])
        plan = PrivacyPlan.model_validate(
            {
                "epsilon": epsilon,
                "delta": delta,
                "adjacency": adjacency,
                "coupling": coupling,
                "clip_norm": clip_norm,
                "sampling_rate": q,
                "temperature": temperature if coupling == "floor" else None,
            }
        )
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"--schedule is not a TOML value: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{key} is {first['input']!r}: {first['msg']}") from None
    try:
        return solve_noise(plan, step_sizes(sizes, steps), units)
    except ValueError as error:
        raise UserError(f"--schedule: {error}") from None


def steps_that_fit(epsilon: float, delta: float, q: float, sigma: float, adjacency: str) -> SolvedNoise:
    """Find the largest whole number of steps of equal noise that a target epsilon allows.

    Args:
        epsilon: target, > 0.
        delta: in (0, 1).
        q: sampling rate, in (0, 1].
        sigma: noise multiplier, > 0.
        adjacency: which data sets are neighbours.

    Returns:
        These steps and their cost.

    Raises:
        UserError: if a value is out of range, or not even one step fits.
    """
    for name, value, allowed in (
        ("--epsilon", epsilon, epsilon > 0),
        ("--delta", delta, 0 < delta < 1),
        ("--q", q, 0 < q <= 1),
        ("--sigma", sigma, 0 < sigma < float("inf")),
    ):
        if not allowed:
            raise UserError(f"{name} is {value}: out of range; see fl-dpbayes solve --help")
    chosen: Adjacency = "replace_one" if adjacency == "replace_one" else "add_or_remove_one"
    steps = largest_prefix(np.full(MAX_STEPS, sigma), q, epsilon, delta, chosen)
    if steps == 0:
        raise UserError(f"not even one step at --sigma {sigma} fits --epsilon {epsilon}: raise one of them")
    history = (GaussianEvent(sigma, q, steps),)
    return SolvedNoise(
        noise_multipliers=np.full(steps, sigma),
        noise_multiplier=sigma,
        temperature=None,
        history=history,
        epsilon=pld_epsilon(history, delta, chosen),
        delta=delta,
        adjacency=chosen,
    )
