"""The work behind `fl-dpbayes audit`: attack the app that sites run and hold it to its claims."""

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fl_dpbayes.audit.canaries import CONFIDENCE, CanaryAudit, audit_canaries
from fl_dpbayes.audit.counts import audit_counts
from fl_dpbayes.audit.noise import audit_noise
from fl_dpbayes.audit.one_unit import audit_one_unit
from fl_dpbayes.audit.own_releases import audit_own_releases
from fl_dpbayes.audit.plans import private_settings
from fl_dpbayes.audit.replies import audit_replies
from fl_dpbayes.audit.rounding import audit_rounding
from fl_dpbayes.audit.sums import audit_sums
from fl_dpbayes.audit.unseen import not_looked_at
from fl_dpbayes.audit.within import audit_within
from fl_dpbayes.config import Scenario, import_apps
from fl_dpbayes.data import plan_sites
from fl_dpbayes.engine.inline_engine import logs_in
from fl_dpbayes.files import json_values
from fl_dpbayes.privacy.audit_statistics import Check
from fl_dpbayes.report.terminal_table import terminal_table

ATTACKS: dict[str, Callable[[Scenario, Path, np.random.Generator], list[Check]]] = {
    "within": audit_within,
    "sums": audit_sums,
    "alone": audit_one_unit,
    "counts": audit_counts,
    "own": audit_own_releases,
    "replies": audit_replies,
}


def audit_scenario(
    scenario: Scenario, console: Console, *, data_dir: Path | None = None, as_json: bool = False
) -> int:
    """Audit the private training of a scenario and print the verdicts.

    A scenario with `simulation.insecure_seed` is audited repeatably, any other with the operating
    system's entropy.

    Args:
        scenario: To be audited.
        console: To print on.
        data_dir: Of the scenario's data; None for the usual one.
        as_json: Whether to print JSON on standard output.

    Returns:
        Exit status: 1 if a check failed, else 0.

    Raises:
        UserError: If data are missing, or a site does not train.
    """
    import_apps()
    private_settings(scenario)
    torch.set_num_threads(scenario.resources.threads_per_site)
    progress = nullcontext() if as_json else console.status("auditing")
    with tempfile.TemporaryDirectory(prefix="fl-dpbayes-audit-") as folder, progress:
        checks, canaries = run_audit(scenario, Path(folder), data_dir)
    if as_json:
        print(audit_json(scenario, checks, canaries))
    else:
        print_audit(console, scenario, checks, canaries)
    return 0 if all(check.passed for check in checks) else 1


def run_audit(
    scenario: Scenario, folder: Path, data_dir: Path | None
) -> tuple[list[Check], CanaryAudit]:
    """Attack every part of the mechanism.

    Args:
        scenario: To be audited.
        folder: For the sites to write into.
        data_dir: Of the scenario's data; None for the usual one.

    Returns:
        All checks, and what the canaries say.

    Raises:
        UserError: If data are missing, or a site does not train.
    """
    # Records, start states and coins of the audit; a seeded scenario gives a repeatable audit.
    generator = np.random.default_rng(scenario.simulation.insecure_seed)
    sites = plan_sites(scenario, data_dir).sites
    units = min(site.train_units for site in sites if site.spec.role == "train")
    with logs_in(folder / "audit.log"):
        checks = audit_noise(scenario, folder / "noise", units, generator)
        for part, attack in ATTACKS.items():
            checks += attack(scenario, folder / part, generator)
        checks += audit_rounding(scenario)
        canaries = audit_canaries(scenario, folder / "epsilon", generator)
    return [*checks, *canaries.checks], canaries


def audit_json(scenario: Scenario, checks: Sequence[Check], canaries: CanaryAudit) -> str:
    """Write an audit as JSON.

    Args:
        scenario: That was audited.
        checks: All of them.
        canaries: What they say.

    Returns:
        One line.
    """
    fields = {
        "passed": all(check.passed for check in checks),
        "checks": [asdict(check) | {"passed": check.passed} for check in checks],
        "epsilon": asdict(canaries) | {"confidence": CONFIDENCE},
        "not_looked_at": not_looked_at(scenario),
    }
    return json.dumps(json_values(fields))


def print_audit(
    console: Console, scenario: Scenario, checks: Sequence[Check], canaries: CanaryAudit
) -> None:
    """Print what was attacked, every check, and epsilon claimed and observed.

    Args:
        console: To print on.
        scenario: That was audited.
        checks: All of them.
        canaries: What they say.
    """
    kinds = (
        f"{scenario.sampler.kind}, {private_settings(scenario).clipping.kind} clipping, model "
        f"{scenario.model.kind}"
    )
    console.print(
        f"Audit of {scenario.name}: messages to clients.app, the app that a site runs, at "
        "sites of made-up records; "
        f"the auditor reads what they release. Sampler {kinds}, chains and sampling rate are "
        "the scenario's; units "
        "have 1 and 3 records.",
        markup=False,
    )
    console.print(_check_table(checks))
    console.print(_epsilon_text(canaries), markup=False)
    subjects = "\n".join(f"- {subject}" for subject in not_looked_at(scenario))
    console.print(f"Not looked at:\n{subjects}", markup=False)
    failed = sum(not check.passed for check in checks)
    if failed:
        console.print(
            f"FAILED: {failed} of {len(checks)} checks. Do not release from this code.",
            style="bold red",
        )
    else:
        console.print(f"passed: all {len(checks)} checks", style="green")


def _epsilon_text(canaries: CanaryAudit) -> str:
    certainty = (
        "a proof, as every record is in every batch"
        if canaries.certified
        else "a fault detector, as q < 1"
    )
    return (
        f"Epsilon at delta = {canaries.delta:g}, first {canaries.steps} steps: claimed "
        f"{canaries.claimed:.4g}, by the audited site's own ledger; "
        f"at least ({CONFIDENCE:.3%}) {canaries.gaussian_bound:.4g} by a Gaussian trade-off "
        f"with Clopper-Pearson limits ({certainty}) "
        f"and {canaries.one_run_bound:.4g} by the one-run bound, which holds "
        "for any mechanism and is loose."
    )


def _check_table(checks: Sequence[Check]) -> Table:
    table = terminal_table("Checks")
    for name in ("part", "check", "value", "allowed", "verdict", "finds, but for 1 in 1000"):
        table.add_column(name, justify="right" if name in ("value", "allowed") else "left")
    for check in checks:
        # The value of a test is its probability, which must not fall below a limit.
        if check.relation == "at least":
            value = f"p {check.value:.3g}"
            limit = f">= {check.limit:.2g}"
        else:
            value = f"{check.value:.3g}"
            limit = f"<= {check.limit:.2g}"
        verdict = "[green]ok[/green]" if check.passed else "[bold red]FAULT[/bold red]"
        what = check.what
        if check.where and not check.passed:
            what = f"{check.what} ({check.where})"
        table.add_row(check.part, what, value, limit, verdict, check.finds)
    return table
