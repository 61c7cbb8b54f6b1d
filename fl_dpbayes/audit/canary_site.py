"""A hospital of made-up records, and messages to the app that it runs: the audit stands where a server stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage

from fl_dpbayes.config import (
    LedgerSettings,
    Policy,
    Scenario,
    SiteFile,
    Split,
    Task,
    sources,
    write_site_file,
)
from fl_dpbayes.data import create_ledger
from fl_dpbayes.engine.inline_engine import task_identity
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Message
from fl_dpbayes.privacy import unit_scores
from fl_dpbayes.protocol import Arrays, MessageT, read_header

DELTA = 1e-6
# What the audit asks for may cost anything: no patient is behind a made-up record.
UNLIMITED = 1e12
KEY = "0" * 32
# No unit is kept from training.
WHOLE = Split(test_fraction=0.0, key=KEY)


@dataclass(frozen=True)
class CanaryRecords:
    """Features (N, *shape), float32 or uint8 grey levels; labels (N,).

    And the name of each record's privacy unit.
    """

    task: Task
    features: npt.NDArray
    labels: npt.NDArray[np.int64]
    units: Sequence[str]


@dataclass(frozen=True)
class CanarySite:
    """A site, known by the path and content of its file."""

    path: Path
    file: SiteFile

    @property
    def task(self) -> Task:
        """The task of its records."""
        return self.file.source.task


def write_canary_site(
    folder: Path,
    scenario: Scenario,
    records: CanaryRecords,
    units: int,
    *,
    delta: float = DELTA,
    policy: Policy | None = None,
    split: Split = WHOLE,
) -> CanarySite:
    """Write records, a hospital's file of n = `units` (within 20 %), `policy` or the scenario's, and its ledger."""
    folder.mkdir(parents=True)
    ledger = LedgerSettings(
        path=folder / "ledger.sqlite",
        witness=folder / "witness" / "ledger.json",
        cohort="audit",
        epsilon=UNLIMITED,
        delta=delta,
        adjacency=scenario.privacy.adjacency,
        durability="normal",
    )
    allowing, archive = (
        (policy or willing()).model_copy(update={"allowed_code": scenario.named_code}),
        "records.npz",
    )
    np.savez(
        folder / archive,
        features=records.features,
        labels=records.labels,
        units=np.array(records.units),
    )
    source = sources.Arrays(
        path=folder / archive, **records.task.model_dump(include={"input_shape", "classes"})
    )
    file = SiteFile(
        name=folder.name,
        role="train",
        source=source,
        units=units,
        ledger=ledger,
        split=split,
        policy=allowing,
        device=scenario.resources.device,
        threads=scenario.resources.threads_per_site,
        insecure_seed=scenario.simulation.insecure_seed,
    )
    path = folder / "site.toml"
    write_site_file(file, path)
    create_ledger(file).close()
    return CanarySite(path, file)


def willing(**changes: object) -> Policy:
    """Return a policy that allows whatever the scenario asks for, with changes."""
    policy = Policy(
        max_run_epsilon=UNLIMITED,
        max_clip_norm=UNLIMITED,
        max_steps=10**6,
        max_samples=10**6,
        allow_downloads=True,
        max_evaluations_per_run="unlimited",
        max_evaluations="unlimited",
    )
    return policy.model_copy(update=changes)


def unit_names(shares: dict[str, tuple[float, float]], count: int) -> dict[str, list[str]]:
    """Find so many names of units for each part, given the range [low, high) of keyed scores that belong to it."""
    names = np.array([f"unit-{number}" for number in range(20 * count * len(shares))])
    scores = unit_scores(names.tolist(), bytes.fromhex(KEY))
    return {
        part: names[(low <= scores) & (scores < high)][:count].tolist()
        for part, (low, high) in shares.items()
    }


def ask(
    site: CanarySite, message_type: str, request: Message, arrays: Arrays, reply: type[MessageT]
) -> tuple[MessageT, Arrays]:
    """Send a site's app the message of a server, by Flower's name of its handler.

    UserError if the site refuses.
    """
    answer = answer_of(site.path, message_type, request, arrays)
    config = answer.content.config_records["config"]
    if "refusal" in config:
        raise UserError(
            f"the audited site {site.file.name!r} did not {message_type}: {config['refusal']!s}"
        )
    received = answer.content.array_records.get("arrays", ArrayRecord())
    return read_header(reply, config["record"]), {
        name: array.numpy() for name, array in received.items()
    }


def answer_of(
    site_file: Path, message_type: str, request: Message | None, arrays: Arrays
) -> FlowerMessage:
    """Send a site's app, in this process, what a server would send; return what it would get."""
    from clients.app import app
    from server.messages import encoded, request_message

    with task_identity():
        message = request_message(
            request,
            encoded(dict(arrays)),
            node_id=1,
            message_type=message_type,
            round_number=1,
            time_to_live=3600.0,
            simulation_folder="",
        )
        message.metadata.__dict__["_message_id"] = "audit"
        return app(
            message, Context(1, 1, {"site-file": str(site_file)}, state=RecordDict(), run_config={})
        )
