"""A full round at a site on made-up records.

The site's policy decides, a throw-away ledger pays, and nothing is sent.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import pandas
from rich.console import Console

from fl_dpbayes.audit.canary_site import answer_of
from fl_dpbayes.config import Arrays as ArraysSource
from fl_dpbayes.config import (
    Selection,
    SiteFile,
    Source,
    Table,
    read_own_site_file,
    write_site_file,
)
from fl_dpbayes.data import create_ledger
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Message
from fl_dpbayes.hospital.approve import waiting_plans
from fl_dpbayes.hospital.findings import Finding, failed, passed, say, show, warned
from fl_dpbayes.hospital.init_site import own_scenario
from fl_dpbayes.hospital.planned_requests import planned_requests
from fl_dpbayes.hospital.second_run import second_run
from fl_dpbayes.privacy import parts_of_units
from fl_dpbayes.protocol import Arrays, Refusal, RefusalCode, TrainReply, read_header
from fl_dpbayes.report import rounded_up

MOST_UNITS = 5000


def dry_run(path: Path, scenario_name: str, console: Console) -> int:
    """Let a site answer the first round of a coordinator's scenario, on made-up records.

    Records, snapshot and ledger are not opened. What the steward has not approved is tried as if it
    were, and told; so is what a second run of the same plan would cost.

    Args:
        path: The site file.
        scenario_name: The coordinator's scenario file.
        console: Where it is told.

    Returns:
        The exit status: 1 if a request was refused.

    Raises:
        UserError: If site file or scenario cannot be used.
    """
    site = read_own_site_file(path)
    if site.ledger is None:
        raise UserError(f"site file {path}: a site with a ledger can try a round, this has none")
    scenario = own_scenario(scenario_name, site, path)
    requests = planned_requests(scenario, site)
    with tempfile.TemporaryDirectory(prefix="fl-dpbayes-") as folder:
        made_up_site = _write_made_up_site(site, path.name, Path(folder))
        findings = [
            _try_request(site_file=made_up_site, kind=kind, request=request, arrays=arrays)
            for kind, (request, arrays) in requests.items()
        ]
        unapproved_kinds = waiting_plans(site, path, requests)
        if unapproved_kinds:
            findings.append(_approval_finding(unapproved_kinds, path, scenario_name))
        status = show(findings, console)
    if site.role == "train":
        cost = second_run(
            scenario=scenario,
            units=site.units,
            epsilon=site.ledger.epsilon,
            planned_runs=site.ledger.planned_runs,
        )
        show([cost], console)
    say(console, "on made-up records; your ledger and your records were not touched")
    return status


def _write_made_up_site(site: SiteFile, file_name: str, folder: Path) -> Path:
    """Write a site like this one, of as many made-up units, and its ledger; return its file."""
    assert site.ledger is not None
    units = min(site.units, MOST_UNITS)
    names = _unit_names(site, units)
    source = _write_made_up_records(site, names, folder)
    changes = {
        "source": source,
        "units": units,
        "ledger": site.ledger.model_copy(
            update={"path": folder / "ledger" / "l", "witness": folder / "witness" / "w"}
        ),
        "policy": site.policy.model_copy(update={"approved_plans": None}),
        "selection": Selection(),
        "shift": None,
        "snapshot": None,
        "connection": None,
        "trace_folder": None,
        "cache_folder": folder / "cache",
    }
    made_up_site = site.model_copy(update=changes)
    write_site_file(made_up_site, folder / file_name)
    create_ledger(made_up_site).close()
    return folder / file_name


def _unit_names(site: SiteFile, units: int) -> list[str | int]:
    """Name so many units that, under the site's split, `units` of them train or are tested."""
    # Without a column of patients a row's number is its unit's name.
    is_unnamed = isinstance(site.source, Table) and site.source.unit_column is None
    names: list[str | int] = [
        number if is_unnamed else f"unit-{number}" for number in range(20 * units + 100)
    ]
    is_used = np.ones(len(names), dtype=bool)
    if site.role == "train":
        split = site.split
        parts = parts_of_units(names, split.key, split.test_fraction, split.recalibration_fraction)
        is_used = parts == "train"
    last_position = int(np.searchsorted(np.cumsum(is_used), units))
    return names[: last_position + 1]


def _write_made_up_records(site: SiteFile, names: list[str | int], folder: Path) -> Source:
    """Write a record of each unit, of the site's schema, and return their source."""
    source = site.source
    task = source.task
    generator = np.random.default_rng(0)
    labels = task.outcome.made_up(generator, len(names))
    if isinstance(source, Table):
        return _write_made_up_table(source, names, labels, folder, generator)
    path = folder / "records.npz"
    features = generator.random((len(names), *task.input_shape), np.float32)
    np.savez(path, features=features, labels=labels, units=np.array(names))
    return ArraysSource(path=path, input_shape=task.input_shape, **task.outcome.source_keys)


def _write_made_up_table(
    source: Table,
    names: list[str | int],
    labels: np.ndarray,
    folder: Path,
    generator: np.random.Generator,
) -> Table:
    standard_values = generator.standard_normal((len(names), len(source.features)))
    values = standard_values * (source.scales or 1.0) + (source.centers or 0.0)
    table = pandas.DataFrame(values, columns=list(source.features))
    for name, zero in source.days_since.items():
        table[name] = pandas.Timestamp(zero) + pandas.to_timedelta(table[name].round(), unit="D")
    for name in source.categories:
        table[name] = generator.choice(source.values_of(name), len(names))
    table[source.label] = np.array(source.class_names)[labels] if source.class_names else labels
    for text_column in (*source.group_columns, source.site_column):
        if text_column:
            table[text_column] = table.get(text_column, "made-up")
    if source.unit_column is not None:
        table[source.unit_column] = names
    path = folder / "records.csv"
    table.to_csv(path, index=False)
    return source.model_copy(update={"path": path})


def _try_request(site_file: Path, kind: str, request: Message | None, arrays: Arrays) -> Finding:
    """Let the made-up site answer a request, and say what it answered."""
    start = time.perf_counter()
    content = answer_of(site_file, kind, request, arrays).content
    seconds = time.perf_counter() - start
    config = content.config_records["config"]
    if "refusal" in config:
        return _refusal_finding(kind, read_header(Refusal, config["refusal"]))
    # As the audit log counts them: the numbers alone, without what Flower puts around them.
    size = sum(
        array.numpy().nbytes
        for record in content.array_records.values()
        for array in record.values()
    )
    message = f"answered in {seconds:.1f} s, {size:,} bytes of arrays would be sent"
    if kind == "train":
        message += f"; {_cost_text(read_header(TrainReply, config['record']))}"
    return passed(kind, message)


def _refusal_finding(kind: str, refusal: Refusal) -> Finding:
    if refusal.code is RefusalCode.NOT_SENT:
        return passed(kind, "nothing would be sent: policy.evaluation_release is 'none'")
    return failed(
        kind,
        f"refused, {refusal.describe()}",
        "agree with the coordinator, or change the site file",
    )


def _cost_text(reply: TrainReply) -> str:
    epsilon = _epsilon_text(reply.privacy.epsilon)
    budget = _epsilon_text(reply.privacy.budget)
    return f"{reply.steps} steps, epsilon {epsilon} of {budget}"


def _epsilon_text(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else rounded_up(epsilon)


def _approval_finding(kinds: list[str], path: Path, scenario_name: str) -> Finding:
    return warned(
        "plans",
        f"not approved yet, so refused until they are: {', '.join(kinds)}",
        f"read and approve them:  fl-dpbayes site approve {path} --scenario {scenario_name}",
    )
