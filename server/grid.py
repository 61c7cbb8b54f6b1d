"""Flower's grid, with replies one by one in the order of the requests, and without dead processes in a simulation."""

import math
import time
from collections.abc import Iterable, Iterator
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
    """Wraps a Grid, whose methods it has, so that replies are pulled one by one in the order of their requests.

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
        """Push all messages, then yield replies in the same order, for `timeout` seconds together (None: for ever)."""
        pushed: list[tuple[str, Message]] = []
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        for request in messages:
            for number in self._grid.push_messages([request]):
                pushed.append((number, Message(Error(ErrorCode.UNKNOWN, ""), reply_to=request)))
        for message_id, spare in pushed:
            replies = self._pulled(message_id, spare) if message_id else []
            while message_id and not replies and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                replies = self._pulled(message_id, spare)
            while replies:
                yield replies.pop(0)

    def _pulled(self, message_id: str, unreadable: Message) -> list[Message]:
        """Return what has come.

        An error reply in the place of one that Flower cannot put together from its parts.
        """
        try:
            return list(self._grid.pull_messages([message_id]))
        except UNREADABLE as error:
            log(WARNING, "a reply could not be put together: %s", type(error).__name__)
            return [unreadable]


def is_simulated(grid: Grid) -> bool:
    """Say whether a grid is that of Flower's simulation, without importing it: its database takes a second."""
    return any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)


def check_workers_folder(grid: Grid) -> None:
    """Check that a simulation's workers, which look into the working folder first, find our app.

    UserError if not.
    """
    found = PathFinder.find_spec("clients", [str(Path.cwd())])
    if is_simulated(grid) and found and found.origin and not Path("fl_dpbayes").is_dir():
        raise UserError(
            f"{found.origin} is in the way: workers take it for the clients of fl-dpbayes; use "
            "the command fl-dpbayes "
            "simulate, or start flwr run, and the SuperLink that it leaves running, in "
            "another folder"
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
