"""The requests of one stage and who was asked what, so that a reply is known by the id of its request."""

from typing import Generic, TypeVar

from flwr.app import ArrayRecord, Message, Metadata

from fl_dpbayes.config.base import Config
from fl_dpbayes.protocol.evaluate import EvaluateReply, EvaluateRequest
from fl_dpbayes.protocol.recalibrate import RecalibrateReply, RecalibrateRequest
from fl_dpbayes.protocol.request_digest import request_digest
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from server.fixed import Federation
from server.messages import array_bytes, request_message
from server.roster import Member

RequestT = TypeVar("RequestT", bound=Config)


def check_answer(
    record: TrainReply | RecalibrateReply | EvaluateReply,
    request: TrainRequest | RecalibrateRequest | EvaluateRequest,
) -> None:
    """Check that a reply answers this request of this run and round, and no earlier one.

    Raises:
        ValueError: if it does not.
    """
    if (record.run, record.round, record.request) != (request.run, request.round, request_digest(request)):
        raise ValueError("it answers another request")


class Exchange(Generic[RequestT]):
    """Builds a stage's requests and matches replies to them, each once."""

    def __init__(self, federation: Federation, message_type: str, round_number: int) -> None:
        self._federation, self._message_type, self.round_number = federation, message_type, round_number
        self.bytes_down = 0
        self._asked: dict[str, tuple[Member, RequestT]] = {}
        self._sent: list[tuple[Metadata, Member, RequestT]] = []

    def request(self, request: RequestT, arrays: ArrayRecord, member: Member) -> Message:
        """Build the message that carries a request to a site.

        Args:
            request: what is asked.
            arrays: what travels with it.
            member: the site.

        Returns:
            The message, to be pushed.
        """
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

    def match(self, reply: Message) -> tuple[Member, RequestT] | None:
        """Return whom a reply is from and what it answers; None for one that answers nothing, or that twice.

        Errors made by the grid itself carry another source node: only the id of the request says whose reply it is.
        """
        self._read_message_ids()
        return self._asked.pop(reply.metadata.reply_to_message_id, None)

    def unanswered(self) -> list[str]:
        """Name the sites that have not replied so far."""
        self._read_message_ids()
        return [member.card.name for member, _ in self._asked.values()]

    def _read_message_ids(self) -> None:
        # They exist only once the grid has pushed the requests.
        for metadata, member, request in self._sent:
            self._asked[metadata.message_id] = (member, request)
        self._sent = []
