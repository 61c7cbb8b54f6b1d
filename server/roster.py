"""Which nodes take part, and in which role: asked before the first round, and of every node that comes later."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from flwr.app import MessageType
from flwr.serverapp import Grid

from fl_dpbayes.config import RecordSchema, RunWarning, Scenario, Task, outside_text, warning
from fl_dpbayes.config.installed_code import installed_code
from fl_dpbayes.config.record_schema import record_schema
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config
from fl_dpbayes.protocol import Refusal, SiteCard
from fl_dpbayes.report import sentence
from server.messages import EXPIRED, RejectedError, read_reply, rejecting, request_message
from server.registered_nodes import allowed_nodes, registered_names

# Flower gives no node this id.
NO_NODE = 0
POLL_SECONDS = 0.2
NODE_SECONDS = 30.0
# How long a node that came later may take to say who it is: the others wait.
CARD_SECONDS = 60.0
SHARED = ("task", "data_schema")


@dataclass(frozen=True)
class Member:
    """A node and what its site says of itself.

    The node is `NO_NODE` until a site of a resumed run has come back.
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

    `left_out`: a warning of each node that did not join. `asked`: nodes that have answered; none is
    asked again. `silences`: node -> how often in a row it gave no answer. `away`: nodes of members
    that were not connected when the roster was last called. `first_nodes`: site -> the node that it
    had first, which keeps its name.
    """

    members: tuple[Member, ...]
    left_out: tuple[RunWarning, ...]
    asked: frozenset[int] = frozenset()
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
    """What is fixed for a run, begun by `planned_sites` training sites.

    `heads_file` keeps ledger heads across runs.
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


def connected_nodes(grid: Grid, expected: int, settled: float | None = None) -> list[int]:
    """Wait, for a time or `settled` seconds after the last one, for `expected` nodes.

    Return the ids, ascending.
    """
    deadline, seen = time.monotonic() + NODE_SECONDS, 0
    while True:
        node_ids = sorted(grid.get_node_ids())
        if settled is not None and len(node_ids) > seen:
            seen, deadline = len(node_ids), time.monotonic() + settled
        if len(node_ids) >= expected or time.monotonic() >= deadline:
            return node_ids
        time.sleep(POLL_SECONDS)


def call_roster(
    grid: Grid, node_ids: Sequence[int], scenario: Scenario, simulation_folder: str
) -> Roster:
    """Ask every node for its card.

    Members are in the scenario's order, others after these alphabetically.

    A node that did not answer, repeats a name, declares too few units or has another task than most
    is left out. Raises UserError if no site that trains answered.
    """
    timeout = scenario.resources.round_timeout
    members, left_out, answered = _cards(grid, node_ids, {}, scenario, simulation_folder, timeout)
    silences = dict.fromkeys(set(node_ids) - answered, 1)
    return replace(
        _agreeing(members, left_out, list(scenario.sites)),
        asked=frozenset(answered),
        silences=silences,
    )


def with_newcomers(grid: Grid, federation: Federation) -> Roster:
    """Ask the nodes that have come since for their cards, and let those that fit join.

    A node is asked until it answers, or has been silent too often. The order of the members so far
    stays, newcomers follow. A site keeps its node while that is gone; only where the rules allow it
    may another take its place, if its card says the same, until the first one is back. The roster
    is an equal one if nothing has changed.
    """
    roster, scenario = federation.roster, federation.scenario
    nodes_may_change = scenario.resources.nodes_may_change
    connected = set(
        allowed_nodes(grid, scenario.sites, only_registered=not federation.simulation_folder)
    )
    given_up = {
        node for node, count in roster.silences.items() if count >= scenario.resources.silent_rounds
    }
    newcomers = sorted(connected - roster.asked - given_up)
    members = {member.card.name: member for member in roster.members}
    first_nodes = {
        name: roster.first_nodes.get(name, member.node_id) for name, member in members.items()
    }
    taken = {}
    for name, member in members.items():
        if first_nodes[name] in connected:
            members[name] = replace(member, node_id=first_nodes[name])
        if members[name].node_id in connected:
            taken[name] = _taken(name)
        elif member.has_node and not nodes_may_change:
            gone = f"{name} has a node of its own, which is gone"
            taken[name] = f"{gone}: start that again, or set resources.nodes_may_change"
    timeout = min(CARD_SECONDS, scenario.resources.round_timeout)
    cards, left_out, answered = _cards(
        grid, newcomers, taken, scenario, federation.simulation_folder, timeout
    )
    joined = {}
    for name, member in cards.items():
        if name in members and member.card != members[name].card:
            left_out.append(warning("card-changed", name))
        elif name in members:
            members[name] = member
            first_nodes[name] = first_nodes[name] or member.node_id
        elif _shared(member.card) == _shared(roster.members[0].card):
            joined[name] = member
        else:
            left_out.append(_differs(member, roster.task))
    silent = {node: roster.silences.get(node, 0) + 1 for node in newcomers if node not in answered}
    return Roster(
        (*members.values(), *(joined[name] for name in sorted(joined))),
        (*roster.left_out, *left_out),
        roster.asked | answered,
        {**roster.silences, **silent},
        frozenset(member.node_id for member in members.values()) - connected - {NO_NODE},
        first_nodes,
    )


def check_enough(roster: Roster, scenario: Scenario) -> None:
    """Check before any site pays that as many joined as the run starts with.

    UserError says why others did not.
    """
    needed, joined = (
        scenario.resources.start_nodes or len(scenario.sites),
        {each.card.name for each in roster.members},
    )
    if len(joined) < needed:
        absent = ", ".join(name for name in scenario.sites if name not in joined)
        why = "; ".join(map(sentence, roster.left_out)) or "no answer came"
        raise UserError(
            f"{len(joined)} of {len(scenario.sites)} sites joined, the run starts with {needed}; "
            f"{absent} did not "
            f"({why}): mend that, or start a new run with lower resources.start_nodes; no "
            "privacy was spent"
        )


def _cards(
    grid: Grid,
    node_ids: Sequence[int],
    taken: Mapping[str, str],
    scenario: Scenario,
    simulation_folder: str,
    timeout: float,
) -> tuple[dict[str, Member], list[RunWarning], set[int]]:
    query = partial(
        request_message,
        None,
        None,
        message_type=MessageType.QUERY,
        round_number=0,
        time_to_live=timeout,
        simulation_folder=simulation_folder,
    )
    requests = [query(node_id=node_id) for node_id in node_ids]
    # A site whose expected batch q n is below one unit would take steps far longer than its share
    # of the evidence: they are scaled by 1/(q n), so a claim to one unit would be a licence to go
    # anywhere. 1/q of a decimal q may lie a rounding above a whole number.
    least_units = math.ceil(1 / scenario.privacy.sampling_rate - 1e-9)
    members, left_out, answered = dict[str, Member](), list[RunWarning](), set[int]()
    shared: dict[Config, Config] = {}
    waiting: dict[str, int] | None = None
    names, schema = registered_names(grid) if requests else {}, _scenarios_schema(scenario)
    for reply in grid.send_and_receive(requests, timeout=timeout):
        # Message ids exist only once the grid has pushed the requests.
        if waiting is None:
            waiting = {
                request.metadata.message_id: request.metadata.dst_node_id for request in requests
            }
        node_id = waiting.pop(reply.metadata.reply_to_message_id, None)
        if node_id is None or (reply.has_error() and reply.error.code in EXPIRED):
            continue
        answered.add(node_id)
        try:
            with rejecting():
                card = read_reply(reply, SiteCard, node_id)
            if isinstance(card, Refusal):
                raise ValueError(card.describe())
            # Thousands of sites share one task and one schema, in memory too.
            same = {
                name: shared.setdefault(value, value)
                for name, value in zip(SHARED, _shared(card), strict=True)
            }
            card = card.model_copy(update=same)
            if reason := taken.get(card.name, _taken(card.name) if card.name in members else ""):
                raise ValueError(reason)
            if names.get(node_id, card.name) != card.name:
                raise ValueError(
                    f"its site file calls it {card.name}: give it the name under which its "
                    "key is known"
                )
            reason = (
                _other_role(card, scenario)
                or _other_code(card, scenario.named_code)
                or _other_schema(card, schema)
            )
            if reason:
                raise ValueError(reason)
            if card.role == "train" and card.units < least_units:
                raise ValueError(
                    f"{card.name} declares {card.units} units, and at the plan's sampling rate a "
                    "site that trains "
                    f"needs {least_units}, so that a batch holds one on average"
                )
        except (RejectedError, ValueError) as error:
            name = outside_text(names.get(node_id, ""))
            whose = f"{name}: " if name and not str(error).startswith(f"{name} ") else ""
            left_out.append(warning("no-card", reason=f"{whose}{error}"))
            continue
        members[card.name] = Member(node_id, card)
    return members, left_out, answered


def _agreeing(
    members: dict[str, Member], left_out: list[RunWarning], order: Sequence[str]
) -> Roster:
    names = [*(name for name in order if name in members), *sorted(members.keys() - set(order))]
    ordered = [members[name] for name in names]
    trainers = [member for member in ordered if member.card.role == "train"]
    if not trainers:
        why = "; ".join(map(sentence, left_out)) or "give at least one site the role 'train'"
        raise UserError(f"no site that trains answered: {why}")
    # The first of the commonest: one site's word must not leave out all others.
    shared = Counter(_shared(member.card) for member in trainers).most_common(1)[0][0]
    left_out += [
        _differs(member, shared[0]) for member in ordered if _shared(member.card) != shared
    ]
    return Roster(
        tuple(member for member in ordered if _shared(member.card) == shared), tuple(left_out)
    )


def _shared(card: SiteCard) -> tuple[Task, RecordSchema]:
    return card.task, card.data_schema


def _scenarios_schema(scenario: Scenario) -> RecordSchema | None:
    try:
        return record_schema(scenario.data.source)
    except UserError:
        # An image folder that only the sites have: they must agree with each other.
        return None


def _other_role(card: SiteCard, scenario: Scenario) -> str:
    """Say that a site takes another role than the scenario gives it; an empty text if not, or if that names it not."""
    planned = scenario.sites.get(card.name)
    if planned is None or planned.role == card.role:
        return ""
    return (
        f"{card.name} takes the role {card.role!r}, the scenario says {planned.role!r}: make "
        "them the same"
    )


def _other_schema(card: SiteCard, schema: RecordSchema | None) -> str:
    """Say in what a site's records are not what the scenario says; an empty text if they are."""
    parts = schema.differences(card.data_schema) if schema is not None else []
    said = (
        f"{card.name} has other {' and '.join(parts)} than the scenario (names and their "
        "order, centers, scales, "
    )
    remedy = (
        "missing, class names): take over the source of the coordinator's scenario in its site file"
    )
    return said + remedy if parts else ""


def _other_code(card: SiteCard, names: Sequence[str]) -> str:
    """Say why a site would not run the code that the server runs; an empty text if it would."""
    theirs = {code.name: code for code in card.code}
    for name in names:
        ours, found = installed_code(name), theirs.get(name)
        if ours is None:
            # A module object of this process, which only its own simulated sites can have.
            continue
        if found is None:
            said = f"{card.name} does not allow {name!r} (policy.allowed_code of its site file)"
            return f"{said}, or has not installed it"
        if found.digest != ours.digest:
            said = (
                f"{card.name} has other code for {name!r}: {found.described()}, the server "
                f"{ours.described()}"
            )
            return f"{said}: install the same version at both"
    return ""


def _taken(name: str) -> str:
    return f"the name {name!r} is taken by another node"


def _differs(member: Member, task: Task) -> RunWarning:
    return warning("other-task", member.card.name, task=str(task))
