"""Which nodes take part, and in which role; later nodes are asked as they come."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fl_dpbayes.config import RecordSchema, RunWarning, Scenario, Task, outside_text, warning
from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol import Refusal, SiteCard
from fl_dpbayes.report import sentence
from server.check_card import check_card
from server.messages import EXPIRED, RejectedError, read_reply, rejecting, request_message
from server.registered_nodes import allowed_nodes, registered_names

# Flower gives no node this id.
NO_NODE = 0
POLL_SECONDS = 0.2
NODE_SECONDS = 30.0
# How long a node that came later may take to say who it is: the others wait.
CARD_SECONDS = 60.0


@dataclass(frozen=True)
class Member:
    """A node and what its site says of itself.

    Attributes:
        node_id: The node; `NO_NODE` until a site of a resumed run has come back.
        card: The site's card.
    """

    node_id: int
    card: SiteCard

    @property
    def has_node(self) -> bool:
        """Whether the site can be asked for anything."""
        return self.node_id != NO_NODE


@dataclass(frozen=True)
class Roster:
    """The sites of a run in a fixed order, and what is known of the nodes.

    Attributes:
        members: The sites.
        left_out: A warning of each node that did not join.
        answered: Nodes that have answered; none is asked again.
        silences: Node -> how often in a row it gave no answer.
        away: Nodes of members that were not connected when the roster was last called.
        first_nodes: Site -> the node that it had first, which keeps its name.
    """

    members: tuple[Member, ...]
    left_out: tuple[RunWarning, ...]
    answered: frozenset[int] = frozenset()
    silences: Mapping[int, int] = field(default_factory=dict)
    away: frozenset[int] = frozenset()
    first_nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def with_nodes(self) -> tuple[Member, ...]:
        """Members that can be asked."""
        return tuple(member for member in self.members if member.has_node)

    @property
    def training(self) -> tuple[Member, ...]:
        """Members that train; only these ever get a training request."""
        return tuple(member for member in self.members if member.card.role == "train")

    @property
    def units(self) -> dict[str, int]:
        """Declared units of each member that trains."""
        return {member.card.name: member.card.units for member in self.training}

    @property
    def task(self) -> Task:
        """The task that all members share."""
        return self.members[0].card.task


@dataclass(frozen=True)
class Federation:
    """What is fixed for a run.

    Attributes:
        scenario: What is run.
        run: The run's id, by which the sites' ledgers know it.
        roster: The sites.
        planned_sites: Number of training sites that began it, which the plan is made for.
        shapes: Shapes of the model's parameters, by name.
        run_folder: The run directory.
        simulation_folder: Where virtual sites find their files; empty at real sites.
        heads_file: Keeps the heads of the sites' ledgers across runs.
    """

    scenario: Scenario
    run: str
    roster: Roster
    planned_sites: int
    shapes: dict[str, tuple[int, ...]]
    run_folder: Path
    simulation_folder: str
    heads_file: Path | None = None

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())


@dataclass
class _Cards:
    """What nodes answered when they were asked for their cards.

    Attributes:
        members: Site -> the node that showed its card, of cards that fit the scenario.
        left_out: A warning of each other node that answered.
        answered: Nodes that answered.
    """

    members: dict[str, Member] = field(default_factory=dict)
    left_out: list[RunWarning] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)


class _SharedParts(NamedTuple):
    """What the cards of all members have in common."""

    task: Task
    data_schema: RecordSchema

    @classmethod
    def of_card(cls, card: SiteCard) -> "_SharedParts":
        return cls(task=card.task, data_schema=card.data_schema)


def connected_nodes(grid: Grid, expected: int, settled: float | None = None) -> list[int]:
    """Wait for nodes.

    Args:
        grid: Where they connect.
        expected: How many to wait for.
        settled: Seconds after the last one that came; None waits `NODE_SECONDS` in all.

    Returns:
        The ids of those that came, ascending.
    """
    deadline = time.monotonic() + NODE_SECONDS
    most_so_far = 0
    while True:
        node_ids = sorted(grid.get_node_ids())
        if settled is not None and len(node_ids) > most_so_far:
            most_so_far = len(node_ids)
            deadline = time.monotonic() + settled
        if len(node_ids) >= expected or time.monotonic() >= deadline:
            return node_ids
        time.sleep(POLL_SECONDS)


def call_roster(
    grid: Grid, node_ids: Sequence[int], scenario: Scenario, simulation_folder: str
) -> Roster:
    """Ask every node for its card.

    A node that did not answer, repeats a name, declares too few units or has another task than most
    is left out.

    Args:
        grid: The connected nodes.
        node_ids: The nodes to ask.
        scenario: The scenario.
        simulation_folder: Where virtual sites find their files; empty at real sites.

    Returns:
        Members in the scenario's order, others after these alphabetically.

    Raises:
        UserError: No site that trains answered.
    """
    cards = _ask_for_cards(
        grid=grid,
        node_ids=node_ids,
        taken_names={},
        scenario=scenario,
        simulation_folder=simulation_folder,
        timeout=scenario.resources.round_timeout,
    )
    silent = set(node_ids) - cards.answered
    return replace(
        _agreeing(cards, list(scenario.sites)),
        answered=frozenset(cards.answered),
        silences=dict.fromkeys(silent, 1),
    )


def with_newcomers(grid: Grid, federation: Federation) -> Roster:
    """Ask the nodes that have come since for their cards, and let those that fit join.

    A node is asked until it answers, or has been silent too often. The order of the members so far
    stays, newcomers follow. A site keeps its node while that is gone; only where the rules allow it
    may another take its place, if its card says the same, until the first one is back.

    Args:
        grid: The connected nodes.
        federation: The run, with the roster so far.

    Returns:
        The new roster; an equal one if nothing has changed.
    """
    roster = federation.roster
    scenario = federation.scenario
    is_simulated = bool(federation.simulation_folder)
    connected = set(allowed_nodes(grid, scenario.sites, only_registered=not is_simulated))
    members = {member.card.name: member for member in roster.members}
    first_nodes = {
        name: roster.first_nodes.get(name, member.node_id) for name, member in members.items()
    }
    for name, member in members.items():
        if first_nodes[name] in connected:
            members[name] = replace(member, node_id=first_nodes[name])

    newcomers = _newcomers(roster, scenario, connected)
    cards = _ask_for_cards(
        grid=grid,
        node_ids=newcomers,
        taken_names=_taken_names(members, scenario, connected),
        scenario=scenario,
        simulation_folder=federation.simulation_folder,
        timeout=min(CARD_SECONDS, scenario.resources.round_timeout),
    )
    left_out = [*roster.left_out, *cards.left_out]
    joined = {}
    shared = _SharedParts.of_card(roster.members[0].card)
    for name, member in cards.members.items():
        if name in members and member.card != members[name].card:
            left_out.append(warning("card-changed", name))
        elif name in members:
            members[name] = member
            first_nodes[name] = first_nodes[name] or member.node_id
        elif _SharedParts.of_card(member.card) == shared:
            joined[name] = member
        else:
            left_out.append(_other_task(member, roster.task))
    silences = dict(roster.silences)
    for node in newcomers:
        if node not in cards.answered:
            silences[node] = silences.get(node, 0) + 1
    nodes_of_members = frozenset(member.node_id for member in members.values() if member.has_node)
    return Roster(
        members=(*members.values(), *(joined[name] for name in sorted(joined))),
        left_out=tuple(left_out),
        answered=roster.answered | cards.answered,
        silences=silences,
        away=nodes_of_members - connected,
        first_nodes=first_nodes,
    )


def _newcomers(roster: Roster, scenario: Scenario, connected: Set[int]) -> list[int]:
    """Return the nodes to ask for their cards, ascending."""
    most_silences = scenario.resources.silent_rounds
    return [
        node
        for node in sorted(connected - roster.answered)
        if roster.silences.get(node, 0) < most_silences
    ]


def _taken_names(
    members: Mapping[str, Member], scenario: Scenario, connected: Set[int]
) -> dict[str, str]:
    """Return the names that no other node may take now, and why."""
    reasons = {}
    for name, member in members.items():
        if member.node_id in connected:
            reasons[name] = _name_is_taken(name)
        elif member.has_node and not scenario.resources.nodes_may_change:
            gone = f"{name} has a node of its own, which is gone"
            reasons[name] = f"{gone}: start that again, or set resources.nodes_may_change"
    return reasons


def check_enough(roster: Roster, scenario: Scenario) -> None:
    """Check before any site pays that as many joined as the run starts with.

    Raises:
        UserError: Fewer joined; it says why others did not.
    """
    needed = scenario.least_nodes
    joined = {member.card.name for member in roster.members}
    if len(joined) < needed:
        absent = ", ".join(name for name in scenario.sites if name not in joined)
        reasons = "; ".join(map(sentence, roster.left_out)) or "no answer came"
        raise UserError(
            f"{len(joined)} of {len(scenario.sites)} sites joined, the run starts with {needed}; "
            f"{absent} did not ({reasons}): mend that, or start a new run with lower "
            "resources.start_nodes; no privacy was spent"
        )


def _ask_for_cards(
    grid: Grid,
    node_ids: Sequence[int],
    taken_names: Mapping[str, str],
    scenario: Scenario,
    simulation_folder: str,
    timeout: float,
) -> _Cards:
    """Ask nodes for their cards, and check each against the scenario and the names in use.

    `taken_names` maps names that no node may take to the reason.
    """
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
    registered = registered_names(grid) if requests else {}
    cards = _Cards()
    # Thousands of sites share one task and one schema, in memory too.
    shared_parts: dict[_SharedParts, _SharedParts] = {}
    waiting: dict[str, int] | None = None
    for reply in grid.send_and_receive(requests, timeout=timeout):
        # Message ids exist only once the grid has pushed the requests.
        if waiting is None:
            waiting = {
                request.metadata.message_id: request.metadata.dst_node_id for request in requests
            }
        node_id = waiting.pop(reply.metadata.reply_to_message_id, None)
        if node_id is None or (reply.has_error() and reply.error.code in EXPIRED):
            continue
        cards.answered.add(node_id)
        registered_name = registered.get(node_id, "")
        try:
            card = _read_card(reply, node_id)
            own_parts = _SharedParts.of_card(card)
            parts = shared_parts.setdefault(own_parts, own_parts)
            card = card.model_copy(update=parts._asdict())
            if card.name in taken_names:
                raise ValueError(taken_names[card.name])
            if card.name in cards.members:
                raise ValueError(_name_is_taken(card.name))
            check_card(card, registered_name, scenario)
        except (RejectedError, ValueError) as error:
            cards.left_out.append(_no_card(registered_name, str(error)))
            continue
        cards.members[card.name] = Member(node_id, card)
    return cards


def _read_card(reply: Message, node_id: int) -> SiteCard:
    """Read a node's card, or raise RejectedError or ValueError."""
    with rejecting():
        card = read_reply(reply, SiteCard, node_id)
    if isinstance(card, Refusal):
        raise ValueError(card.describe())
    return card


def _no_card(registered_name: str, reason: str) -> RunWarning:
    name = outside_text(registered_name)
    if name and not reason.startswith(f"{name} "):
        reason = f"{name}: {reason}"
    return warning("no-card", reason=reason)


def _agreeing(cards: _Cards, order: Sequence[str]) -> Roster:
    """Return the members that share the task and schema of most sites that train."""
    names = [name for name in order if name in cards.members]
    names += sorted(cards.members.keys() - set(order))
    members = [cards.members[name] for name in names]
    left_out = list(cards.left_out)
    trainers = [member for member in members if member.card.role == "train"]
    if not trainers:
        reasons = "; ".join(map(sentence, left_out)) or "give at least one site the role 'train'"
        raise UserError(f"no site that trains answered: {reasons}")
    # The first of the commonest: one site's word must not leave out all others.
    counts = Counter(_SharedParts.of_card(member.card) for member in trainers)
    commonest = counts.most_common(1)[0][0]
    agreeing = []
    for member in members:
        if _SharedParts.of_card(member.card) == commonest:
            agreeing.append(member)
        else:
            left_out.append(_other_task(member, commonest.task))
    return Roster(members=tuple(agreeing), left_out=tuple(left_out))


def _name_is_taken(name: str) -> str:
    return f"the name {name!r} is taken by another node"


def _other_task(member: Member, task: Task) -> RunWarning:
    return warning("other-task", member.card.name, task=str(task))
