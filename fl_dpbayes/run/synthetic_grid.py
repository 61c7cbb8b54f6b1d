"""A Grid of made-up sites that answer at once: what the server does with many large replies, without training."""

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.task import Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.train import PrivacyStatement, TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import read_header, request_digest, write_header

UNITS = 1000


class SyntheticGrid(Grid):
    """Nodes 1 .. K, each a site whose samples are standard normal draws; a reply is made when it is pulled.

    Of a request only its header is kept, as on a server whose messages leave the process.
    """

    def __init__(self, sites: int, task: Task, seed: int) -> None:
        self._sites, self._task = sites, task
        self._generator = np.random.default_rng(seed)
        self._waiting: dict[str, Message] = {}
        self._pushed = 0

    def set_run(self, run) -> None:  # type: ignore[no-untyped-def]
        """Do nothing: there is one run."""

    @property
    def run(self):  # type: ignore[no-untyped-def]
        """Refuse: these sites belong to no run of a SuperLink."""
        raise AttributeError("a synthetic grid belongs to no run")

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):  # type: ignore[no-untyped-def]
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids."""
        return list(range(1, self._sites + 1))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the headers of requests and give each an id."""
        ids = []
        for message in messages:
            self._pushed += 1
            given = message.metadata
            header = RecordDict({"config": message.content.config_records["config"]})
            kept = Message(header, given.dst_node_id, given.message_type, ttl=given.ttl, group_id=given.group_id)
            ids.append(f"synthetic-{self._pushed}")
            for metadata in (given, kept.metadata):
                metadata.__dict__["_message_id"] = ids[-1]
            self._waiting[ids[-1]] = kept
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Make up the replies to the requests with these ids."""
        return [self._reply(self._waiting.pop(number)) for number in message_ids if number in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push requests and return their replies in the same order."""
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, asked: Message) -> Message:
        metadata, content = asked.metadata, RecordDict()
        if metadata.message_type == "query":
            content["config"] = ConfigRecord({"record": write_header(self._card(metadata.dst_node_id))})
        elif metadata.message_type == "train":
            request = read_header(TrainRequest, asked.content.config_records["config"]["record"])
            content["config"] = ConfigRecord({"record": write_header(_train_reply(request))})
            content["arrays"] = self._arrays(request)
        else:
            content["config"] = ConfigRecord({"refusal": write_header(Refusal(code=RefusalCode.NOT_SENT))})
        return Message(content, reply_to=asked)

    def _card(self, number: int) -> Config:
        return SiteCard(
            name=f"site-{number:04d}",
            role="train",
            task=self._task,
            units=UNITS,
            unit="record",
            evaluation_release="none",
            seeded=True,
        )

    def _arrays(self, request: TrainRequest) -> ArrayRecord:
        record = ArrayRecord()
        count = len(_kept(request))
        for name, shape in model_shapes(request.model, request.task).items():
            draws = self._generator.standard_normal((count, *shape), dtype=np.float32)
            record[f"last/parameters/{name}"] = Array(np.ascontiguousarray(draws[-1]))
            record[f"samples/{name}"] = Array(draws)
        return record


def _kept(request: TrainRequest) -> list[int]:
    steps = range(request.first_step, request.first_step + request.steps)
    return [step for step in steps if request.plan.is_kept(step)]


def _train_reply(request: TrainRequest) -> TrainReply:
    plan, reached = request.plan, request.first_step + request.steps
    return TrainReply(
        run=request.run,
        round=request.round,
        request=request_digest(request),
        status="OK",
        first_step=request.first_step,
        steps=request.steps,
        privacy=PrivacyStatement(
            cohort="made up",
            unit="record",
            units=UNITS,
            adjacency=plan.privacy.adjacency,
            delta=plan.privacy.delta,
            epsilon=None,
            epsilon_method="pld",
            mu=None,
            mu_kind="exact" if plan.privacy.sampling_rate == 1 else "clt",
            steps=reached,
            budget=None,
            history=((0.0, plan.privacy.sampling_rate, reached),),
            seeded=True,
        ),
        ledger_head="0" * 64,
    )
