"""A small federation, and a hospital's node, that run in this process."""

import csv
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_dpbayes.config.scenario import Scenario, load_scenario
from fl_dpbayes.config.site_file import SiteFile, read_site_file
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation
from fl_dpbayes.data.site_ledger import create_ledger, ledger_place
from fl_dpbayes.engine.inline_engine import InlineGrid, task_identity
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.privacy.ledger.ledger import Ledger
from fl_dpbayes.privacy.ledger.witness import LedgerPlace
from fl_dpbayes.protocol.arrays import Arrays, prefixed
from fl_dpbayes.protocol.wire import arrays_digest
from tests.asking import SOURCE, record_of

SMALL = [
    "training={rounds=2, steps_per_round=4, burn_in=2, thinning=2}",
    "privacy.coupling=constant",
    "privacy.temperature=",
    "privacy.sampling_rate=1.0",
    "simulation.insecure_seed=5",
]


class WatchedGrid(InlineGrid):
    """Keeps every request and lets a test change or drop a reply."""

    def __init__(self, client_app: ClientApp, nodes: int) -> None:
        super().__init__(client_app, nodes)
        self.requests: list[Message] = []
        self.change: Callable[[Message, Message], Message | None] = lambda request, reply: reply

    def push_messages(self, messages):
        messages = list(messages)
        self.requests += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        requests = {
            message_id: self._waiting[message_id]
            for message_id in message_ids
            if message_id in self._waiting
        }
        replies = super().pull_messages(list(requests))
        changed = [
            self.change(requests[reply.metadata.reply_to_message_id], reply) for reply in replies
        ]
        return [reply for reply in changed if reply is not None]


class Federation:
    """A prepared run directory, its scenario and its grid."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        from clients.app import app

        self.folder, self.scenario = folder, scenario
        prepare_simulation(scenario, plan_sites(scenario, None), folder)
        self.grid = WatchedGrid(app, len(scenario.sites))

    def run(self, grid: Grid | None = None) -> "Federation":
        from server.federation import run_federation

        run_federation(
            grid or self.grid, self.scenario, self.folder, str(self.folder / SITES_FOLDER)
        )
        return self

    def site_of(self, message: Message) -> str:
        return list(self.scenario.sites)[message.metadata.dst_node_id - 1]

    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())

    def warnings(self) -> list[str]:
        return self.summary()["warnings"]

    def rows(self, name: str, **cells: str) -> list[dict[str, str]]:
        """The rows of a table that have these cells."""
        with (self.folder / name).open(newline="") as file:
            return [row for row in csv.DictReader(file) if cells.items() <= row.items()]

    def statuses(self) -> dict[str, list[str]]:
        return {row["site"]: row["statuses"] for row in self.summary()["participation"]}

    def posterior(self) -> PosteriorSamples:
        return load_posterior(self.folder / "posterior.safetensors").samples

    def site_file(self, site: str) -> SiteFile:
        (path,) = (self.folder / SITES_FOLDER).glob(f"*-{site}.toml")
        return read_site_file(path)

    def ledger(self, site: str) -> Ledger:
        settings = self.site_file(site).ledger
        assert settings is not None
        return Ledger.open_existing(ledger_place(settings), settings.cohort)

    def requests(self, kind: str, site: str = "") -> list[Message]:
        """What was asked, of one site or of all."""
        asked = [message for message in self.grid.requests if message.metadata.message_type == kind]
        return [message for message in asked if site in ("", self.site_of(message))]

    def asked(self, kind: str, site: str = "") -> list[dict]:
        """The records of what was asked."""
        return [record_of(message) for message in self.requests(kind, site)]

    def spoil(
        self,
        change: Callable[[Message], Message | None],
        kinds: Collection[str] = ("train",),
        sites: Collection[str] = ("south",),
        rounds: Collection[int] | None = None,
    ) -> None:
        """Let `change` make something else of what these sites answer, in these rounds or in all."""

        def changed(request: Message, reply: Message) -> Message | None:
            asked = request.metadata.message_type in kinds and self.site_of(request) in sites
            return (
                change(reply)
                if asked and (rounds is None or int(request.metadata.group_id) in rounds)
                else reply
            )

        self.grid.change = changed

    def spoil_record(
        self, change: Callable[[dict], object], *arguments: Collection, **which: Collection
    ) -> None:
        """Let `change` alter the record of what sites answer."""

        def changed(reply: Message) -> Message:
            record = record_of(reply)
            change(record)
            reply.content["config"]["record"] = json.dumps(record)
            return reply

        self.spoil(changed, *arguments, **which)

    def silence(
        self, site: str, rounds: Collection[int] | None = None, error: int | None = None
    ) -> None:
        """Let a site not answer when it is asked to train, or an error come in its place."""

        def silent(reply: Message) -> Message | None:
            if error is None:
                return None
            reply.__dict__.update(_content=None, _error=Error(error, "secret"))
            return reply

        self.spoil(silent, sites=(site,), rounds=rounds)


@contextmanager
def federations_in(folder: Path) -> Iterator[Callable[..., Federation]]:
    """Build federations of the sites of `digits` with few steps.

    Few draws behind references, and no waits for disks.

    Drawing figures takes most of such a run's time, so only tests of the report draw them.
    """
    with pytest.MonkeyPatch.context() as patch, task_identity():
        patch.setattr("server.federation.write_report", lambda folder: None)
        patch.setattr("fl_dpbayes.calibration.intervals.REPLICATES", 50)
        patch.setattr("os.fsync", lambda descriptor: None)
        yield lambda *overrides, name="run": Federation(
            folder / name, load_scenario("digits", [*SMALL, *overrides])
        )


class TableSite:
    """A hospital's node: a table of patients with several rows each, a site file, and requests that reach its app."""

    CLASSES, CLIP_NORM, STEP_SIZE = 2, 0.5, 0.25

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "site.toml"

    def write(self, rows: list[tuple[str, float, float, int]], **changes: object) -> None:
        """Write rows (patient, x, y, label) and the site file, and make its ledger where none is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{patient},{x!r},{y!r},{label}" for patient, x, y, label in rows]
        (self.folder / "patients.csv").write_text("\n".join(["patient,x,y,sick", *lines]) + "\n")
        keys: dict[str, object] = {
            "name": "north",
            "role": "train",
            "units": 40,
            "split": {"test_fraction": 0.25, "key": "5e" * 16},
            "source": SOURCE | {"classes": self.CLASSES},
            "ledger": {
                "path": "ledger/north.sqlite",
                "witness": "witness/north.json",
                "cohort": "north 2026",
                "epsilon": 8.0,
                "delta": 1e-3,
                "durability": "normal",
            },
            "policy": {"max_run_epsilon": 4.0, "evaluation_release": "noised"},
            "insecure_seed": 3,
        }
        content = {key: value for key, value in (keys | changes).items() if value is not None}
        self.path.write_text(tomli_w.dumps(content))
        place = content.get("ledger")
        if isinstance(place, dict) and not any(
            (self.folder / place[key]).exists() for key in ("path", "witness")
        ):
            create_ledger(read_site_file(self.path)).close()

    def message(
        self, kind: str, record: dict | None = None, arrays: Arrays | None = None
    ) -> Message:
        """Write a message to the node, as Flower does; a hostile server validates nothing."""
        content = RecordDict(
            {"config": ConfigRecord({} if record is None else {"record": json.dumps(record)})}
        )
        if arrays:
            made = {
                name: sent if isinstance(sent, Array) else Array(sent)
                for name, sent in arrays.items()
            }
            content["arrays"] = ArrayRecord(made)
        message = Message(content, dst_node_id=1, message_type=kind)
        message.metadata.__dict__["_message_id"] = "1"
        return message

    def answer(
        self, kind: str, record: dict | None = None, arrays: Arrays | None = None
    ) -> Message:
        """Send a message to the node."""
        from clients.app import app

        node = {"site-file": str(self.path)}
        context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config={})
        return app(self.message(kind, record, arrays), context)

    def train(self, **changes: object) -> Message:
        """Ask for a round.

        `plan` and `privacy` are changes of the plan and its privacy, `arrays` sent beside.
        """
        extra: Arrays = dict(changes.pop("arrays", {}))  # type: ignore[call-overload]
        plan, privacy, start = (dict(changes.pop(key, {})) for key in ("plan", "privacy", "start"))  # type: ignore[call-overload]
        task, steps = (
            Task(input_shape=(2,), classes=self.CLASSES),
            {"kind": "constant", "initial": self.STEP_SIZE},
        )
        shapes = model_shapes(LogisticModel(), task)
        state = {
            name: np.asarray(start.get(name, np.zeros(shape)), np.float32)
            for name, shape in shapes.items()
        }
        arrays = prefixed("parameters", state)
        content: dict[str, object] = {
            "run": "ab" * 16,
            "round": 1,
            "task": task.model_dump(),
            "model": {"kind": "logistic"},
            "first_step": 0,
            "steps": 1,
            "start": arrays_digest(arrays),
            "plan": {
                "rounds": 8,
                "steps_per_round": 1,
                "burn_in": 0,
                "thinning": 1,
                "chain_start": "broadcast",
                "sampler": {"kind": "dp-sgld", "prior": {"kind": "flat"}, "step_size": steps},
                "privacy": {
                    "epsilon": 4.0,
                    "delta": 1e-3,
                    "sampling_rate": 1.0,
                    "clip_norm": self.CLIP_NORM,
                }
                | privacy,
            }
            | plan,
        }
        return self.answer("train", content | changes, prefixed("start", arrays) | extra)

    def ledger(self) -> Ledger:
        place = LedgerPlace(
            self.folder / "ledger/north.sqlite", self.folder / "witness/north.json", "normal"
        )
        return Ledger.open_existing(place, "north 2026")
