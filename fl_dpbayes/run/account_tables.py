"""Accounts and solved noise as tables for people and as JSON for programs."""

import math
from typing import Any

from rich.table import Table

from fl_dpbayes.privacy.account import SMALL_DELTA, Account
from fl_dpbayes.privacy.events import write_history
from fl_dpbayes.privacy.solve import SolvedNoise
from fl_dpbayes.report.terminal_table import terminal_table

NEIGHBOURS = {
    "add_or_remove_one": "neighbours differ by adding or removing one unit",
    "replace_one": "neighbours differ by replacing one unit",
}


def account_json(account: Account) -> dict[str, Any]:
    """Write an account as `{"delta", "adjacency", "mu", "mu_kind", "epsilon": {"pld", "rdp", "gdp"}}`.

    Args:
        account: what a history cost.

    Returns:
        JSON-ready; infinite values are the string `"inf"`.
    """
    return {
        "delta": account.delta,
        "adjacency": account.adjacency,
        "mu": _json_number(account.mu),
        "mu_kind": account.mu_kind,
        "epsilon": {
            "pld": _json_number(account.epsilon_pld),
            "rdp": _json_number(account.epsilon_rdp),
            "gdp": _json_number(account.epsilon_gdp),
        },
    }


def account_table(account: Account) -> Table:
    """Lay out an account: one row per method, with what its epsilon means.

    Args:
        account: what a history cost.

    Returns:
        A table for the terminal.
    """
    table = terminal_table(f"epsilon at delta = {account.delta:g}; {NEIGHBOURS[account.adjacency]}")
    table.add_column("method", no_wrap=True)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("what it is")
    table.add_row(
        "PLD", _text(account.epsilon_pld), "privacy-loss distribution: the tightest upper bound; this one is reported"
    )
    if account.epsilon_small_delta is not None:
        table.add_row("PLD", _text(account.epsilon_small_delta), f"the same at delta = {SMALL_DELTA:g}")
    table.add_row("RDP", _text(account.epsilon_rdp), "Renyi divergences: an upper bound, looser; filters across runs")
    table.add_row(f"GDP ({account.mu_kind})", _text(account.epsilon_gdp), _gdp_meaning(account))
    return table


def solve_json(solved: SolvedNoise) -> dict[str, Any]:
    """Write solved noise as `{"noise_multiplier" | "temperature", "epsilon", "delta", "history"}`.

    Args:
        solved: the noise of a plan.

    Returns:
        JSON-ready; the coupling `floor` has both parameters; infinite values are the string `"inf"`.
    """
    parameters = {"noise_multiplier": solved.noise_multiplier, "temperature": solved.temperature}
    return {
        **{name: value for name, value in parameters.items() if value is not None},
        "epsilon": _json_number(solved.epsilon),
        "delta": solved.delta,
        "history": write_history(solved.history),
    }


def solve_table(solved: SolvedNoise) -> Table:
    """Lay out solved noise: the parameter, the noise of the first and the last step, and the cost.

    Args:
        solved: the noise of a plan.

    Returns:
        A table for the terminal.
    """
    table = terminal_table(f"noise for {len(solved.noise_multipliers)} steps; {NEIGHBOURS[solved.adjacency]}")
    table.add_column("quantity")
    table.add_column("value", justify="right", no_wrap=True)
    if solved.noise_multiplier is not None:
        table.add_row("noise multiplier", _text(solved.noise_multiplier))
    if solved.temperature is not None:
        table.add_row("temperature", _text(solved.temperature))
    first, last = solved.noise_multipliers[0], solved.noise_multipliers[-1]
    table.add_row("noise multiplier, first to last step", f"{_text(first)} to {_text(last)}")
    table.add_row(f"epsilon at delta = {solved.delta:g} (PLD)", _text(solved.epsilon))
    return table


def _gdp_meaning(account: Account) -> str:
    summary = f"Gaussian differential privacy, mu = {_text(account.mu)}"
    if account.mu_kind == "exact":
        return f"{summary}: exact, every unit took part in every step"
    meaning = f"{summary}: central limit, not a guarantee"
    if 0 < account.epsilon_pld < math.inf and account.epsilon_gdp < account.epsilon_pld:
        short = 100 * (1 - account.epsilon_gdp / account.epsilon_pld)
        return f"{meaning}; it under-reports against PLD by {short:.1f} %"
    return meaning


def _text(value: float) -> str:
    return f"{value:.6g}"


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
