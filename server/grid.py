"""Flower's grid, with replies in the order of the requests, and without dead processes."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from fl_dpbayes.errors import UserError

POLL_SECONDS = 0.05
# A question costs the SuperLink some hundredths of a second of a core, and real sites answer after
# seconds to hours: who has waited long may wait a twentieth longer.
MOST_POLL_SECONDS = 2.0
POLLS_PER_WAIT = 20
# What Flower raises where the parts of a reply do not fit each other, which its sender chooses; a
# broken connection raises none of these.
UNREADABLE = (
    AttributeError,
    DecodeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class OrderedGrid:
    """Wraps a Grid, whose methods it has, and pulls replies in the order of their requests.

    Strategies that fold replies as they iterate over them then hold one reply in memory, and equal
    seeds give equal results whichever site answers first. A request without a reply at the deadline
    is passed over.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Push all messages, then yield replies in the same order.

        Args:
            messages: The requests.
            timeout: Seconds for all replies together; None waits for ever.
        """
        pushed: list[_PushedRequest] = []
        start = time.monotonic()
        deadline = math.inf if timeout is None else start + timeout
        for request in messages:
            for message_id in self._grid.push_messages([request]):
                unreadable = Message(Error(ErrorCode.UNKNOWN, ""), reply_to=request)
                pushed.append(_PushedRequest(message_id, unreadable))
        for sent in pushed:
            if not sent.message_id:
                continue
            replies = self._pull(sent)
            while not replies and time.monotonic() < deadline:
                time.sleep(_pause(time.monotonic() - start))
                replies = self._pull(sent)
            # Popped, so that nothing here holds a reply that was taken.
            while replies:
                yield replies.pop(0)

    def _pull(self, sent: "_PushedRequest") -> list[Message]:
        """Return what has come to a request; an error in place of what cannot be put together."""
        try:
            return list(self._grid.pull_messages([sent.message_id]))
        except UNREADABLE as error:
            log(WARNING, "a reply could not be put together: %s", type(error).__name__)
            return [sent.unreadable]


def _pause(waited: float) -> float:
    """Return how long to wait before the next question, after so many seconds of waiting."""
    return min(max(waited / POLLS_PER_WAIT, POLL_SECONDS), MOST_POLL_SECONDS)


@dataclass(frozen=True)
class _PushedRequest:
    """A request on its way.

    Attributes:
        message_id: Its id; empty where Flower did not take it.
        unreadable: The reply in place of one that Flower cannot put together from its parts.
    """

    message_id: str
    unreadable: Message


def is_simulated(grid: Grid) -> bool:
    """Say whether a grid is that of Flower's simulation.

    It is not imported for that: its database takes a second.
    """
    return any(base.__name__ == "InMemoryGrid" for base in type(grid).__mro__)


def check_workers_folder(grid: Grid) -> None:
    """Check that a simulation's workers find our app in the working folder, where they look first.

    Raises:
        UserError: They would find another one.
    """
    spec = PathFinder.find_spec("clients", [str(Path.cwd())])
    if not is_simulated(grid) or Path("fl_dpbayes").is_dir():
        return
    if spec is not None and spec.origin:
        raise UserError(
            f"{spec.origin} is in the way: workers take it for the clients of fl-dpbayes; use "
            "the command fl-dpbayes simulate, or start flwr run, and the SuperLink that it leaves "
            "running, in another folder"
        )


def replace_dead_actors(grid: Grid) -> None:
    """Make the simulation's pool of Ray actors put a new actor in the place of a dead one.

    Flower 1.41 returns a dead actor to its pool, where it fails every message at once and so, being
    always idle, takes most of them: one killed process would cost most sites all their rounds.
    """
    if not is_simulated(grid):
        return
    from flwr.simulation.ray_transport.ray_actor import BasicActorPool
    from ray.exceptions import RayActorError

    original = BasicActorPool.fetch_result_and_return_actor_to_pool

    def fetch(self: Any, future: Any) -> Any:
        try:
            return original(self, future)
        except RayActorError:
            self._future_to_actor[future] = self.create_actor_fn()
            raise

    BasicActorPool.fetch_result_and_return_actor_to_pool = fetch  # type: ignore[method-assign]
