"""A Grid of made-up sites that answer at once: what the server does with many large replies, without training."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.task import Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.train import PrivacyStatement, TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import read_header, request_digest, write_header
from fl_dpbayes.run.inline_engine import LocalGrid

UNITS = 1000


class SyntheticGrid(LocalGrid):
    """Nodes 1 .. K, each a site whose samples are standard normal draws; a reply is made when it is pulled.

    Of a request only its header is kept, as on a server whose messages leave the process.
    """

    def __init__(self, sites: int, task: Task, seed: int) -> None:
        super().__init__(sites)
        self._task, self._generator = task, np.random.default_rng(seed)

    def kept(self, message: Message) -> Message:
        """Return the header alone."""
        given, header = message.metadata, RecordDict({"config": message.content.config_records["config"]})
        return Message(header, given.dst_node_id, given.message_type, ttl=given.ttl, group_id=given.group_id)

    def answer(self, asked: Message) -> Message:
        """Make up a reply."""
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
