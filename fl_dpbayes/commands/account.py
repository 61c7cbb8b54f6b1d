"""The work behind `account` and `solve`: options checked, and accounts and solved noise as tables and as JSON."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from fl_dpbayes.config import MAX_STEPS, Adjacency, PrivacyPlan, StepSizeSchedule, read_record
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
    """Account for `steps` steps of noise multiplier `sigma` at sampling rate `q`, or for the JSON list of `history`.

    Raises UserError if neither or both forms are given, or a value is out of range.
    """
    if not 0 < delta < 1:
        raise UserError(f"--delta is {delta}: it must lie between 0 and 1")
    if history is not None and sigma is q is steps is None:
        return account(_history_in(history), delta, adjacency)
    if history is not None or sigma is None or q is None or steps is None:
        raise UserError("give either --sigma, --q and --steps together, or --history FILE")
    for option, value, high in (
        ("--sigma", sigma, math.inf),
        ("--q", q, 1),
        ("--steps", steps, MAX_ACCOUNTED_STEPS),
    ):
        _require(option, value, 0, high)
    return account((GaussianEvent(sigma, q, steps),), delta, adjacency)


def _require(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UserError(f"{option} is {value}: it must be from {low:g} to {high:g}")


def _history_in(path: Path) -> History:
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
    except (ValueError, TypeError) as error:
        what = " is not JSON" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"--history {path}{what}: {error}") from None


def solved(options: dict[str, Any], schedule: str, steps: int, units: int) -> SolvedNoise:
    """Solve the free parameter of a coupling for a target epsilon.

    `options`: fields of a `PrivacyPlan`; `temperature` is tau of `floor`, None: 1. Raises UserError
    if a value is out of range, or the target cannot be met.
    """
    temperature, coupling = options["temperature"], options["coupling"]
    _require("--steps", steps, 1, MAX_STEPS)
    _require("--units", units, 1, math.inf)
    if temperature is not None and coupling != "floor":
        has = "has no temperature" if coupling == "constant" else "finds its own"
        raise UserError(
            f"--temperature is {temperature}, but --coupling {coupling} {has}: leave it out, "
            "or take floor"
        )
    options |= {"temperature": 1.0} if temperature is None and coupling == "floor" else {}
    try:
        content, example = (
            tomllib.loads(f"schedule = {schedule}"),
            '{kind="polynomial", initial=0.1, power=0.33}',
        )
        sizes = read_record(_Schedule, content, f"--schedule (for example {example})").schedule
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"--schedule is not a TOML value: {error}") from None
    try:
        plan = PrivacyPlan.model_validate(options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = OPTIONS.get(str(first["loc"][0]), first["loc"][0])
        raise UserError(
            f"{option} is {first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
        ) from None
    try:
        return solve_noise(plan, step_sizes(sizes, steps), units)
    except ValueError as error:
        raise UserError(f"--schedule: {error}") from None


def account_json(found: Account) -> JSONValue:
    """Write an account as JSON values; infinite is the string "inf"."""
    epsilons = {"pld": found.epsilon_pld, "rdp": found.epsilon_rdp, "gdp": found.epsilon_gdp}
    kept = {name: getattr(found, name) for name in ("delta", "adjacency", "mu", "mu_kind")}
    return json_values(kept | {"epsilon": epsilons})


def account_table(found: Account) -> Table:
    """Lay out an account: one row per method, with what its epsilon means."""
    table = terminal_table(f"epsilon at delta = {found.delta:g}; {NEIGHBOURS[found.adjacency]}")
    table.add_column("method", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("what it is")
    tightest = "privacy-loss distribution: the tightest upper bound; this one is reported"
    table.add_row("PLD", _text(found.epsilon_pld), tightest)
    if found.epsilon_small_delta is not None:
        table.add_row(
            "PLD", _text(found.epsilon_small_delta), f"the same at delta = {SMALL_DELTA:g}"
        )
    table.add_row(
        "RDP",
        _text(found.epsilon_rdp),
        "Renyi divergences: an upper bound, looser; filters across runs",
    )
    table.add_row(f"GDP ({found.mu_kind})", _text(found.epsilon_gdp), _gdp_meaning(found))
    return table


def solve_json(found: SolvedNoise) -> JSONValue:
    """Write solved noise as JSON values.

    The coupling `floor` has both parameters, infinite is the string "inf".
    """
    free = {
        key: value
        for key in ("noise_multiplier", "temperature")
        if (value := getattr(found, key)) is not None
    }
    return json_values(
        free
        | {"epsilon": found.epsilon, "delta": found.delta, "history": write_history(found.history)}
    )


def solve_table(found: SolvedNoise) -> Table:
    """Lay out solved noise: the parameter, the noise of the first and the last step, and the cost."""
    sigmas = found.noise_multipliers
    table = terminal_table(f"noise for {len(sigmas)} steps; {NEIGHBOURS[found.adjacency]}")
    table.add_column("quantity")
    table.add_column("value", justify="right", no_wrap=True)
    for name, value in (
        ("noise multiplier", found.noise_multiplier),
        ("temperature", found.temperature),
    ):
        if value is not None:
            table.add_row(name, _text(value))
    table.add_row(
        "noise multiplier, first to last step", f"{_text(sigmas[0])} to {_text(sigmas[-1])}"
    )
    table.add_row(f"epsilon at delta = {found.delta:g} (PLD)", _text(found.epsilon))
    return table


def _gdp_meaning(found: Account) -> str:
    summary = f"Gaussian differential privacy, mu = {_text(found.mu)}"
    if found.mu_kind == "exact":
        return f"{summary}: exact, every unit took part in every step"
    is_short = found.epsilon_gdp < found.epsilon_pld < math.inf
    short = 100 * (1 - found.epsilon_gdp / found.epsilon_pld) if is_short else 0
    under = f"; it under-reports against PLD by {short:.1f} %" if is_short else ""
    return f"{summary}: central limit, not a guarantee{under}"


def _text(value: float) -> str:
    return f"{value:.6g}"
