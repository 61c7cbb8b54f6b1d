"""What a run's store holds of each round: all that a run which was cut off goes on from.

A round is one entry of the store, so a run is never between two. Nothing random has to be kept:
every generator of the server is made where it is used, from the scenario's seed or the round.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, TypeAdapter, ValidationError

from fl_dpbayes.config import RunWarning
from fl_dpbayes.data import SCENARIO_FILE, SITES_FOLDER
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import REMEDY, Config, RunStore, file_sha256
from fl_dpbayes.protocol import Arrays, Digest, RunId, SiteCard
from fl_dpbayes.report import sentence
from server.participation import ParticipationState, least_sites
from server.roster import NO_NODE, Member, Roster
from server.round_outcomes import RoundOutcome

# The store's name for the server's state; no site can be called so.
SERVER = "server's checkpoint"
ROUND = "round"
# SHA-256 of the files that a run is made of, by their path in its folder; no other file is read.
_FILES = TypeAdapter(
    dict[
        Annotated[str, Field(pattern=rf"^({re.escape(SCENARIO_FILE)}|{SITES_FOLDER}/[^/\x00]+)\z")],
        Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")],
    ]
)


class Checkpoint(Config):
    """What is known after a round, beside the server's state.

    Attributes:
        format: Version of plans and of this record. It is another wherever a plan is written
            otherwise: the sites' ledgers hold the digest of a run's plan.
        scenario: Digest of the scenario.
        run: The run's id, by which the sites' ledgers know what they have answered.
        round: The last round that is complete; 0 before the first.
        planned_sites: Number of training sites that began the run, which the plan is made for.
        participation: What is known of the training sites.
        seconds: Stage -> seconds so far.
    """

    format: Literal[5] = 5
    scenario: Digest
    run: RunId
    round: Annotated[int, Field(ge=0)]
    planned_sites: PositiveInt
    participation: ParticipationState
    seconds: dict[str, float]


class RoundEntry(Config):
    """What a round adds to a run's store.

    Attributes:
        checkpoint: What is known after it.
        outcome: How the sites answered in it.
        warnings: Those that are new.
        resumed: The round after which the run was taken up again before this one.
        cards: Cards of new members, in the roster's order.
        left_out: Warnings of further nodes that did not join, in the roster's order.
        heads: Site -> last head of its ledger, where it has moved.
    """

    checkpoint: Checkpoint
    outcome: RoundOutcome | None = None
    warnings: tuple[RunWarning, ...] = ()
    resumed: int | None = None
    cards: tuple[SiteCard, ...] = ()
    left_out: tuple[RunWarning, ...] = ()
    heads: dict[str, Digest] = Field(default_factory=dict)


@dataclass
class KnownSites:
    """What the entries of a run say of its sites.

    Attributes:
        cards: Cards of the members, in the roster's order.
        left_out: Warnings of nodes that did not join, in the roster's order.
        heads: Site -> last head of its ledger.
    """

    cards: list[SiteCard] = field(default_factory=list)
    left_out: list[RunWarning] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)

    def add(self, entry: RoundEntry) -> None:
        """Add what an entry says."""
        self.cards += entry.cards
        self.left_out += entry.left_out
        self.heads |= entry.heads

    def completed(self, entry: RoundEntry, roster: Roster, heads: Mapping[str, str]) -> RoundEntry:
        """Return an entry with what is new of the sites, and add it.

        Members and warnings of a roster stay where they are.
        """
        new_heads = {site: head for site, head in heads.items() if self.heads.get(site) != head}
        entry = entry.model_copy(
            update={
                "cards": tuple(member.card for member in roster.members[len(self.cards) :]),
                "left_out": tuple(roster.left_out[len(self.left_out) :]),
                "heads": new_heads,
            }
        )
        self.add(entry)
        return entry

    def roster_of(
        self, present: Roster, min_sites: int | None, finished: Collection[str] = ()
    ) -> Roster:
        """Return the run's roster at the nodes that answered when it was taken up again.

        The members are as they were; those that are missing have no node, and may come back before
        any later round. Who was left out stays out, and who is new may join before the next round.

        Args:
            present: The nodes that answered.
            min_sites: As the scenario gives it (`least_sites`).
            finished: Sites that have no steps left.

        Raises:
            UserError: Fewer training sites of the run are there than a round needs, or one declares
                something else.
        """
        present_members = {member.card.name: member for member in present.members}
        members = tuple(
            present_members.pop(card.name, Member(NO_NODE, card)) for card in self.cards
        )
        for member, card in zip(members, self.cards, strict=True):
            if member.card != card:
                raise UserError(
                    f"site {card.name!r} declares something else than when this run began: put "
                    "its site file back, or start a new run"
                )
        training = [member for member in members if member.card.role == "train"]
        _check_enough_answer(training, min_sites, finished, present.left_out)
        new_nodes = {member.node_id for member in present_members.values()}
        return replace(
            present,
            members=members,
            left_out=tuple(self.left_out),
            answered=present.answered - new_nodes,
        )


def _check_enough_answer(
    training: Sequence[Member],
    min_sites: int | None,
    finished: Collection[str],
    left_out: Sequence[RunWarning],
) -> None:
    """Check that as many training sites of a resumed run answer as a round needs."""
    missing = [member.card.name for member in training if not member.has_node]
    unfinished = [member for member in training if member.card.name not in finished]
    needed = least_sites(min_sites, len(unfinished) or len(training))
    answering = len(training) - len(missing)
    if answering >= needed:
        return
    reasons = "; ".join(map(sentence, left_out))
    raise UserError(
        f"{answering} training sites of this run answer, resources.min_sites asks for {needed}; "
        f"missing are {', '.join(missing)}{f' ({reasons})' if reasons else ''}: nothing is lost; "
        "start them again, then resume once more"
    )


def read_rounds(store: RunStore) -> list[RoundEntry]:
    """Return what a run's store holds of its rounds, that before the first one included.

    Returns:
        One entry a round; none if the run never came to asking its sites.

    Raises:
        UserError: An older version wrote one, or a warning in one cannot be said.
    """
    try:
        rounds = [RoundEntry.model_validate(entry) for entry in store.values(ROUND)]
    except ValidationError:
        raise UserError(
            f"{store.path} cannot be read (an older version of fl-dpbayes wrote it): {REMEDY}"
        ) from None
    with store.reading():
        for entry in rounds:
            for warned in (*entry.warnings, *entry.left_out):
                if not sentence(warned).replace("\n", " ").isprintable():
                    raise ValueError("a warning is no plain text")
    return rounds


def known_sites(rounds: Sequence[RoundEntry]) -> KnownSites:
    """Return what a run's entries say of its sites."""
    known = KnownSites()
    for entry in rounds:
        known.add(entry)
    return known


def save_round(store: RunStore, entry: RoundEntry, state: Arrays, **content: object) -> None:
    """Put a round and the server's state after it on the disk.

    Args:
        store: The run's store, which has the round's samples.
        entry: What the round adds.
        state: The server's state.
        **content: What else the store's entry says, by key.

    Raises:
        UserError: They cannot be written.
    """
    store.replace_state(SERVER, 0, entry.checkpoint.round, state)
    store.append(**{ROUND: entry.model_dump(mode="json")}, **content)


def server_state(store: RunStore) -> Arrays:
    """Return the server's state after the last round.

    Raises:
        UserError: It is not there, or damaged.
    """
    with store.reading():
        stored = store.state(SERVER, 0)
        if stored is None:
            raise ValueError("it holds no state of the server")
    return stored.read()


def prepared_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that a run is made of, by its path in the run directory."""
    paths = [folder / SCENARIO_FILE, *sorted((folder / SITES_FOLDER).glob("*"))]
    return {
        path.relative_to(folder).as_posix(): file_sha256(path) for path in paths if path.is_file()
    }


def check_run_files(store: RunStore, only: str | None = None) -> None:
    """Compare the files that a run is made of with what its store says of them.

    Args:
        store: The run's store.
        only: The one file to be compared, if the store says something of it; None: all of them, and
            no other site file may be there.

    Raises:
        UserError: Names a file that is not as it was, or too many.
    """
    folder = store.path.parent
    with store.reading():
        digests = _FILES.validate_python(store.latest("files") or {})
    for name, stored in digests.items():
        if only in (None, name):
            _check_file(folder / name, stored)
    if only is not None:
        return
    for path in sorted((folder / SITES_FOLDER).glob("*.toml")):
        if path.relative_to(folder).as_posix() not in digests:
            raise UserError(f"{path} is no file of this run: move it out of the folder, then go on")


def _check_file(path: Path, stored: str) -> None:
    # What is no plain file, such as a pipe, may have no end.
    if not path.is_file():
        raise UserError(f"{path} is missing: {REMEDY}")
    try:
        if file_sha256(path) != stored:
            raise UserError(f"{path} is not as it was written (its SHA-256 differs): {REMEDY}")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {REMEDY}") from None
