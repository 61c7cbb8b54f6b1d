"""From the arguments of `account` and `solve` to the library's calls, checked."""

import json
import tomllib
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.plan import MAX_STEPS, Adjacency, PrivacyPlan
from fl_dpbayes.config.sampler import StepSizeSchedule
from fl_dpbayes.privacy.account import Account, account
from fl_dpbayes.privacy.events import GaussianEvent, History, read_history
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.solve import SolvedNoise, largest_prefix, solve_noise
from fl_dpbayes.samplers.planned import step_sizes

# Beyond it the arithmetic has no digits left to count steps with.
MAX_ACCOUNTED_STEPS = 10**12
OPTIONS = {"epsilon": "--epsilon", "delta": "--delta", "sampling_rate": "--q", "clip_norm": "--clip-norm",
           "temperature": "--temperature"}  # fmt: skip


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
    events = _one_event(sigma, q, steps) if history is None else _history_in(history)
    return account(events, delta, adjacency)  # type: ignore[arg-type]


def _one_event(sigma: float | None, q: float | None, steps: int | None) -> History:
    assert sigma is not None
    assert q is not None
    assert steps is not None
    for name, value, allowed, wanted in (
        ("--sigma", sigma, sigma >= 0, "0 or more"),
        ("--q", q, 0 <= q <= 1, "between 0 and 1"),
        ("--steps", steps, 0 <= steps <= MAX_ACCOUNTED_STEPS, f"from 0 to {MAX_ACCOUNTED_STEPS:.0e}"),
    ):
        if not allowed:
            raise UserError(f"{name} is {value}: it must be {wanted}")
    return (GaussianEvent(sigma, q, steps),)


def _history_in(path: Path) -> History:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise ValueError("expected a JSON list of [noise_multiplier, sampling_rate, steps]")
        events = read_history(rows)
        if sum(event.steps for event in events) > MAX_ACCOUNTED_STEPS:
            raise ValueError(f"its steps exceed {MAX_ACCOUNTED_STEPS:.0e} together: give fewer")
    except OSError as error:
        raise UserError(f"--history {path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"--history {path} is not JSON: {error}") from None
    except (ValueError, TypeError) as error:
        raise UserError(f"--history {path}: {error}") from None
    return events


def solved(
    epsilon: float,
    delta: float,
    q: float,
    steps: int,
    coupling: str,
    schedule: str,
    units: int,
    clip_norm: float,
    temperature: float | None,
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
        temperature: tau of `floor`, None: 1; the other couplings take none.
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
    if temperature is not None and coupling != "floor":
        raise UserError(
            f"--temperature is {temperature}, but --coupling {coupling} "
            + ("has no temperature" if coupling == "constant" else "finds its own")
            + ": leave it out, or choose --coupling floor"
        )
    sizes = _schedule(schedule)
    try:
        plan = PrivacyPlan.model_validate(
            {
                "epsilon": epsilon,
                "delta": delta,
                "adjacency": adjacency,
                "coupling": coupling,
                "clip_norm": clip_norm,
                "sampling_rate": q,
                "temperature": (1.0 if temperature is None else temperature) if coupling == "floor" else None,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = OPTIONS.get(str(first["loc"][0]), first["loc"][0])
        raise UserError(f"{option} is {first['input']!r}: {_lower(first['msg'])}") from None
    try:
        return solve_noise(plan, step_sizes(sizes, steps), units)
    except ValueError as error:
        raise UserError(f"--schedule: {error}") from None


def _schedule(text: str) -> StepSizeSchedule:
    try:
        return TypeAdapter(StepSizeSchedule).validate_python(tomllib.loads(f"value = {text}")["value"])
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"--schedule is not a TOML value: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # The first part of a place in a union is the kind that was chosen.
        key = ".".join(str(part) for part in first["loc"][1:])
        if not key:
            example = '{kind="polynomial", initial=0.1, power=0.33}'
            raise UserError(f"--schedule is {text}: {_lower(first['msg'])}; write for example {example}") from None
        value = "" if first["type"] == "missing" else f" is {first['input']!r}"
        raise UserError(f"--schedule: {key}{value}: {_lower(first['msg'])}") from None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


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
