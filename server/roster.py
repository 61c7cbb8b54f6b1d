"""Which nodes take part, and in which role: asked before the first round, and of every node that comes later."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr.app import MessageType
from flwr.serverapp import Grid

from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol.card import Card
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.task import Task
from server.messages import read_record, request_message

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Member:
    """A node and what its site says of itself."""

    node_id: int
    card: Card


@dataclass(frozen=True)
class Roster:
    """The sites of a run in a fixed order, those that were left out, with the reason, and all nodes asked so far."""

    members: tuple[Member, ...]
    left_out: tuple[str, ...]
    asked: frozenset[int] = frozenset()

    @property
    def training(self) -> tuple[Member, ...]:
        """Members that train; only these ever get a training request."""
        return tuple(member for member in self.members if member.card.role == "train")

    @property
    def task(self) -> Task:
        """The task that all members share."""
        return self.members[0].card.task


def wait_for_simulated_nodes(grid: Grid, expected: int, timeout: float, settled: float) -> list[int]:
    """Wait until the nodes of a simulation are there; they appear together, so a number that stays is final.

    Args:
        grid: the grid.
        expected: how many nodes the run needs to start.
        timeout: seconds to wait for the first node.
        settled: seconds after which a number above zero that has not grown is final.

    Returns:
        Node ids in ascending order.

    Raises:
        UserError: if fewer nodes are connected when the time is over; for a simulation it gives the right command.
    """
    deadline, seen = time.monotonic() + timeout, 0
    while True:
        node_ids = sorted(grid.get_node_ids())
        if len(node_ids) >= expected:
            return node_ids
        if len(node_ids) > seen:
            seen, deadline = len(node_ids), time.monotonic() + settled
        if time.monotonic() >= deadline:
            raise UserError(
                f"{len(node_ids)} nodes are connected but the run waits for {expected}: start it with  "
                f'flwr run . --federation-config "num-supernodes={expected}"  (or use  fl-dpbayes simulate)'
            )
        time.sleep(POLL_SECONDS)


def call_roster(
    grid: Grid, node_ids: Sequence[int], order: Sequence[str], *, timeout: float, simulation_folder: str
) -> Roster:
    """Ask every node for its card.

    Args:
        grid: the grid.
        node_ids: the nodes.
        order: names in the order that the roster shall have; others follow alphabetically.
        timeout: seconds to wait for the answers.
        simulation_folder: where virtual sites find their files.

    Returns:
        The members; a node that did not answer, repeats a name or has another task is left out.

    Raises:
        UserError: if no site that trains answered.
    """
    members, left_out = _cards(grid, node_ids, {}, timeout=timeout, simulation_folder=simulation_folder)
    return replace(_agreeing(members, left_out, order), asked=frozenset(node_ids))


def with_newcomers(grid: Grid, roster: Roster, *, timeout: float, simulation_folder: str) -> Roster:
    """Ask the nodes that have come since for their cards, and let those that fit join.

    A node is asked once. The order of the members so far stays, newcomers follow. A site whose node is gone may come
    back with another, if its card says the same.

    Args:
        grid: the grid.
        roster: who takes part so far.
        timeout: seconds to wait for the answers.
        simulation_folder: where virtual sites find their files.

    Returns:
        The roster with the newcomers, or the same one if no node has come.
    """
    connected = set(grid.get_node_ids())
    newcomers = sorted(connected - roster.asked)
    if not newcomers:
        return roster
    known = {member.card.name: member for member in roster.members}
    present = {name: member for name, member in known.items() if member.node_id in connected}
    cards, left_out = _cards(grid, newcomers, present, timeout=timeout, simulation_folder=simulation_folder)
    joined, returned = [], {}
    for name, member in cards.items():
        if name in present:
            continue
        if name in known and member.card == known[name].card:
            returned[name] = member
        elif name in known:
            left_out.append(f"{name} did not come back: its card is not what it was")
        elif member.card.task == roster.task:
            joined.append(member)
        else:
            left_out.append(_differs(member, roster.task))
    return Roster(
        (
            *(returned.get(name, member) for name, member in known.items()),
            *sorted(joined, key=lambda member: member.card.name),
        ),
        (*roster.left_out, *left_out),
        roster.asked | set(newcomers),
    )


def _cards(
    grid: Grid, node_ids: Sequence[int], known: dict[str, Member], *, timeout: float, simulation_folder: str
) -> tuple[dict[str, Member], list[str]]:
    requests = [
        request_message(
            None,
            None,
            node_id=node_id,
            message_type=MessageType.QUERY,
            round_number=0,
            time_to_live=timeout,
            simulation_folder=simulation_folder,
        )
        for node_id in node_ids
    ]
    members, left_out = dict(known), []
    for reply in grid.send_and_receive(requests, timeout=timeout):
        try:
            card = read_record(reply, Card)
            if isinstance(card, Refusal):
                raise ValueError(card.describe())
            if card.name in members:
                raise ValueError(f"the name {card.name!r} is taken by another node")
        except ValueError as error:
            left_out.append(f"a node did not join: {error}")
            continue
        members[card.name] = Member(reply.metadata.src_node_id, card)
    return members, left_out


def _agreeing(members: dict[str, Member], left_out: list[str], order: Sequence[str]) -> Roster:
    position = {name: index for index, name in enumerate(order)}
    ordered = sorted(
        members.values(), key=lambda member: (position.get(member.card.name, len(order)), member.card.name)
    )
    trainers = [member for member in ordered if member.card.role == "train"]
    if not trainers:
        raise UserError(
            "no site that trains answered: " + ("; ".join(left_out) or "give at least one site the role 'train'")
        )
    task = trainers[0].card.task
    for member in ordered:
        if member.card.task != task:
            left_out.append(_differs(member, task))
    return Roster(tuple(member for member in ordered if member.card.task == task), tuple(left_out))


def _differs(member: Member, task: Task) -> str:
    return f"{member.card.name} did not join: its records or classes differ from {task}"
