"""A hospital of made-up records, and messages to the app that it runs: the audit stands where a server stands."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage
from PIL import Image

from fl_dpbayes.config.base import Message
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.site_file import LedgerSettings, Policy, SiteFile, Split, write_site_file
from fl_dpbayes.config.sources import HuggingFace, Source, Table
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.site_ledger import create_ledger
from fl_dpbayes.privacy.splits import unit_scores
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.protocol.wire import MessageT, read_header
from fl_dpbayes.run.inline_engine import task_identity

GREY_LEVELS = 255.0
DELTA = 1e-6
# What the audit asks for may cost anything: no patient is behind a made-up record.
UNLIMITED = 1e12
KEY = "0" * 32
# Beyond so many numbers a row of a table takes longer to read than a picture.
MOST_COLUMNS = 256


@dataclass(frozen=True)
class CanaryRecords:
    """Records of a canary site.

    `levels`: whole numbers 0 to 255, shape (N, *shape). `labels`: shape (N,). `units`: name of each record's privacy
    unit, N texts. `scale`: what levels are divided by; 255 where the records are images.
    """

    task: Task
    levels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    units: Sequence[str]
    scale: float = GREY_LEVELS


@dataclass(frozen=True)
class CanarySite:
    """A site, known by the path and content of its file, and the task of its records."""

    path: Path
    file: SiteFile
    task: Task


def canary_task(scenario: Scenario) -> Task:
    """Return the task of the audited sites: the scenario's, its records flattened where the model flattens them."""
    task, model = scenario.data.source.task, scenario.model
    flattens = model.kind in ("logistic", "mlp") and model.features is None and model.frozen_body is None
    size = math.prod(task.input_shape)
    return task.model_copy(update={"input_shape": (size,)}) if flattens and size <= MOST_COLUMNS else task


def write_canary_site(
    folder: Path, scenario: Scenario, records: CanaryRecords, units: int, *, delta: float = DELTA,
    policy: Policy | None = None, split: Split | None = None,
) -> CanarySite:  # fmt: skip
    """Write records as a hospital would hold them, and its site file, and make its ledger.

    `units`: n, the declared number of training units, within 20 % of the real one. `policy`: of the site; None:
    whatever the scenario asks for. `split`: shares of the units for testing and recalibration; None: all train.
    """
    folder.mkdir(parents=True)
    ledger = LedgerSettings(
        path=folder / "ledger.sqlite", witness=folder / "witness" / "ledger.json", cohort="audit", epsilon=UNLIMITED,
        delta=delta, adjacency=scenario.privacy.adjacency, durability="normal",
    )  # fmt: skip
    allowing = (policy or willing()).model_copy(update={"allowed_code": scenario.named_code})
    file = SiteFile(
        name=folder.name, role="train", source=_write_records(folder, records), units=units, ledger=ledger,
        split=split or whole_for_training(), policy=allowing,
        device=scenario.resources.device, threads=scenario.resources.threads_per_site,
        insecure_seed=scenario.simulation.insecure_seed,
    )  # fmt: skip
    path = folder / "site.toml"
    write_site_file(file, path)
    create_ledger(file).close()
    return CanarySite(path, file, records.task)


def willing(**changes: object) -> Policy:
    """Return a policy that allows whatever the scenario asks for, with changes."""
    policy = Policy(max_run_epsilon=UNLIMITED, max_clip_norm=UNLIMITED, max_steps=10**6, allow_downloads=True)
    return policy.model_copy(update=changes)


def whole_for_training() -> Split:
    """Return the split that keeps no unit from training."""
    return Split(test_fraction=0.0, key=KEY)


def unit_names(shares: dict[str, tuple[float, float]], count: int) -> dict[str, list[str]]:
    """Find so many names of units for each part, given the range [low, high) of keyed scores that belong to it."""
    names = [f"unit-{number}" for number in range(20 * count * len(shares))]
    scores = unit_scores(names, bytes.fromhex(KEY))
    return {
        part: [name for name, score in zip(names, scores, strict=True) if low <= score < high][:count]
        for part, (low, high) in shares.items()
    }


def ask(
    site: CanarySite, message_type: str, request: Message, arrays: Arrays, reply: type[MessageT]
) -> tuple[MessageT, Arrays]:
    """Send a site's app the message that a server would send, by Flower's name of its handler.

    Raises UserError if the site refuses.
    """
    answer = answer_of(site.path, message_type, request, arrays)
    config = answer.content.config_records["config"]
    if "refusal" in config:
        raise UserError(f"the audited site {site.file.name!r} did not {message_type}: {config['refusal']!s}")
    received = answer.content.array_records.get("arrays", ArrayRecord())
    return read_header(reply, config["record"]), {name: array.numpy() for name, array in received.items()}


def answer_of(site_file: Path, message_type: str, request: Message | None, arrays: Arrays) -> FlowerMessage:
    """Send a site's app, in this process, what a server would send; return what it would get."""
    from clients.app import app
    from server.messages import encoded, request_message

    with task_identity():
        message = request_message(
            request, encoded(dict(arrays)), node_id=1, message_type=message_type, round_number=1, time_to_live=3600.0,
            simulation_folder="",
        )  # fmt: skip
        message.metadata.__dict__["_message_id"] = "audit"
        return app(message, Context(1, 1, {"site-file": str(site_file)}, state=RecordDict(), run_config={}))


def _write_records(folder: Path, records: CanaryRecords) -> Source:
    task = records.task
    if len(task.input_shape) == 3 and task.input_shape[0] in (1, 3):
        return _write_images(folder / "records", records)
    rows = records.levels.reshape(len(records.labels), -1)
    names = tuple(f"x{column}" for column in range(rows.shape[1]))
    table = pandas.DataFrame(rows, columns=list(names)).assign(label=records.labels, unit=list(records.units))
    table.to_csv(path := folder / "records.csv", index=False)
    scales = (records.scale,) * len(names)
    return Table(path=path, label="label", classes=task.classes, features=names, scales=scales, unit_column="unit")


def _write_images(folder: Path, records: CanaryRecords) -> Source:
    import datasets

    channels, height, width = records.task.input_shape
    kinds = {"image": datasets.Image(), "label": datasets.Value("int64"), "unit": datasets.Value("string")}
    pictures = [{"bytes": _png(pixels), "path": None} for pixels in records.levels]
    columns = {"image": pictures, "label": records.labels.tolist(), "unit": list(records.units)}
    folder.mkdir()
    shown = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        datasets.Dataset.from_dict(columns, features=datasets.Features(kinds)).to_parquet(folder / "train.parquet")
    finally:
        if not shown:
            datasets.enable_progress_bars()
    return HuggingFace(
        path=folder, features="image", label="label", classes=records.task.classes, height=height, width=width,
        channels=1 if channels == 1 else 3, unit_column="unit",
    )  # fmt: skip


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()
