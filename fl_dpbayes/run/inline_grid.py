"""An in-process Grid: the ClientApp is called directly, without Ray and without a server."""

import threading
from collections.abc import Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_dpbayes.config.errors import UserError

CLIENT_APP_RAISED = 2  # Flower's error code for an exception in a ClientApp


class InlineGrid(Grid):
    """Nodes 1 .. K in this process, each with its partition number; a request is worked on when its reply is pulled."""

    def __init__(self, client_app: ClientApp, nodes: int, stop: threading.Event | None = None) -> None:
        self._client_app = client_app
        self._stop = stop
        self._contexts = {
            number + 1: Context(
                run_id=1,
                node_id=number + 1,
                node_config={"partition-id": number, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for number in range(nodes)
        }
        self._waiting: dict[str, Message] = {}
        self._pushed = 0

    def set_run(self, run) -> None:  # type: ignore[no-untyped-def]
        """Do nothing: there is one run."""

    @property
    def run(self):  # type: ignore[no-untyped-def]
        """Refuse: an in-process grid has no run of a SuperLink."""
        raise AttributeError("an in-process grid belongs to no run")

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):  # type: ignore[no-untyped-def]
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Accept requests and give each an id."""
        ids = []
        for message in messages:
            self._pushed += 1
            message.metadata.__dict__["_message_id"] = f"inline-{self._pushed}"
            self._waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the ClientApp on the requests with these ids and return its replies."""
        return [self._answer(self._waiting.pop(number)) for number in message_ids if number in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push requests and return their replies in the same order."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        if self._stop is not None and self._stop.is_set():
            raise UserError("the run was stopped")
        try:
            return self._client_app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            # As Flower does it: one site's failure is an error reply, and the others go on.
            return Message(Error(CLIENT_APP_RAISED, type(error).__name__), reply_to=message)
