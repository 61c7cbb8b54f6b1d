"""A hospital of made-up records, and messages to its app: the audit is in a server's place."""

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
    Targets,
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
# Part of a parted site -> keyed scores [low, high) of the units that belong to it.
PARTS = {"test": (0.0, 0.3), "recalibration": (0.3, 0.6), "training": (0.6, 1.0)}


@dataclass(frozen=True)
class CanaryRecords:
    """Made-up records.

    Attributes:
        task: Their shape and classes.
        features: Shape (N, *shape), float32 or uint8 grey levels.
        labels: Shape (N,).
        units: Name of each record's privacy unit, N of them; None if each record is a unit.
    """

    task: Task
    features: npt.NDArray
    labels: Targets
    units: Sequence[str] | None = None

    @property
    def unit_names(self) -> list[str]:
        """The name of each record's privacy unit."""
        if self.units is None:
            return [f"unit-{number}" for number in range(len(self.labels))]
        return list(self.units)


@dataclass(frozen=True)
class CanarySite:
    """A made-up site.

    Attributes:
        path: Of its file.
        file: The content.
    """

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
    """Write a hospital's records, its file and its ledger.

    Args:
        folder: To be made; its name is the site's.
        scenario: Whose adjacency, code, resources and seed it has.
        records: That it holds.
        units: n that it declares, within 20 % of what it holds.
        delta: Of the ledger.
        policy: None for one that allows everything.
        split: Of its units; None are kept from training by default.

    Returns:
        The site, its ledger empty.
    """
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
    archive = folder / "records.npz"
    np.savez(
        archive,
        features=records.features,
        labels=records.labels,
        units=np.array(records.unit_names),
    )
    source = sources.Arrays(
        path=archive, input_shape=records.task.input_shape, **records.task.outcome.source_keys
    )
    if policy is None:
        policy = willing()
    file = SiteFile(
        name=folder.name,
        role="train",
        source=source,
        units=units,
        ledger=ledger,
        split=split,
        policy=policy.model_copy(update={"allowed_code": scenario.named_code}),
        device=scenario.resources.device,
        threads=scenario.resources.threads_per_site,
        insecure_seed=scenario.simulation.insecure_seed,
    )
    path = folder / "site.toml"
    write_site_file(file, path)
    create_ledger(file).close()
    return CanarySite(path, file)


def willing(**changes: object) -> Policy:
    """Return a policy that allows whatever the scenario asks for.

    Args:
        **changes: Fields of the policy that are other than that.

    Returns:
        The policy of a site without patients.
    """
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


def write_parted_site(
    folder: Path,
    scenario: Scenario,
    records: CanaryRecords,
    units: int,
    *,
    delta: float,
    **policy: object,
) -> CanarySite:
    """Write a site that has each of PARTS and releases noised evaluations.

    Args:
        folder: To be made.
        scenario: As of `write_canary_site`.
        records: That it holds, of units that `names_by_part` gives.
        units: n that it declares for each part.
        delta: Of the ledger.
        **policy: Further fields of its policy.

    Returns:
        The site, its ledger empty.
    """
    noised = {"evaluation_release": "noised", "min_evaluation_noise_multiplier": 0.1}
    return write_canary_site(
        folder,
        scenario,
        records,
        units,
        delta=delta,
        policy=willing(**noised, **policy),
        split=Split(test_fraction=0.3, recalibration_fraction=0.3, key=KEY),
    )


def names_by_part(count: int) -> dict[str, list[str]]:
    """Find names of units that the split of a parted site puts into each part.

    Args:
        count: Names of each part.

    Returns:
        Part -> names.
    """
    names = np.array([f"unit-{number}" for number in range(20 * count * len(PARTS))])
    scores = unit_scores(names.tolist(), bytes.fromhex(KEY))
    return {
        part: names[(low <= scores) & (scores < high)][:count].tolist()
        for part, (low, high) in PARTS.items()
    }


def with_public_evaluations(site: CanarySite) -> CanarySite:
    """Write a second file of a site, which lets exact sums of test records out.

    Args:
        site: Of any policy.

    Returns:
        The same site with that file.
    """
    policy = site.file.policy.model_copy(update={"evaluation_release": "public"})
    file = site.file.model_copy(update={"policy": policy})
    path = site.path.with_name("public.toml")
    write_site_file(file, path)
    return CanarySite(path, file)


def ask(
    site: CanarySite, message_type: str, request: Message, arrays: Arrays, reply: type[MessageT]
) -> tuple[MessageT, Arrays]:
    """Send a site's app the message of a server.

    Args:
        site: That is asked.
        message_type: Flower's name of the handler.
        request: What is asked.
        arrays: Sent with it.
        reply: Type of the reply.

    Returns:
        The reply and its arrays.

    Raises:
        UserError: If the site refuses.
    """
    answer = answer_of(site.path, message_type, request, arrays)
    config = answer.content.config_records["config"]
    if "refusal" in config:
        raise UserError(
            f"the audited site {site.file.name!r} did not {message_type}: {config['refusal']!s}"
        )
    record = answer.content.array_records.get("arrays", ArrayRecord())
    received = {name: array.numpy() for name, array in record.items()}
    return read_header(reply, config["record"]), received


def answer_of(
    site_file: Path, message_type: str, request: Message | None, arrays: Arrays
) -> FlowerMessage:
    """Send a site's app, in this process, what a server would send.

    Args:
        site_file: Path of the site's file.
        message_type: Flower's name of the handler.
        request: None for a query.
        arrays: Sent with it.

    Returns:
        The message that a server would get.
    """
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
        # A reply names the message that it answers, and the audit of replies looks for this name.
        message.metadata.__dict__["_message_id"] = "audit"
        context = Context(
            run_id=1,
            node_id=1,
            node_config={"site-file": str(site_file)},
            state=RecordDict(),
            run_config={},
        )
        return app(message, context)
