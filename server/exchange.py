"""The requests of one stage, who was asked what, and the one way in which replies to them are taken."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import ArrayRecord, Message, Metadata

from fl_dpbayes.protocol import (
    RecalibrateRequest,
    Refusal,
    StageReply,
    StageRequest,
    StatedPasses,
    StepsReply,
    TrainRequest,
    request_digest,
)
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

NO_REPLY = "no reply in time"
RequestT = TypeVar("RequestT", bound=StageRequest)
ReplyT = TypeVar("ReplyT", bound=StageReply)
CheckedT = TypeVar("CheckedT")


@dataclass(frozen=True)
class Answer(Generic[CheckedT]):
    """How one site answered one request, and what the stage made of a reply that is used.

    `status` is OK or PARTIAL of one that is used, else REFUSED, FAILED or REJECTED for the reason
    `detail`, printable.
    """

    site: str
    status: str
    detail: str = ""
    refusal: Refusal | None = None
    checked: CheckedT | None = None
    bytes_up: int = 0
    passes: StatedPasses | None = None

    @property
    def usable(self) -> bool:
        """Whether the stage may use what the site sent."""
        return self.status in ("OK", "PARTIAL")

    @property
    def problem(self) -> str:
        """Why there is nothing of the site after the training, empty if there is something."""
        wrong = self.status in ("REJECTED", "FAILED") and self.detail != NO_REPLY
        return f"rejected: {self.detail}" if wrong else self.detail


class Exchange(Generic[RequestT, ReplyT]):
    """Builds a stage's requests and takes the replies to them, each once."""

    def __init__(
        self,
        federation: Federation,
        heads: LedgerHeads,
        message_type: str,
        round_number: int,
        kind: type[ReplyT],
    ) -> None:
        """Begin a stage whose replies are of a kind.

        `heads` are brought up to date by each that is used.
        """
        self._federation, self._heads, self._kind = federation, heads, kind
        self._message_type, self.round_number = message_type, round_number
        self.bytes_down = 0
        self._asked: dict[str, tuple[Member, RequestT]] = {}
        self._sent: list[tuple[Metadata, Member, RequestT]] = []

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
        # Without its content, which is let go when it is sent.
        self._sent.append((message.metadata, member, request))
        return message

    def answers(
        self,
        replies: Iterable[Message],
        check: Callable[[Message, ReplyT, RequestT, Member], CheckedT],
        dropped: Callable[[], None],
    ) -> Iterator[Answer[CheckedT]]:
        """Take replies one by one, in their order.

        Yield the answer of each site that was asked, silent ones last.

        `check` makes of an answer what the stage uses, or rejects it by a ValueError. `dropped` is
        called for a reply to no open request.
        """
        for reply in replies:
            self._read_message_ids()
            # Errors made by the grid itself carry another source node: the request's id alone says
            # whose reply it is.
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is None:
                dropped()
                continue
            yield self._answer(reply, *asked, check)
            del reply
        self._read_message_ids()
        for member, _ in self._asked.values():
            yield Answer(member.card.name, "FAILED", NO_REPLY)

    def _answer(
        self,
        reply: Message,
        member: Member,
        request: RequestT,
        check: Callable[[Message, ReplyT, RequestT, Member], CheckedT],
    ) -> Answer[CheckedT]:
        name = member.card.name
        if said := error_text(reply):
            return Answer(name, "FAILED", NO_REPLY if reply.error.code in EXPIRED else said)
        try:
            with rejecting():
                record = read_reply(reply, self._kind, member.node_id)
                if not isinstance(record, Refusal):
                    # Of this run and round, and no earlier one.
                    expected = (request.run, request.round, request_digest(request))
                    if (record.run, record.round, record.request) != expected:
                        raise ValueError("it answers another request")
                    checked = check(reply, record, request, member)
        except RejectedError as error:
            return Answer(name, "REJECTED", str(error))
        if isinstance(record, Refusal):
            return Answer(name, "REFUSED", record.describe(), record)
        if record.ledger_head is not None:
            self._heads.seen[name] = record.ledger_head
        status = record.status if isinstance(record, StepsReply) else "OK"
        return Answer(
            name, status, checked=checked, bytes_up=array_bytes(reply), passes=record.passes
        )

    def _read_message_ids(self) -> None:
        # They exist only once the grid has pushed the requests.
        for metadata, member, request in self._sent:
            self._asked[metadata.message_id] = (member, request)
        self._sent = []


def check_steps(record: StepsReply, request: TrainRequest | RecalibrateRequest) -> None:
    """Check that a reply's steps are the request's, or a prefix of them where it says so, or raise ValueError."""
    if record.first_step != request.first_step or record.steps > request.steps:
        raise ValueError(
            f"it ran steps {record.first_step}+{record.steps}, not "
            f"{request.first_step}+{request.steps}"
        )
    if (record.status == "OK") != (record.steps == request.steps):
        raise ValueError(
            f"status {record.status} does not fit {record.steps} of {request.steps} steps"
        )
