"""A full round at a site on made-up records: its policy decides, a throw-away ledger pays, and nothing is sent."""

import tempfile
import time
from collections.abc import Iterator
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
from fl_dpbayes.hospital.findings import Finding, failed, passed, show, warned
from fl_dpbayes.hospital.init_site import own_scenario
from fl_dpbayes.hospital.planned_requests import planned_requests
from fl_dpbayes.hospital.second_run import second_run
from fl_dpbayes.privacy import unit_scores
from fl_dpbayes.protocol import Arrays, Refusal, RefusalCode, TrainReply, read_header
from fl_dpbayes.report import rounded_up, sentences
from fl_dpbayes.samplers import record_by_record_warnings

MOST_UNITS = 5000


def dry_run(path: Path, given: str, console: Console) -> int:
    """Let a site answer the first round of a coordinator's scenario, on made-up records of its schema.

    Records, snapshot and ledger are not opened. What the steward has not approved is tried as if it
    were, and told; so is what a second run of the same plan would cost. Returns the exit status: 1
    if a request was refused. Raises UserError if site file or scenario cannot be used.
    """
    own = read_own_site_file(path)
    if own.ledger is None:
        raise UserError(f"site file {path}: a site with a ledger can try a round, this has none")
    scenario = own_scenario(given, own, path)
    requests = planned_requests(scenario, own)
    with tempfile.TemporaryDirectory(prefix="fl-dpbayes-") as made:
        made_up = _made_up_site(own, path, Path(made))
        found = [_asked(made_up, kind, *asked) for kind, asked in requests.items()]
        waiting = _waiting(waiting_plans(own, path, requests), path, given)
        status = show([*found, *waiting], console)
    if own.role == "train":
        show(
            [second_run(scenario, own.units, own.ledger.epsilon, own.ledger.planned_runs)], console
        )
    slow = record_by_record_warnings(scenario.model, own.source.task)
    show([warned("model", said) for said in sentences(slow)], console)
    console.print("on made-up records; your ledger and your records were not touched", markup=False)
    return status


def _made_up_site(own: SiteFile, path: Path, folder: Path) -> Path:
    """Write a site like this one, of as many made-up units, and its ledger.

    Return its site file.
    """
    units, generator = min(own.units, MOST_UNITS), np.random.default_rng(0)
    # Without a column of patients a row's number is its unit's name.
    unnamed = isinstance(own.source, Table) and own.source.unit_column is None
    names: list[str | int] = [
        number if unnamed else f"unit-{number}" for number in range(20 * units + 100)
    ]
    kept = (
        own.split.test_fraction + own.split.recalibration_fraction if own.role == "train" else 0.0
    )
    trains = unit_scores(names, bytes.fromhex(own.split.key)) >= kept
    names = names[: int(np.searchsorted(np.cumsum(trains), units)) + 1]
    assert own.ledger is not None
    ledger = own.ledger.model_copy(
        update={"path": folder / "ledger" / "l", "witness": folder / "witness" / "w"}
    )
    policy = own.policy.model_copy(update={"approved_plans": None})
    changes = {
        "source": _made_up_records(own, names, folder, generator),
        "units": units,
        "ledger": ledger,
        "policy": policy,
        "selection": Selection(),
        "shift": None,
        "snapshot": None,
        "connection": None,
        "trace_folder": None,
        "cache_folder": folder / "cache",
    }
    write_site_file(file := own.model_copy(update=changes), folder / path.name)
    create_ledger(file).close()
    return folder / path.name


def _made_up_records(
    own: SiteFile, names: list[str | int], folder: Path, generator: np.random.Generator
) -> Source:
    source, task, count = own.source, own.source.task, len(names)
    labels = generator.integers(0, task.classes, count)
    if not isinstance(source, Table):
        features = generator.random((count, *task.input_shape), np.float32)
        np.savez(folder / "records.npz", features=features, labels=labels, units=np.array(names))
        return ArraysSource(
            path=folder / "records.npz", input_shape=task.input_shape, classes=task.classes
        )
    values = generator.standard_normal((count, len(source.features))) * (source.scales or 1.0) + (
        source.centers or 0.0
    )
    table = pandas.DataFrame(values, columns=list(source.features))
    for name, texts in source.categories.items():
        table[name] = generator.choice(texts, count)
    table[source.label] = np.array(source.class_names)[labels] if source.class_names else labels
    for name in filter(None, (*source.group_columns, source.site_column)):
        table[name] = table.get(name, "made-up")
    if source.unit_column is not None:
        table[source.unit_column] = names
    table.to_csv(folder / "records.csv", index=False)
    return source.model_copy(update={"path": folder / "records.csv"})


def _asked(site_file: Path, kind: str, request: Message | None, arrays: Arrays) -> Finding:
    start = time.perf_counter()
    content = answer_of(site_file, kind, request, arrays).content
    config, took = content.config_records["config"], f"{time.perf_counter() - start:.1f} s"
    if "refusal" in config:
        refusal = read_header(Refusal, config["refusal"])
        if refusal.code is RefusalCode.NOT_SENT:
            return passed(kind, "nothing would be sent: policy.evaluation_release is 'none'")
        return failed(
            kind,
            f"refused, {refusal.describe()}",
            "agree with the coordinator, or change the site file",
        )
    # As the audit log counts them: the numbers alone, without what Flower puts around them.
    size = sum(
        array.numpy().nbytes
        for record in content.array_records.values()
        for array in record.values()
    )
    said = f"answered in {took}, {size:,} bytes of arrays would be sent"
    if kind == "train":
        reply = read_header(TrainReply, config["record"])
        numbers = (reply.privacy.epsilon, reply.privacy.budget)
        cost, budget = ("infinite" if number is None else rounded_up(number) for number in numbers)
        said += f"; {reply.steps} steps, epsilon {cost} of {budget}"
    return passed(kind, said)


def _waiting(kinds: list[str], path: Path, given: str) -> Iterator[Finding]:
    if kinds:
        remedy = f"read and approve them:  fl-dpbayes site approve {path} --scenario {given}"
        yield warned(
            "plans", f"not approved yet, so refused until they are: {', '.join(kinds)}", remedy
        )
