"""The server's state after a round, on disk: what a run that was cut off goes on from.

One file, no larger for more sites or rounds, is replaced whole, so a checkpoint is never between
two rounds; what grows stands in the journal and the bank, up to a mark in the checkpoint: a round's
are written before it, and those of a round that has none yet are dropped and come again. Nothing
random has to be kept: every generator of the server is made where it is used, from the scenario's
seed or the round.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, ValidationError

from fl_dpbayes.config import RunWarning
from fl_dpbayes.data import PARTITION_FILE, SCENARIO_FILE, SITES_FOLDER
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import (
    DAMAGED,
    Config,
    check_seal,
    read_arrays,
    replaced_atomically,
    seal,
    sealable,
    write_arrays,
)
from fl_dpbayes.files import journal as journals
from fl_dpbayes.posterior import PosteriorBank
from fl_dpbayes.protocol import Arrays, Digest, RunId, SiteCard
from fl_dpbayes.report import sentence
from server.participation import ParticipationState, least_sites
from server.roster import NO_NODE, Member, Roster

CHECKPOINT_FILE = "checkpoint.safetensors"
BANK_FOLDER = "bank"
BEGUN = "begun"
_KEY = "checkpoint"


class Checkpoint(Config):
    """Everything but the arrays.

    Attributes:
        format: Version of plans and this file. It is another wherever a plan is written otherwise:
            the sites' ledgers hold the digest of a run's plan.
        scenario: Digest of the scenario.
        run: The run's id, by which the sites' ledgers know what they have answered.
        round: The last round that is complete; 0 before the first.
        planned_sites: Number of training sites that began the run, which the plan is made for.
        participation: What is known of the training sites.
        journal: How far the journal belongs to these rounds; its entries hold the roster and the
            heads of the ledgers (`JournaledSites`).
        seconds: Stage -> seconds so far.
    """

    format: Literal[4] = 4
    scenario: Digest
    run: RunId
    round: Annotated[int, Field(ge=0)]
    planned_sites: PositiveInt
    participation: ParticipationState
    journal: journals.JournalMark
    seconds: dict[str, float]


class JournaledSites:
    """A journal's sites, by entries of what was new.

    Attributes:
        cards: Cards of the members, in the roster's order.
        left_out: Warnings of nodes that did not join, in the roster's order.
        heads: Site -> last head of its ledger.
    """

    def __init__(self, entries: Iterable[journals.Entry] = ()) -> None:
        """Read them back."""
        self.cards: list[SiteCard] = []
        self.left_out: list[RunWarning] = []
        self.heads: dict[str, str] = {}
        for entry in entries:
            self.cards += map(SiteCard.model_validate, entry.get("cards", ()))
            self.left_out += map(RunWarning.model_validate, entry.get("left_out", ()))
            self.heads |= entry.get("heads", {})

    def new_entries(self, roster: Roster, heads: Mapping[str, str]) -> list[journals.Entry]:
        """Return an entry for what is new since the last.

        Members and warnings of a roster stay where they are.
        """
        new_cards = [member.card for member in roster.members[len(self.cards) :]]
        new_left_out = roster.left_out[len(self.left_out) :]
        new_heads = {site: head for site, head in heads.items() if self.heads.get(site) != head}
        self.cards = [*self.cards, *new_cards]
        self.left_out = [*self.left_out, *new_left_out]
        self.heads = dict(heads)
        entry: dict[str, object] = {}
        if new_cards:
            entry["cards"] = [card.model_dump(mode="json") for card in new_cards]
        if new_left_out:
            entry["left_out"] = [warned.model_dump(mode="json") for warned in new_left_out]
        if new_heads:
            entry["heads"] = new_heads
        return [entry] if entry else []

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


def write_checkpoint(folder: Path, checkpoint: Checkpoint, state: Arrays) -> None:
    """Replace a run's checkpoint by what is known, and the server state, after a round.

    Raises:
        UserError: The file cannot be written.
    """
    with replaced_atomically(folder / CHECKPOINT_FILE) as partial:
        write_arrays(partial, state, sealable({_KEY: checkpoint.model_dump_json()}))
        seal(partial)


def read_checkpoint(folder: Path) -> tuple[Checkpoint, Arrays] | None:
    """Read what was written last.

    Returns:
        The checkpoint and the server state; None if the run never came to asking its sites.

    Raises:
        UserError: The file is damaged.
    """
    path = folder / CHECKPOINT_FILE
    if not path.is_file():
        return None
    try:
        check_seal(path)
        metadata, state = read_arrays(path)
        return Checkpoint.model_validate_json(metadata.get(_KEY, "")), state
    except DAMAGED as error:
        reason = str(error).splitlines()[0]
        if isinstance(error, ValidationError):
            reason = "an older version of fl-dpbayes wrote it"
        raise UserError(f"{path} cannot be read ({reason}): {journals.REMEDY}") from None


def read_run_journal(
    folder: Path, checkpoint: Checkpoint | None
) -> tuple[journals.Journal, Sequence[journals.Entry]]:
    """Read a run's journal as far as its checkpoint goes.

    Raises:
        UserError: The journal is damaged, or sites were asked and there is no checkpoint.
    """
    path = folder / journals.JOURNAL_FILE
    if checkpoint is not None:
        entries, mark = journals.read_journal(path, checkpoint.journal)
        return journals.Journal(path, mark), entries
    entries, _ = journals.read_journal(path, None)
    has_begun = any(BEGUN in entry for entry in entries)
    if has_begun or (folder / BANK_FOLDER).exists():
        raise UserError(
            f"{folder / CHECKPOINT_FILE} is missing, and the run has asked its sites: "
            f"{journals.REMEDY}"
        )
    # A run that has asked nothing begins its journal anew.
    return journals.Journal(path, journals.JournalMark()), entries


def prepared_files(folder: Path) -> list[journals.Entry]:
    """Return a journal's entries for what a run is made of before its first round."""
    paths = [
        folder / SCENARIO_FILE,
        folder / PARTITION_FILE,
        *sorted((folder / SITES_FOLDER).glob("*")),
    ]
    return [
        journals.file_entry(path.relative_to(folder).as_posix(), path)
        for path in paths
        if path.is_file()
    ]


def check_run_files(
    folder: Path, entries: Sequence[journals.Entry], checkpoint: Checkpoint
) -> None:
    """Compare a run's files with its journal, and drop those of a round that was cut off.

    Raises:
        UserError: Names a file that is not as it was.
    """
    in_bank = f"{BANK_FOLDER}/"
    listed = {
        name: entry
        for name, entry in journals.listed_files(entries).items()
        if not name.startswith(in_bank)
    }
    journals.check_files(folder, listed)
    journals.check_no_others(folder, f"{SITES_FOLDER}/*.toml", listed)
    PosteriorBank(folder / BANK_FOLDER).check(entries, checkpoint.round)
