"""The requests of one stage, and the one way in which replies to them are taken."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

from flwr.app import ArrayRecord, Message, Metadata

from fl_dpbayes.config import Model, Task, warning
from fl_dpbayes.protocol import Refusal, StageReply, StageRequest, StepsReply, request_digest
from server.ledger_heads import LedgerHeads
from server.messages import (
    EXPIRED,
    RejectedError,
    array_bytes,
    error_text,
    read_reply,
    rejecting,
    request_message,
)
from server.roster import Federation, Member
from server.round_outcomes import NO_REPLY, Answer, CheckedT
from server.run_record import RunRecord

RequestT = TypeVar("RequestT", bound=StageRequest)
ReplyT = TypeVar("ReplyT", bound=StageReply)
# Makes of a reply what the stage uses, or rejects it by a ValueError.
Check = Callable[[Message, ReplyT, RequestT, Member], CheckedT]


@dataclass(frozen=True)
class _SentRequest(Generic[RequestT]):
    """A request on its way, without its content, which is let go when it is sent."""

    metadata: Metadata
    member: Member
    request: RequestT


class RequestFields(TypedDict):
    """What every request says (`StageRequest`)."""

    run: str
    round: int
    task: Task
    model: Model
    ledger_head: str | None


class Exchange(Generic[RequestT, ReplyT]):
    """Builds a stage's requests and takes the replies to them, each once.

    Attributes:
        round_number: The stage's round.
        bytes_down: Size of the arrays of all requests so far.
    """

    def __init__(
        self,
        federation: Federation,
        heads: LedgerHeads,
        record: RunRecord,
        message_type: str,
        round_number: int,
        reply_type: type[ReplyT],
        stage: str,
    ) -> None:
        """Begin a stage.

        Args:
            federation: The run.
            heads: Heads of the sites' ledgers, brought up to date by each reply that is used.
            record: Where warnings go, and what sites say of their passes over records.
            message_type: Flower's type of the requests.
            round_number: The stage's round.
            reply_type: Kind of the replies.
            stage: The stage in words, for warnings.
        """
        self.round_number = round_number
        self.bytes_down = 0
        self._federation = federation
        self._heads = heads
        self._record = record
        self._dropped = warning("dropped", stage=stage)
        self._message_type = message_type
        self._reply_type = reply_type
        self._sent: list[_SentRequest[RequestT]] = []
        # By message id.
        self._open: dict[str, _SentRequest[RequestT]] = {}

    def fields(self, member: Member) -> RequestFields:
        """Return what every request of the stage to a site says."""
        return {
            "run": self._federation.run,
            "round": self.round_number,
            "task": member.card.task,
            "model": self._federation.scenario.model,
            "ledger_head": self._heads.last.get(member.card.name),
        }

    def request(self, request: RequestT, arrays: ArrayRecord, member: Member) -> Message:
        """Build the message that carries a request and its arrays to a site."""
        message = request_message(
            request,
            arrays,
            node_id=member.node_id,
            message_type=self._message_type,
            round_number=self.round_number,
            time_to_live=self._federation.scenario.resources.round_timeout,
            simulation_folder=self._federation.simulation_folder,
        )
        self.bytes_down += array_bytes(message)
        self._sent.append(_SentRequest(message.metadata, member, request))
        return message

    def answers(
        self, replies: Iterable[Message], check: Check[ReplyT, RequestT, CheckedT]
    ) -> Iterator[Answer[CheckedT]]:
        """Take replies one by one, in their order; a reply to no open request is dropped.

        Args:
            replies: The replies.
            check: Makes of a reply what the stage uses, or rejects it by a ValueError.

        Yields:
            The answer of each site that got a request, silent ones last.
        """
        for reply in replies:
            self._read_message_ids()
            # Errors made by the grid itself carry another source node: the request's id alone says
            # whose reply it is.
            sent = self._open.pop(reply.metadata.reply_to_message_id, None)
            if sent is None:
                self._record.warn(self._dropped)
                continue
            answer = self._answer(reply, sent, check)
            self._record.add_passes(answer.site, answer.passes)
            yield answer
            # One reply in memory at a time.
            del reply
        self._read_message_ids()
        for sent in self._open.values():
            yield Answer(site=sent.member.card.name, status="FAILED", detail=NO_REPLY)

    def _answer(
        self,
        message: Message,
        sent: _SentRequest[RequestT],
        check: Check[ReplyT, RequestT, CheckedT],
    ) -> Answer[CheckedT]:
        site = sent.member.card.name
        error = error_text(message)
        if error:
            detail = NO_REPLY if message.error.code in EXPIRED else error
            return Answer(site=site, status="FAILED", detail=detail)
        try:
            with rejecting():
                reply = read_reply(message, self._reply_type, sent.member.node_id)
                if not isinstance(reply, Refusal):
                    _check_answers(reply, sent.request)
                    checked = check(message, reply, sent.request, sent.member)
        except RejectedError as rejection:
            return Answer(site=site, status="REJECTED", detail=str(rejection))
        if isinstance(reply, Refusal):
            return Answer(site=site, status="REFUSED", detail=reply.describe(), refusal=reply)
        if reply.ledger_head is not None:
            self._heads.last[site] = reply.ledger_head
        return Answer(
            site=site,
            status=reply.status if isinstance(reply, StepsReply) else "OK",
            checked=checked,
            bytes_up=array_bytes(message),
            passes=reply.passes,
        )

    def _read_message_ids(self) -> None:
        # They exist only once the grid has pushed the requests.
        for sent in self._sent:
            self._open[sent.metadata.message_id] = sent
        self._sent = []


def _check_answers(reply: StageReply, request: StageRequest) -> None:
    """Check that a reply is to this request, and so of this run and round and no earlier one."""
    expected = (request.run, request.round, request_digest(request))
    if (reply.run, reply.round, reply.request) != expected:
        raise ValueError("it answers another request")
