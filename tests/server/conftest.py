"""Sites that were asked once for everything, and a server that takes up any replies to the same requests."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import strategies as st

from fl_dpbayes.calibration.statistics import CalibrationStatistics, to_arrays
from fl_dpbayes.config.files.journal import JOURNAL_FILE, Journal, JournalMark
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation, run_identifier
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.posterior.store import save_posterior
from fl_dpbayes.report.warnings import sentence
from fl_dpbayes.run.inline_engine import InlineGrid, task_identity
from server.evaluation import EvaluationStage
from server.federation import STRATEGIES
from server.ledger_heads import LedgerHeads
from server.recalibration import recalibrate_sites
from server.roster import Federation, call_roster
from server.run_record import EVENTS_FILE, RunRecord
from server.strategies.independent_chains import IndependentChainsStrategy

HOSTILE = "south"
COMMON = [
    "training={rounds=1, steps_per_round=4, burn_in=0, thinning=2}",
    "privacy.coupling=constant",
    "privacy.temperature=",
    "simulation.insecure_seed=5",
    "sites={north={role='train'}, south={role='train'}, east={role='train'}, held-out={role='held_out', records=60}}",
    "partition={kind='iid'}",
]
SCENARIOS = {
    "exact": ["aggregation.rule=fald", "recalibration={fraction=0.2, steps=2}"],
    "noised": [
        "aggregation.rule=mixture",
        "recalibration={fraction=0.2, method='isotonic'}",
        "evaluation={release='noised', noise_multiplier=2.0}",
    ],
}


class Answering:
    """A grid that answers what it is sent with given replies."""

    def __init__(self, answer: Callable[[list[Message]], list[Message]]) -> None:
        self.answer = answer

    def send_and_receive(self, messages, *, timeout=None):
        return self.answer(numbered(messages))


def record_in(folder: Path) -> RunRecord:
    return RunRecord(folder, Journal(folder / JOURNAL_FILE, JournalMark()))


def numbered(messages) -> list[Message]:
    messages = list(messages)
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"request-{number}"
    return messages


def copied(content: RecordDict) -> RecordDict:
    config = ConfigRecord(dict(content["config"]))
    if "arrays" not in content:
        return RecordDict({"config": config})
    arrays = {name: copy.copy(array) for name, array in content["arrays"].items()}
    return RecordDict({"config": config, "arrays": ArrayRecord(arrays)})


@dataclass
class Stage:
    """What each site answered in a stage, and how the server takes up any replies to the same requests.

    `take(answer, folder)` returns what others see of it, comparable, and what is said of the hostile site: '' if its
    reply was used.
    """

    name: str
    honest: dict[str, RecordDict]
    take: Callable[[Callable[[list[Message]], list[Message]], Path], tuple[Any, str]]
    folder: Path
    sites: dict[int, str]
    further: list[RecordDict] = field(default_factory=list)
    runs: int = 0

    def __post_init__(self) -> None:
        self.with_all, said = self.result(lambda request: [self.honest_reply(request)])
        assert said == ""
        self.without, said = self.result(
            lambda request: [] if self.site(request) == HOSTILE else [self.honest_reply(request)]
        )
        assert said

    def site(self, request: Message) -> str:
        return self.sites[request.metadata.dst_node_id]

    def another_reply(self, draw) -> RecordDict:
        return copied(draw(st.sampled_from(self.further)))

    def honest_reply(self, request: Message) -> Message:
        return Message(copied(self.honest[self.site(request)]), reply_to=request)

    def result(self, answer: Callable[[Message], list[Message]]) -> tuple[Any, str]:
        self.runs += 1
        folder = self.folder / f"{self.name}-{self.runs}"
        folder.mkdir()
        taken = self.take(lambda requests: [reply for request in requests for reply in answer(request)], folder)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        return taken


class Sites:
    """A scenario's sites, asked once for everything."""

    def __init__(self, folder: Path, name: str) -> None:
        from clients.app import app

        self.scenario = load_scenario("quickstart", [*COMMON, *SCENARIOS[name]])
        prepare_simulation(self.scenario, plan_sites(self.scenario, None), folder)
        self.grid = InlineGrid(app, len(self.scenario.sites))
        self.folder = folder
        self.names = {number + 1: site for number, site in enumerate(self.scenario.sites)}
        self.stages: dict[str, Stage] = {}
        self.ask()

    def federation(self, folder: Path) -> Federation:
        return replace(self.fixed, run_folder=folder)

    def asked(self, messages) -> dict[str, RecordDict]:
        messages = list(messages)
        replies = [*self.grid.pull_messages(self.grid.push_messages(messages))]
        assert not [reply for reply in replies if reply.has_error() or "refusal" in reply.content["config"]]
        return {self.names[reply.metadata.src_node_id]: reply.content for reply in replies}

    def ask(self) -> None:
        cards: dict[str, RecordDict] = {}

        def asked(messages: list[Message]) -> list[Message]:
            cards.update(self.asked(messages))
            return [Message(copied(cards[self.names[m.metadata.dst_node_id]]), reply_to=m) for m in messages]

        roster = call_roster(Answering(asked), list(self.names), self.scenario, str(self.folder / SITES_FOLDER))
        self.fixed = Federation(
            self.scenario, run_identifier(self.scenario), roster, 3, model_shapes(self.scenario.model, roster.task),
            self.folder, str(self.folder / SITES_FOLDER),
        )  # fmt: skip
        strategy, requests = self.train_requests(self.folder)
        trained = self.asked(requests)
        strategy.aggregate_train(1, [Message(copied(trained[self.site(m)]), reply_to=m) for m in requests])
        self.posterior, self.last = strategy.posterior(), strategy.last()
        self.posterior = self.posterior.thinned(100)
        self.last = self.last.thinned(100)
        recalibrated: dict[str, RecordDict] = {}

        def recalibrate(messages: list[Message]) -> list[Message]:
            recalibrated.update(self.asked(messages))
            return [Message(copied(recalibrated[self.site(m)]), reply_to=m) for m in messages]

        self.maps = self.recalibrated(recalibrate, self.folder)[0]
        evaluated = self.asked(self.evaluation_requests(self.folder)[1])
        self.replies = {"card": cards, "train": trained, "recalibrate": recalibrated, "evaluate": evaluated}

    def site(self, message: Message) -> str:
        return self.names[message.metadata.dst_node_id]

    def stage(self, name: str) -> Stage:
        take = {"card": self.card, "train": self.train, "recalibrate": self.recalibrate, "evaluate": self.evaluate}
        if name not in self.stages:
            # A card is no proof of who shows it, so one that copies another's takes its name (see the README).
            others = [
                content
                for stage, of_site in self.replies.items()
                for site, content in of_site.items()
                if (stage, site) != (name, HOSTILE) and (stage, name) != ("card", "card")
            ]
            self.stages[name] = Stage(name, self.replies[name], take[name], self.folder, self.names, others)
        return self.stages[name]

    def card(self, answer, folder: Path):
        def asked(messages: list[Message]) -> list[Message]:
            return answer(numbered(messages))

        roster = call_roster(Answering(asked), list(self.names), self.scenario, str(self.folder / SITES_FOLDER))
        said = "" if HOSTILE in {member.card.name for member in roster.members} else "left out"
        for text in map(sentence, roster.left_out):
            assert text.isprintable()
            assert len(text) < 250
            said = text.removeprefix("a node did not join: ")
        return [member for member in roster.members if member.card.name in self.scenario.sites], said

    def train_requests(self, folder: Path):
        federation = self.federation(folder)
        kind = STRATEGIES.get(self.scenario.aggregation.rule, IndependentChainsStrategy)
        strategy = kind(federation, record_in(folder))
        start = ArrayRecord({name: Array(array) for name, array in strategy.initial_state(0).items()})
        return strategy, numbered(strategy.configure_train(1, start, ConfigRecord(), self.grid))

    def train(self, answer, folder: Path):
        strategy, requests = self.train_requests(folder)
        strategy.aggregate_train(1, answer(requests))
        outcome = strategy.record.outcomes[HOSTILE][1]
        posterior = folder / "posterior.safetensors"
        save_posterior(
            posterior, strategy.posterior(), model=self.scenario.model, task=self.fixed.roster.task,
            scenario_hash="0" * 64,
        )  # fmt: skip
        for path in (folder / "events.jsonl", folder / "privacy.csv"):
            assert path.stat().st_size < 2**17
        # A site may have spent much before this run, and its history is as long as a header may be.
        assert (folder / "checkpoint.safetensors").stat().st_size < 2**22
        assert all(text.isprintable() and len(text) < 250 for text in map(sentence, strategy.record.warnings))
        return posterior.read_bytes(), "" if outcome.reply else outcome.detail

    def recalibrated(self, answer, folder: Path):
        record = record_in(folder)
        grid = Answering(lambda messages: answer(messages))
        found = recalibrate_sites(grid, self.federation(folder), self.posterior, LedgerHeads(None), record)
        said = [text for text in map(sentence, record.warnings) if text.startswith(f"{HOSTILE} did not recalibrate: ")]
        assert all(text.isprintable() and len(text) < 350 for text in map(sentence, record.warnings))
        return found, said[0].split(": ", 1)[1] if said else ""

    def recalibrate(self, answer, folder: Path):
        found, said = self.recalibrated(answer, folder)
        return (found.average, dict(found.own), dict(found.statements)), said

    def evaluation_requests(self, folder: Path):
        record = record_in(folder)
        stage = EvaluationStage(self.federation(folder), 1, self.maps, LedgerHeads(None), record)
        requests = numbered(stage.requests({"last": self.last, "posterior": self.posterior}))
        return (stage, record), requests

    def evaluate(self, answer, folder: Path):
        (stage, record), requests = self.evaluation_requests(folder)
        stage.collect(answer(requests))
        events = map(json.loads, (folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines())
        said = [event["problem"] for event in events if event.get("site") == HOSTILE]
        assert all(text.isprintable() and len(text) < 350 for text in map(sentence, record.warnings))
        parts = {(part.card.name, part.predictor): sums_of(part.statistics) for part in stage.evaluation.parts}
        return parts, said[0] if said else "no reply"


def sums_of(statistics) -> bytes:
    if isinstance(statistics, CalibrationStatistics):
        return b"".join(array.tobytes() for array in to_arrays(statistics).values())
    return statistics.sums.tobytes() + repr(statistics.noise_std).encode()


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    with task_identity():
        made: dict[str, Sites] = {}

        def of(name: str) -> Sites:
            if name not in made:
                made[name] = Sites(tmp_path_factory.mktemp(name), name)
            return made[name]

        yield of
