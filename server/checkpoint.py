"""The server's state after a round, on disk: what a run that was cut off goes on from.

One file holds all of it and is replaced whole, so a checkpoint is never between two rounds. The bank's samples lie
beside it: a round's are written before its checkpoint, and those of a round that has none yet are dropped and come
again. Nothing random has to be kept: every generator of the server is made where it is used, from the scenario's seed
or the round.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, PositiveInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.protocol.card import Card
from fl_dpbayes.protocol.record import Record
from fl_dpbayes.protocol.train import Digest, RunId
from server.atomic_file import replaced_atomically
from server.participation import ParticipationState
from server.roster import NO_NODE, Member, Roster
from server.run_record import RecordState

CHECKPOINT_FILE = "checkpoint.safetensors"
_KEY = "checkpoint"


class Checkpoint(Record):
    """Everything but the arrays.

    Attributes:
        scenario: digest of the scenario.
        run: our run id, by which the sites' ledgers know what they have answered.
        round: the last round that is complete; 0 before the first.
        cards: of the roster's members, in its order.
        left_out: the roster's sentences on nodes that did not join.
        ledger_heads: site -> last head seen.
        planned_sites: number of training sites when the run began, which the plan is made for.
        participation: who joined late, fell silent or has finished.
        record: rows, warnings and times so far.
    """

    # An epsilon without privacy is infinite.
    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="constants")

    format: Literal[1] = 1
    scenario: Digest
    run: RunId
    round: Annotated[int, Field(ge=0)]
    cards: tuple[Card, ...]
    left_out: tuple[str, ...]
    ledger_heads: dict[str, Digest]
    planned_sites: PositiveInt
    participation: ParticipationState
    record: RecordState

    def roster_of(self, answered: Roster, min_sites: int) -> Roster:
        """Return the run's roster at the nodes where its sites are found now.

        Args:
            answered: who answered when the run was taken up again.
            min_sites: how many training sites must be among them.

        Returns:
            The members as they were, with their present nodes; those that are missing have none, and may come back
            before any later round. Who was left out stays out, and who is new may join before the next round.

        Raises:
            UserError: if too few training sites of the run are there, or one declares something else than before.
        """
        present = {member.card.name: member for member in answered.members}
        members = []
        for card in self.cards:
            member = present.get(card.name)
            if member is None:
                members.append(Member(NO_NODE, card))
                continue
            if member.card != card:
                raise UserError(
                    f"site {card.name!r} declares something else than when this run began: put its site file back, or "
                    "start a new run"
                )
            members.append(Member(member.node_id, card))
        training = [member for member in members if member.card.role == "train"]
        missing = [member.card.name for member in training if not member.has_node]
        if len(training) - len(missing) < min_sites:
            reasons = "; ".join(answered.left_out)
            raise UserError(
                f"{len(training) - len(missing)} training sites of this run answer, resources.min_sites asks for "
                f"{min_sites}; missing are {', '.join(missing)}{f' ({reasons})' if reasons else ''}: nothing is lost; "
                "start them again, then resume once more"
            )
        strangers = {
            member.node_id for name, member in present.items() if name not in {card.name for card in self.cards}
        }
        return replace(answered, members=tuple(members), left_out=self.left_out, asked=answered.asked - strangers)


def write_checkpoint(folder: Path, checkpoint: Checkpoint, state: Arrays) -> None:
    """Replace a run's checkpoint.

    Args:
        folder: the run directory.
        checkpoint: what is known after a round.
        state: the server state after it, as the strategy hands it on.
    """
    # safetensors writes the memory behind a view, not the view.
    arrays = {name: np.ascontiguousarray(array) for name, array in state.items()}
    with replaced_atomically(folder / CHECKPOINT_FILE) as partial:
        save_file(arrays, partial, {_KEY: checkpoint.model_dump_json()})


def read_checkpoint(folder: Path) -> tuple[Checkpoint, Arrays] | None:
    """Read a run's checkpoint.

    Args:
        folder: the run directory.

    Returns:
        What was written last; None if the run never came to asking its sites for anything.

    Raises:
        UserError: if the file is damaged.
    """
    path = folder / CHECKPOINT_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            checkpoint = Checkpoint.model_validate_json((file.metadata() or {}).get(_KEY, ""))
            return checkpoint, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValidationError, OSError) as error:
        raise UserError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): the run cannot go on. Put back a copy of that "
            "file, or start anew with another --out: a new run spends privacy budget again; what was released is in "
            "privacy.csv and bank/"
        ) from None
