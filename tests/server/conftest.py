"""Sites that were asked once for everything, and a server that takes replies to that again."""

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import strategies as st

from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation, run_identifier
from fl_dpbayes.engine.inline_engine import InlineGrid, task_identity
from fl_dpbayes.files.run_store import STORE_FILE, RunStore
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.posterior.store import load_posterior, save_posterior
from fl_dpbayes.report.warnings import sentence
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
    "sites={north={role='train'}, south={role='train'}, east={role='train'}, "
    "held-out={role='held_out', records=60}}",
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


def table_of_patients(folder: Path) -> tuple[Path, np.ndarray, list[str]]:
    """Write a table of two features and classes.

    Return it, its labels, and settings by which four sites hold it.
    """
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 2, 900)
    rows = generator.normal(size=(900, 2)) + np.where(labels == 1, 1, -1)[:, None] * [1.2, -0.6]
    patients = folder / "patients.csv"
    pandas.DataFrame({"x": rows[:, 0], "y": rows[:, 1], "sick": labels}).to_csv(
        patients, index=False
    )
    settings = [
        *(f"sites.{name}=" for name in ("held-out", "noisy-scanner", "rotated")),
        "partition={kind='iid'}",
        f"data.source={{kind='table', path='{patients}', label='sick', classes=2, "
        f"features=['x','y']}}",
        "training={rounds=2, steps_per_round=150, burn_in=100, thinning=4}",
        "sampler.step_size.initial=0.5",
        "privacy.epsilon=20",
    ]
    return patients, labels, settings


def name_nodes(run) -> None:
    """Let nodes name their own site files, as hospitals do, and be registered under their names."""
    run.grid.names = dict(enumerate(run.scenario.sites, 1))
    for number, path in enumerate(sorted((run.folder / SITES_FOLDER).glob("*.toml")), 1):
        run.grid._contexts[number].node_config["site-file"] = str(path)


def predictions(run, features: np.ndarray) -> np.ndarray:
    """What the stored posterior of a run predicts, without its map."""
    stored = load_posterior(run.folder / "posterior.safetensors")
    module = build_model(stored.metadata.model, stored.metadata.task, seed=0)
    return predict(module, stored.samples.arrays, stored.samples.weights, features).probabilities


class Cut(BaseException):
    """Ends a run as a kill does: no handler of the apps catches it."""


class Answering:
    """A grid that answers each request with given replies."""

    def __init__(self, answer: Callable[[Message], list[Message]]) -> None:
        self.answer = answer

    def get_nodes(self):
        return []

    def send_and_receive(self, messages, *, timeout=None):
        return replies_to(messages, self.answer)


def replies_to(
    messages: Iterable[Message], answer: Callable[[Message], list[Message]]
) -> list[Message]:
    messages = list(messages)
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"request-{number}"
    return [reply for message in messages for reply in answer(message)]


def copied(content: RecordDict) -> RecordDict:
    parts = {"config": ConfigRecord(dict(content["config"]))}
    if "arrays" in content:
        parts["arrays"] = ArrayRecord(
            {name: copy.copy(array) for name, array in content["arrays"].items()}
        )
    return RecordDict(parts)


class Sites:
    """A scenario's sites, asked once for everything, and a server that takes up any replies.

    A stage returns what others see of it, comparable, and what is said of the hostile site: '' if
    its reply was used.
    """

    STAGES = ("card", "train", "recalibrate", "evaluate")

    def __init__(self, folder: Path, name: str) -> None:
        from clients.app import app

        self.scenario = load_scenario("digits", [*COMMON, *SCENARIOS[name]])
        prepare_simulation(self.scenario, plan_sites(self.scenario, None), folder)
        self.grid, self.folder = InlineGrid(app, len(self.scenario.sites)), folder
        self.names = {number + 1: site for number, site in enumerate(self.scenario.sites)}
        self.replies: dict[str, dict[str, RecordDict]] = {stage: {} for stage in self.STAGES}
        self.fixed, self.predictors, self.maps = None, None, None
        for stage in self.STAGES:
            self.take(stage, lambda request, stage=stage: self.ask(stage, request))
        self.with_all = {stage: self.take(stage, self.honest(stage)) for stage in self.STAGES}
        self.without = {
            stage: self.take(stage, self.honest(stage, but=HOSTILE)) for stage in self.STAGES
        }
        assert not any(said for _, said in self.with_all.values())
        assert all(said for _, said in self.without.values())

    def site(self, request: Message) -> str:
        return self.names[request.metadata.dst_node_id]

    def ask(self, stage: str, request: Message) -> list[Message]:
        (reply,) = self.grid.pull_messages(self.grid.push_messages([request]))
        assert not reply.has_error()
        assert "refusal" not in reply.content["config"]
        self.replies[stage][self.site(request)] = reply.content
        return self.honest(stage)(request)

    def honest(self, stage: str, but: str = "") -> Callable[[Message], list[Message]]:
        def answer(request: Message) -> list[Message]:
            site = self.site(request)
            return (
                []
                if site == but
                else [Message(copied(self.replies[stage][site]), reply_to=request)]
            )

        return answer

    def another_reply(self, stage: str, draw) -> RecordDict:
        # A card is no proof of who shows it, so one that copies another's takes its name (see the
        # README).
        others = [
            content
            for other, of_site in self.replies.items()
            for site, content in of_site.items()
            if (other, site) != (stage, HOSTILE) and (other, stage) != ("card", "card")
        ]
        return copied(draw(st.sampled_from(others)))

    def take(self, stage: str, answer: Callable[[Message], list[Message]]) -> tuple[Any, str]:
        with TemporaryDirectory(dir=self.folder) as folder:
            record = RunRecord(RunStore.make(Path(folder)))
            taken = getattr(self, stage)(answer, record)
            most = 250 if stage == "train" else 350
            assert all(
                text.isprintable() and len(text) < most for text in map(sentence, record.warnings)
            )
            return taken

    def card(self, answer, record: RunRecord):
        folder = str(self.folder / SITES_FOLDER)
        roster = call_roster(Answering(answer), list(self.names), self.scenario, folder)
        if self.fixed is None:
            shapes = model_shapes(self.scenario.model, roster.task)
            run = run_identifier(self.scenario)
            self.fixed = Federation(self.scenario, run, roster, 3, shapes, self.folder, folder)
        said = "" if HOSTILE in {member.card.name for member in roster.members} else "left out"
        for text in map(sentence, roster.left_out):
            assert text.isprintable()
            assert len(text) < 250
            said = text.removeprefix("a node did not join: ")
        return [
            member for member in roster.members if member.card.name in self.scenario.sites
        ], said

    def train(self, answer, record: RunRecord):
        folder = record.run_folder
        kind = STRATEGIES.get(self.scenario.aggregation.rule, IndependentChainsStrategy)
        strategy = kind(replace(self.fixed, run_folder=folder), record)
        start = ArrayRecord(
            {name: Array(array) for name, array in strategy.initial_state(0).items()}
        )
        requests = strategy.configure_train(1, start, ConfigRecord(), self.grid)
        strategy.aggregate_train(1, replies_to(requests, answer))
        history = record.histories[HOSTILE]
        posterior = strategy.posterior()
        self.predictors = self.predictors or (strategy.last().thinned(100), posterior.thinned(100))
        path = folder / "posterior.safetensors"
        save_posterior(
            path,
            posterior,
            model=self.scenario.model,
            task=self.fixed.roster.task,
            scenario_hash="0" * 64,
        )
        # A site may have spent much before this run, and its history is as long as a header may be.
        for name, most in (
            ("events.jsonl", 2**17),
            ("privacy.csv", 2**17),
            (STORE_FILE, 2**23),
        ):
            assert (folder / name).stat().st_size < most
        said = "" if history.used_replies else "".join(history.details.values())
        return path.read_bytes(), said

    def recalibrate(self, answer, record: RunRecord):
        federation = replace(self.fixed, run_folder=record.run_folder)
        found = recalibrate_sites(
            Answering(answer), federation, self.predictors[1], LedgerHeads(None), record
        )
        self.maps = self.maps or found
        said = [
            text
            for text in map(sentence, record.warnings)
            if text.startswith(f"{HOSTILE} did not recalibrate: ")
        ]
        return (found.average, dict(found.site_maps), dict(found.statements)), said[0].split(
            ": ", 1
        )[1] if said else ""

    def evaluate(self, answer, record: RunRecord):
        federation = replace(self.fixed, run_folder=record.run_folder)
        stage = EvaluationStage(federation, 1, LedgerHeads(None), record)
        predictors = dict(zip(("last", "posterior"), self.predictors, strict=True))
        stage.collect(replies_to(stage.requests(predictors, self.maps, None), answer))
        events = map(
            json.loads, (record.run_folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
        )
        said = [event["problem"] for event in events if event.get("site") == HOSTILE]
        parts = {
            (place.site, place.predictor): sums_of(place.statistics)
            for place in stage.evaluation.places
        }
        return parts, said[0] if said else "no reply"


def sums_of(statistics) -> bytes:
    if isinstance(statistics, CalibrationStatistics):
        return b"".join(array.tobytes() for array in statistics.arrays().values())
    return statistics.sums.tobytes() + repr(statistics.noise_std).encode()


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    with task_identity():
        yield cache(lambda name: Sites(tmp_path_factory.mktemp(name), name))
