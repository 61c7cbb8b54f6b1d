"""A round's second half, which all rules share: what sites answer is checked and banked, and the round kept on disk."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import INFO
from statistics import fmean

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.common import log

from fl_dpbayes.config.base import digest
from fl_dpbayes.config.errors import UserError, warning
from fl_dpbayes.config.files.journal import Entry
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from server.check_reply import CheckedReply, check_disk_space, check_displacement, check_train_reply
from server.checkpoint import Checkpoint, write_checkpoint
from server.exchange import Answer
from server.roster import Member
from server.strategies.requests import RoundRequests

# What Flower's own result says of a round's sites.
RESULT: dict[str, Callable[[list[int | float]], int | float]] = {
    "units": sum, "steps": max, "epsilon": max, "temperature": fmean,
}  # fmt: skip

NOTHING = PosteriorSamples(arrays={}, weights=np.zeros(0), temperatures=np.zeros(0))


class ReplyIntake(RoundRequests):
    """Takes a round's replies one by one; a rule says what the server makes of those that are used."""

    def next_state(self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]) -> Arrays:
        """Return the server state after a round: as it was, unless the rule makes something of the replies by site.

        Their arrays are in the bank.
        """
        return arrays

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and bank the replies one by one, let the rule form the next state, and write a checkpoint."""
        if server_round <= self.done_rounds:
            return None, None
        answers = self._banked(server_round, replies)
        if self.federation.simulation_folder and not all(answer.usable for answer in answers):
            # Simulated sites have this disk for their ledgers: what failed because it is full comes again on resume.
            check_disk_space(self.plan, self.federation, len(answers))
        self.record.add_round(server_round, answers, bytes_down=self.exchange.bytes_down)
        self.record.warn(*self.participation.count(answers))
        over = all(self.participation.has_finished(member.card.name) for member in self.federation.roster.training)
        if not answers and over:
            log(INFO, "every training site has spent its budget: no further step is taken")
            return None, None
        good = {answer.site: answer.checked for answer in answers if answer.checked is not None}
        minimum = self.federation.scenario.resources.min_sites
        if len(good) < minimum and not over:
            problems = "; ".join(f"{bad.site}: {bad.status} {bad.detail}".strip() for bad in answers if not bad.usable)
            raise UserError(
                f"round {server_round}: {len(good)} training sites gave a usable reply, resources.min_sites asks for "
                f"{minimum}: {problems or 'no site is left'}"
            )
        if good:
            self.state = self.next_state(server_round, self.state, good)
        self.save(server_round, self.state)
        state = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in self.state.items()})
        said = [checked.metrics for checked in good.values()]
        metrics = {name: how([one[name] for one in said]) for name, how in RESULT.items() if said}
        return state, MetricRecord({**(self.record.round_rows[-1] if self.record.round_rows else {}), **metrics})

    def save(self, round_number: int, state: Arrays) -> None:
        """Write the checkpoint of a round that is complete; 0 before the first."""
        federation = self.federation
        checkpoint = Checkpoint(
            scenario=digest(federation.scenario), run=federation.run, round=round_number,
            cards=tuple(member.card for member in federation.roster.members), left_out=federation.roster.left_out,
            ledger_heads=self.heads.seen, planned_sites=federation.planned_sites,
            participation=self.participation.state(),
            journal=self.record.journal.append([*self.bank.new_entries(), *self.record.new_entries()]),
            seconds=self.record.seconds_so_far(),
        )  # fmt: skip
        write_checkpoint(federation.run_folder, checkpoint, state)
        self.heads.keep()
        self.bank.keep_through(round_number)

    def restore(self, checkpoint: Checkpoint, entries: Iterable[Entry]) -> None:
        """Go on after a checkpoint of this run: its rounds are passed over, and its state comes as initial arrays."""
        self.done_rounds = checkpoint.round
        self.heads.restore(checkpoint.ledger_heads)
        self.participation.restore(checkpoint.participation)
        self.record.restore(entries, checkpoint.seconds, checkpoint.round)
        missing = [member.card.name for member in self.federation.roster.members if not member.has_node]
        self.record.warn(*(warning("missing", name) for name in missing))

    def _banked(self, server_round: int, replies: Iterable[Message]) -> list[Answer[CheckedReply]]:
        """Check each reply and put its samples into the bank; return the answers without them."""
        answers = []
        for answer in self.exchange.answers(
            replies, self._checked, lambda: self.record.warn(warning("dropped", stage=f"round {server_round}"))
        ):
            checked = answer.checked
            if checked is not None:
                self.bank.add(answer.site, server_round, self.chain_of(server_round), checked.samples, checked.last)
                answer = replace(answer, checked=replace(checked, samples=NOTHING, last={}))
            answers.append(answer)
            said = {key: getattr(answer, key) for key in ("site", "status", "detail")}
            spent = {key: getattr(checked.privacy, key) if checked else None for key in ("epsilon", "budget")}
            self.record.events.write("site", round=server_round, **said, **spent)
            # One site's arrays in memory at a time.
            del checked
        return answers

    def _checked(self, reply: Message, record: TrainReply, request: TrainRequest, member: Member) -> CheckedReply:
        previous = self.record.statements.get(member.card.name)
        checked = check_train_reply(reply, record, request, member.card, self.federation.shapes, previous)
        check_displacement(checked, request, member.card.units, self.start_of(member.card.name, request.round))
        return checked
