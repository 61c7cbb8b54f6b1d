"""The work behind `account` and `solve`: options checked, accounts and noise as tables and JSON."""

import json
import math
import tomllib
from pathlib import Path
from typing import TypedDict

from pydantic import ValidationError
from rich.table import Table

from fl_dpbayes.config import (
    MAX_STEPS,
    Adjacency,
    NoiseCoupling,
    PrivacyPlan,
    StepSizeSchedule,
    read_record,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config, JSONValue, json_values
from fl_dpbayes.privacy import (
    SMALL_DELTA,
    Account,
    GaussianEvent,
    History,
    SolvedNoise,
    read_history,
    solve_noise,
    write_history,
)
from fl_dpbayes.privacy.account import account
from fl_dpbayes.report.terminal_table import terminal_table
from fl_dpbayes.schedules import step_sizes

# Beyond it the arithmetic has no digits left to count steps with.
MAX_ACCOUNTED_STEPS = 10**12
# Field of a plan -> the option that sets it.
OPTIONS = {
    "epsilon": "--epsilon",
    "delta": "--delta",
    "sampling_rate": "--q",
    "clip_norm": "--clip-norm",
    "temperature": "--temperature",
}
NEIGHBOURS = {
    "add_or_remove_one": "neighbours differ by adding or removing one unit",
    "replace_one": "neighbours differ by replacing one unit",
}
EXAMPLE_SCHEDULE = '{kind="polynomial", initial=0.1, power=0.33}'


class NoiseOptions(TypedDict):
    """Keys of a `PrivacyPlan` as the options give them.

    Attributes:
        temperature: tau of coupling `floor`, None: 1.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    coupling: NoiseCoupling
    clip_norm: float
    sampling_rate: float
    temperature: float | None


class _Schedule(Config):
    schedule: StepSizeSchedule


def account_of(
    sigma: float | None,
    q: float | None,
    steps: int | None,
    history: Path | None,
    delta: float,
    adjacency: Adjacency,
) -> Account:
    """Account for steps of one noise, or for a history of noisy steps.

    Args:
        sigma: Noise multiplier of all steps, >= 0; None with `history`.
        q: Their sampling rate, in [0, 1]; None with `history`.
        steps: Their number; None with `history`.
        history: A file with a JSON list of [noise_multiplier, sampling_rate, steps] instead.
        delta: In (0, 1).
        adjacency: Which data sets are neighbours.

    Returns:
        What the steps cost, by every method.

    Raises:
        UserError: If neither or both forms are given, or a value is out of range.
    """
    if not 0 < delta < 1:
        raise UserError(f"--delta is {delta}: it must lie between 0 and 1")
    if history is not None and sigma is None and q is None and steps is None:
        return account(_read_history_file(history), delta, adjacency)
    if history is not None or sigma is None or q is None or steps is None:
        raise UserError("give either --sigma, --q and --steps together, or --history FILE")
    _check_range("--sigma", sigma, 0, math.inf)
    _check_range("--q", q, 0, 1)
    _check_range("--steps", steps, 0, MAX_ACCOUNTED_STEPS)
    return account((GaussianEvent(sigma, q, steps),), delta, adjacency)


def solve_options(options: NoiseOptions, schedule: str, steps: int, units: int) -> SolvedNoise:
    """Solve the free parameter of a coupling for a target epsilon.

    Args:
        options: The target, and how noise is added.
        schedule: The step sizes, as a TOML value.
        steps: Number of steps, >= 1.
        units: Number n of privacy units, >= 1.

    Returns:
        The parameter, the noise of every step, and what they cost.

    Raises:
        UserError: If a value is out of range, or the target cannot be met.
    """
    _check_range("--steps", steps, 1, MAX_STEPS)
    _check_range("--units", units, 1, math.inf)
    plan_keys = {**options, "temperature": _floor_temperature(options)}
    sizes = _read_schedule(schedule)
    try:
        plan = PrivacyPlan.model_validate(plan_keys)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = OPTIONS.get(str(first["loc"][0]), first["loc"][0])
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(f"{option} is {first['input']!r}: {message}") from None
    try:
        return solve_noise(plan, step_sizes(sizes, steps), units)
    except ValueError as error:
        raise UserError(f"--schedule: {error}") from None


def account_json(result: Account) -> JSONValue:
    """Write an account as JSON values; infinite is the string "inf"."""
    return json_values(
        {
            "delta": result.delta,
            "adjacency": result.adjacency,
            "mu": result.mu,
            "mu_kind": result.mu_kind,
            "epsilon": {
                "pld": result.epsilon_pld,
                "rdp": result.epsilon_rdp,
                "gdp": result.epsilon_gdp,
            },
        }
    )


def account_table(result: Account) -> Table:
    """Lay out an account: one row per method, with what its epsilon means."""
    table = terminal_table(f"epsilon at delta = {result.delta:g}; {NEIGHBOURS[result.adjacency]}")
    table.add_column("method", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("what it is")
    tightest = "privacy-loss distribution: the tightest upper bound; this one is reported"
    table.add_row("PLD", _digits(result.epsilon_pld), tightest)
    if result.epsilon_small_delta is not None:
        small_delta = f"the same at delta = {SMALL_DELTA:g}"
        table.add_row("PLD", _digits(result.epsilon_small_delta), small_delta)
    looser = "Renyi divergences: an upper bound, looser; filters across runs"
    table.add_row("RDP", _digits(result.epsilon_rdp), looser)
    table.add_row(f"GDP ({result.mu_kind})", _digits(result.epsilon_gdp), _gdp_meaning(result))
    return table


def solve_json(result: SolvedNoise) -> JSONValue:
    """Write solved noise as JSON values; infinite is the string "inf".

    The coupling `floor` has both parameters, all others one of the two.
    """
    parameters = {
        "noise_multiplier": result.noise_multiplier,
        "temperature": result.temperature,
    }
    solved = {name: value for name, value in parameters.items() if value is not None}
    cost = {
        "epsilon": result.epsilon,
        "delta": result.delta,
        "history": write_history(result.history),
    }
    return json_values(solved | cost)


def solve_table(result: SolvedNoise) -> Table:
    """Lay out solved noise: the parameter, the noise of the first and last step, and the cost."""
    sigmas = result.noise_multipliers
    table = terminal_table(f"noise for {len(sigmas)} steps; {NEIGHBOURS[result.adjacency]}")
    table.add_column("quantity")
    table.add_column("value", justify="right", no_wrap=True)
    if result.noise_multiplier is not None:
        table.add_row("noise multiplier", _digits(result.noise_multiplier))
    if result.temperature is not None:
        table.add_row("temperature", _digits(result.temperature))
    first_to_last = f"{_digits(sigmas[0])} to {_digits(sigmas[-1])}"
    table.add_row("noise multiplier, first to last step", first_to_last)
    table.add_row(f"epsilon at delta = {result.delta:g} (PLD)", _digits(result.epsilon))
    return table


def _check_range(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UserError(f"{option} is {value}: it must be from {low:g} to {high:g}")


def _read_history_file(path: Path) -> History:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise ValueError("expected a JSON list of [noise_multiplier, sampling_rate, steps]")
        events = read_history(rows)
        if sum(event.steps for event in events) > MAX_ACCOUNTED_STEPS:
            raise ValueError(f"its steps exceed {MAX_ACCOUNTED_STEPS:.0e} together: give fewer")
        return events
    except OSError as error:
        raise UserError(f"--history {path} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"--history {path} is not JSON: {error}") from None
    except (ValueError, TypeError) as error:
        raise UserError(f"--history {path}: {error}") from None


def _floor_temperature(options: NoiseOptions) -> float | None:
    """Return tau of coupling `floor`; UserError if another coupling is given one."""
    temperature = options["temperature"]
    coupling = options["coupling"]
    if coupling == "floor":
        return 1.0 if temperature is None else temperature
    if temperature is not None:
        reason = "has no temperature" if coupling == "constant" else "finds its own"
        raise UserError(
            f"--temperature is {temperature}, but --coupling {coupling} {reason}: leave it out, "
            "or take floor"
        )
    return None


def _read_schedule(text: str) -> StepSizeSchedule:
    try:
        content = tomllib.loads(f"schedule = {text}")
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"--schedule is not a TOML value: {error}") from None
    origin = f"--schedule (for example {EXAMPLE_SCHEDULE})"
    return read_record(_Schedule, content, origin).schedule


def _gdp_meaning(result: Account) -> str:
    summary = f"Gaussian differential privacy, mu = {_digits(result.mu)}"
    if result.mu_kind == "exact":
        return f"{summary}: exact, every unit took part in every step"
    if result.epsilon_gdp < result.epsilon_pld < math.inf:
        shortfall = 100 * (1 - result.epsilon_gdp / result.epsilon_pld)
        return (
            f"{summary}: central limit, not a guarantee; it under-reports against PLD by "
            f"{shortfall:.1f} %"
        )
    return f"{summary}: central limit, not a guarantee"


def _digits(value: float) -> str:
    return f"{value:.6g}"
