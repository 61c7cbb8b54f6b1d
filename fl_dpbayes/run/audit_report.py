"""What an audit found, as tables for people and as JSON for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fl_dpbayes.privacy.audit_check import Check
from fl_dpbayes.privacy.audit_membership import MembershipScore
from fl_dpbayes.run.audit_canaries import CONFIDENCE, CanaryAudit
from fl_dpbayes.run.audited_plan import substitutions
from fl_dpbayes.scenario import Scenario


def print_audit(
    console: Console,
    scenario: Scenario,
    checks: Sequence[Check],
    canaries: CanaryAudit,
    membership: MembershipScore,
) -> None:
    """Print what was attacked, every check, epsilon claimed and observed, and the membership score.

    Args:
        console: where to print.
        scenario: the audited scenario.
        checks: of all detectors.
        canaries: claimed epsilon and its lower bounds.
        membership: the membership score.
    """
    console.print(
        f"Audit of {scenario.name}: training requests to clients.train, the function that a site's app runs, with the "
        "scenario's sampler, noise coupling, clip norm, sampling rate and budget.",
        markup=False,
    )
    console.print(
        f"Canaries: logistic model, {canaries.canaries} made-up records with an input each, put in by a coin; the "
        f"attacker chose the start and saw all of the first {canaries.steps} of {canaries.planned_steps} steps. "
        f"Neighbours and noise: model {scenario.model.kind!r}, made-up records.",
        markup=False,
    )
    if replaced := substitutions(scenario):
        console.print(f"The detectors replace {replaced}; the membership attack does not.", markup=False)
    console.print(_check_table(checks))
    console.print(_epsilon_table(canaries))
    console.print(
        f"Membership inference on the posterior that one training site released (loss threshold, {membership.members} "
        f"members, {membership.others} others): AUC {membership.area:.3f} +- {membership.area_standard_error:.3f} "
        f"(0.5 is chance), advantage {membership.advantage:.3f} (the claim allows {membership.advantage_bound:.3f}). "
        "Reported, not judged.",
        markup=False,
    )
    failed = sum(not check.passed for check in checks)
    if failed:
        console.print(f"FAILED: {failed} of {len(checks)} checks. Do not release from this code.", style="bold red")
    else:
        console.print(f"passed: all {len(checks)} checks", style="green")


def audit_json(checks: Sequence[Check], canaries: CanaryAudit, membership: MembershipScore) -> dict[str, Any]:
    """Write an audit as JSON: `passed`, `checks`, `epsilon` and `membership`.

    Args:
        checks: of all detectors.
        canaries: claimed epsilon and its lower bounds.
        membership: the membership score.

    Returns:
        JSON-ready; infinite values are the string `"inf"`, undefined ones null.
    """
    return {
        "passed": all(check.passed for check in checks),
        "checks": [
            asdict(check) | {"value": _json(check.value), "limit": _json(check.limit), "passed": check.passed}
            for check in checks
        ],
        "epsilon": asdict(canaries) | {"claimed": _json(canaries.claimed), "confidence": CONFIDENCE},
        "membership": asdict(membership),
    }


def _check_table(checks: Sequence[Check]) -> Table:
    table = _table("Three detectors")
    for name in ("detector", "check", "value", "allowed", "verdict"):
        table.add_column(name, justify="right" if name in ("value", "allowed") else "left")
    for check in checks:
        unit = "p " if check.detector == "noise" else ""
        verdict = "[green]ok[/green]" if check.passed else "[bold red]FAULT[/bold red]"
        sign = "<=" if check.relation == "at most" else ">="
        what = check.what if check.passed or not check.where else f"{check.what} ({check.where})"
        table.add_row(check.detector, what, f"{unit}{check.value:.4g}", f"{sign} {check.limit:.4g}", verdict)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def _epsilon_table(canaries: CanaryAudit) -> Table:
    table = _table(f"Epsilon at delta = {canaries.delta:g}, first {canaries.steps} steps")
    for name in ("quantity", "epsilon", "what it is"):
        table.add_column(name, justify="right" if name == "epsilon" else "left")
    certainty = "a proof, as every record is in every batch" if canaries.certified else "a fault detector, as q < 1"
    table.add_row("claimed", f"{canaries.claimed:.4g}", "upper bound, from the audited site's own ledger")
    table.add_row(
        f"at least ({CONFIDENCE:.0%})",
        f"{canaries.gaussian_bound:.4g}",
        f"canaries, Gaussian trade-off with Clopper-Pearson limits: {certainty}",
    )
    table.add_row(
        f"at least ({CONFIDENCE:.0%})",
        f"{canaries.one_run_bound:.4g}",
        "canaries, one-run bound: holds for any mechanism, loose",
    )
    return table


def _json(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return "inf" if math.isinf(value) else value
