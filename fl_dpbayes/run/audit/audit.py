"""The work behind `fl-dpbayes audit`: attack the app that sites run, and compare with what they claim."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.data.simulation import plan_sites
from fl_dpbayes.privacy.audit_statistics import Check
from fl_dpbayes.run.audit.canaries import audit_canaries
from fl_dpbayes.run.audit.counts import audit_counts
from fl_dpbayes.run.audit.membership import attack_membership
from fl_dpbayes.run.audit.noise import audit_noise
from fl_dpbayes.run.audit.one_unit import audit_alone, audit_rounding
from fl_dpbayes.run.audit.reading import private_settings
from fl_dpbayes.run.audit.report import Audit, audit_json, print_audit
from fl_dpbayes.run.audit.sums import audit_sums
from fl_dpbayes.run.inline_engine import logs_in

PARTS = 6


def audit_scenario(scenario: Scenario, console: Console, *, data_dir: Path | None = None, as_json: bool = False) -> int:
    """Audit the private training of a scenario and print what was found.

    The auditor sends messages to the app that a site runs, at sites of made-up records, and reads what comes back. A
    scenario with `simulation.insecure_seed` is audited repeatably, any other with the operating system's entropy.

    Returns exit status: 0 if every check passed, 1 if not. Raises UserError if data are missing, or a site does not
    train.
    """
    private_settings(scenario)
    torch.set_num_threads(scenario.resources.threads_per_site)
    with (
        tempfile.TemporaryDirectory(prefix="fl-dpbayes-audit-") as folder,
        _progress(console, scenario, as_json) as done,
    ):
        audit = run_audit(scenario, Path(folder), data_dir, done)
    if as_json:
        print(json.dumps(audit_json(scenario, audit)))
    else:
        print_audit(console, scenario, audit)
    return 0 if audit.passed else 1


def run_audit(scenario: Scenario, folder: Path, data_dir: Path | None, on_part: Callable[[], None]) -> Audit:
    """Attack every part of the mechanism, and the released posterior, in sites that write into `folder`.

    `on_part` is called after each part and after each round of the membership attack.
    """
    # Records, start states and coins of the audit; a seeded scenario gives a repeatable audit.
    generator = np.random.default_rng(scenario.simulation.insecure_seed)
    planned = plan_sites(scenario, data_dir)
    units = min(site.train_units for site in planned.sites if site.spec.role == "train")
    checks: list[Check] = []
    with logs_in(folder / "audit.log"):
        for attacked in (
            lambda: audit_noise(scenario, folder / "noise", units),
            lambda: audit_sums(scenario, folder / "sums", generator),
            lambda: audit_alone(scenario, folder / "alone", generator),
            lambda: audit_counts(scenario, folder / "counts", generator),
            lambda: audit_rounding(scenario),
        ):
            checks += attacked()
            on_part()
        canaries = audit_canaries(scenario, folder / "epsilon", generator)
        on_part()
        membership = attack_membership(scenario, planned, folder / "membership", on_part)
    return Audit((*checks, *canaries.checks), canaries, membership)


@contextmanager
def _progress(console: Console, scenario: Scenario, hidden: bool) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("auditing"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("audit", total=PARTS + scenario.training.rounds * scenario.training.chains)
        yield lambda: progress.advance(task)
