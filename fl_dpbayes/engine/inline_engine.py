"""Runs the apps in this process, without Ray or a server: for tests, notebooks, small studies."""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

# Flower lets only a process that has an identity build messages, and has no public way to give one;
# this private name is why pyproject bounds flwr to one minor version.
from flwr.supercore.task_identity import TaskIdentity

from fl_dpbayes.config import import_apps
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import written

# What Flower hands to apps as configuration.
UserConfig: TypeAlias = dict[str, bool | float | int | str]
RUN_ID = 1
LOG_FILE = "flower.log"
LOGGERS = ("flwr", "fl_dpbayes")
# Flower's error code for an exception in a ClientApp.
CLIENT_APP_RAISED = 2


class InlineGrid(Grid):
    """Nodes 1 .. K of a ClientApp without Ray, network and server; each has a partition number.

    A request waits here until its reply is pulled, and is answered then.

    Attributes:
        names: Node -> the name under which it is registered; none in a simulation.
    """

    def __init__(
        self, client_app: ClientApp, nodes: int, stop: threading.Event | None = None
    ) -> None:
        self._client_app = client_app
        self._stop = stop
        self.names: Mapping[int, str] = {}
        self._contexts: dict[int, Context] = {}
        for node in range(1, nodes + 1):
            node_config: UserConfig = {"partition-id": node - 1, "num-partitions": nodes}
            self._contexts[node] = Context(RUN_ID, node, node_config, RecordDict(), {})
        self._nodes: Iterable[int] = self._contexts
        self._waiting: dict[str, Message] = {}
        self._pushed = 0

    def answer(self, message: Message) -> Message:
        """Run the ClientApp on a request; UserError if the run was stopped."""
        if self._stop is not None and self._stop.is_set():
            raise UserError("the run was stopped")
        try:
            return self._client_app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            # As Flower does it: one site's failure is an error reply, and the others go on.
            return Message(Error(CLIENT_APP_RAISED, type(error).__name__), reply_to=message)

    def set_run(self, run) -> None:  # type: ignore[no-untyped-def]
        """Do nothing: there is one run."""

    @property
    def run(self):  # type: ignore[no-untyped-def]
        """Refuse: a grid in this process has no run of a SuperLink."""
        raise AttributeError("an in-process grid belongs to no run")

    def create_message(  # type: ignore[no-untyped-def]
        self, content, message_type, dst_node_id, group_id, ttl=None
    ):
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids."""
        return list(self._nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return ids and names."""
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self._nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Accept requests and give each an id."""
        message_ids = []
        for message in messages:
            self._pushed += 1
            message_id = f"inline-{self._pushed}"
            message.metadata.__dict__["_message_id"] = message_id
            self._waiting[message_id] = message
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the requests with these ids."""
        return [
            self.answer(self._waiting.pop(message_id))
            for message_id in message_ids
            if message_id in self._waiting
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push requests and return their replies in the same order."""
        return self.pull_messages(self.push_messages(messages))


def run_inline(run_folder: Path, sites: int, stop: threading.Event, *, report: bool = True) -> None:
    """Run the prepared scenario of a run directory on an in-process grid.

    Args:
        run_folder: Holds `scenario.toml` and `sites/`.
        sites: Number of virtual sites.
        stop: Ends the run when it is set.
        report: Whether figures and `report.html` are drawn.

    Raises:
        UserError: What the ServerApp could not do, or that the run was stopped.
    """
    import_apps()
    from clients.app import app as client_app
    from server.app import app as server_app

    run_config: UserConfig = {
        "scenario": str(run_folder / "scenario.toml"),
        "output-dir": str(run_folder),
        "report": report,
    }
    context = Context(RUN_ID, 0, {}, RecordDict(), run_config=run_config)
    with task_identity(), logs_in(run_folder / LOG_FILE):
        server_app(InlineGrid(client_app, sites, stop), context)


@contextmanager
def logs_in(path: Path) -> Iterator[None]:
    """Send what Flower and the virtual sites log to a file while the context lasts.

    On the terminal it would run across a progress display.
    """
    with written(path):
        handler = _QuietFile(path, encoding="utf-8")
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    try:
        for logger in loggers:
            logger.handlers[:] = [handler]
            # Opacus, imported on the first use of some samplers, gives the root logger a handler on
            # the terminal.
            logger.propagate = False
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers
            logger.propagate = propagate
        with contextlib.suppress(OSError):
            handler.close()


class _QuietFile(logging.FileHandler):
    """A log that ends where the disk is full, as the run itself says what it cannot write."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Pass over a line that cannot be written."""


@contextmanager
def task_identity() -> Iterator[None]:
    """Let this process build Flower messages while the context lasts."""
    before = (TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id)
    TaskIdentity.run_id = RUN_ID
    TaskIdentity.node_id = 0
    TaskIdentity.task_id = 0
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before
