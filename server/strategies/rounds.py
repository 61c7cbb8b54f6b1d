"""The training rounds, which all rules share: requests, replies and what is kept of them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from statistics import fmean

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_dpbayes.config import backbone_folder, site_plan, warning
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest
from fl_dpbayes.models import build_model, to_vector
from fl_dpbayes.posterior import PosteriorBank, weigh_sites
from fl_dpbayes.protocol import (
    Arrays,
    TrainReply,
    TrainRequest,
    arrays_digest,
    prefixed,
    without_prefix,
)
from fl_dpbayes.samplers import initial_vectors, state_arrays
from server.check_reply import (
    NO_SAMPLES,
    CheckedReply,
    check_disk_space,
    check_displacement,
    check_reply_size,
    check_train_reply,
)
from server.checkpoint import (
    Checkpoint,
    KnownSites,
    RoundEntry,
    known_sites,
    prepared_files,
    save_round,
)
from server.exchange import Exchange
from server.ledger_heads import LedgerHeads
from server.messages import encoded
from server.participation import Participation, least_sites
from server.roster import Federation, Member, with_newcomers
from server.round_outcomes import Answer
from server.run_record import RunRecord
from server.strategies.moves import SketchedMoves

# What Flower's own result says of a round's sites.
POOLED_METRICS: dict[str, Callable[[list[float]], float]] = {
    "units": sum,
    "steps": max,
    "epsilon": max,
    "temperature": fmean,
}


@dataclass(frozen=True)
class _EncodedStart:
    """A start state, encoded once for all sites that it is sent to.

    Attributes:
        start: The state.
        digest: Its digest.
        arrays: Its arrays, as a message carries them.
    """

    start: Arrays
    digest: str
    arrays: ArrayRecord


class TrainingRounds(Strategy):
    """The rounds of every rule: sites join, those that train are asked, and replies are taken.

    Attributes:
        federation: What is fixed for the run, and the roster of the present round.
        record: What the run did.
        bank: Samples and states that the sites released.
        site_weights: Weight of each training site.
        plan: The plan that every training request carries.
        participation: Who trains in which round.
        heads: Last head of each site's ledger.
        done_rounds: Rounds that an earlier process completed.
        state: The server's state of the present round.
    """

    state: Arrays
    _exchange: Exchange[TrainRequest, TrainReply]

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        self.federation = federation
        self.record = record
        self.bank = PosteriorBank(record.store)
        self.site_weights: Mapping[str, float] = self._weigh_all_sites()
        self.plan = site_plan(federation.scenario, federation.planned_sites)
        check_reply_size(self.plan, federation)
        self.participation = Participation(federation.scenario.resources.silent_rounds)
        self.heads = LedgerHeads(federation.heads_file)
        self.done_rounds = 0
        self._scenario_digest = digest(federation.scenario)
        self._known_sites = KnownSites()

    # What a rule may do otherwise.

    def start_arrays(self, site: str, chain: int, arrays: Arrays) -> Arrays:
        """Return where a site's chain goes on this round: the server state, which is broadcast."""
        return arrays

    def move_start(self, site: str, server_round: int) -> Arrays:
        """Return from where a site's move is measured: the server state of the round."""
        return self.state

    def next_state(
        self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]
    ) -> Arrays:
        """Return the server state after a round; here as it was.

        Args:
            round_number: The round, from 1.
            arrays: The server state of the round.
            replies: Site -> its reply, whose samples and last state are in the bank.
        """
        return arrays

    # Chains.

    def chain_of(self, round_number: int) -> int:
        """Return the number, from 0, of the chain that a round belongs to."""
        return (round_number - 1) // self.plan.rounds

    def initial_state(self, chain: int) -> Arrays:
        """Return where every site's chain of this number starts."""
        scenario = self.federation.scenario
        task = self.federation.roster.task
        module = build_model(scenario.model, task, scenario.seed + chain, backbone_folder(None))
        return state_arrays(initial_vectors(scenario.sampler, to_vector(module)), module)

    def start_of(self, site: str, server_round: int) -> Arrays:
        """Return the state that a site's request of the present round carries."""
        if self._starts_chain(server_round):
            return self.state
        return self.start_arrays(site, self.chain_of(server_round), self.state)

    def _starts_chain(self, server_round: int) -> bool:
        return (server_round - 1) % self.plan.rounds == 0

    # A round.

    def summary(self) -> None:
        """Log what is about to run."""
        log(
            INFO,
            "\t└── %s training sites, %s of %s steps per round",
            len(self.federation.roster.training),
            self.plan.steps_per_round,
            self.plan.total_steps,
        )

    def begin(self, stage: str, server_round: int, members: Iterable[Member]) -> None:
        """Begin a stage of the run in which these members are asked."""
        names = [member.card.name for member in members]
        self.record.begin(stage, round=server_round, rounds=self.plan.total_rounds, sites=names)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let sites that have come since join, then build a request for each that goes on."""
        if server_round <= self.done_rounds:
            return []
        if server_round > 1:
            self._admit(server_round, grid)
        if self._starts_chain(server_round):
            self.state = self.initial_state(self.chain_of(server_round))
        else:
            self.state = {name: array.numpy() for name, array in arrays.items()}
        members = self.participation.members_to_train(self.federation.roster)
        check_disk_space(self.plan, self.federation, len(members))
        self._exchange = Exchange(
            federation=self.federation,
            heads=self.heads,
            record=self.record,
            message_type=MessageType.TRAIN,
            round_number=server_round,
            reply_type=TrainReply,
            stage=f"round {server_round}",
        )
        self.begin("train", server_round, members)
        return self._requests(server_round, members)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and bank the replies, let the rule form the next state, and store the round."""
        if server_round <= self.done_rounds:
            return None, None
        answers = self._take_replies(server_round, replies)
        if self.federation.simulation_folder and not all(answer.usable for answer in answers):
            # Simulated sites have this disk for their ledgers: what failed because it is full comes
            # again on resume.
            check_disk_space(self.plan, self.federation, len(answers))
        self.record.add_round(server_round, answers, bytes_down=self._exchange.bytes_down)
        self.record.warn(*self.participation.count(answers))

        checked = {answer.site: answer.checked for answer in answers if answer.checked is not None}
        unfinished = [
            member
            for member in self.federation.roster.training
            if not self.participation.has_finished(member.card.name)
        ]
        if not checked and not unfinished:
            log(
                INFO,
                "no training site goes on: no further step is taken, and on resume this round is "
                "asked for again",
            )
            return None, None
        if unfinished:
            self._check_enough_replies(server_round, answers, len(unfinished))
        if checked:
            self.state = self.next_state(server_round, self.state, checked)
        self.save(server_round, self.state)
        metrics = _pooled_metrics([reply.metrics for reply in checked.values()])
        counts = dict(self.record.round_rows[-1]) if self.record.round_rows else {}
        return _array_record(self.state), MetricRecord({**counts, **metrics})

    def _requests(self, server_round: int, members: Iterable[Member]) -> Iterator[Message]:
        encoding: _EncodedStart | None = None
        for member in members:
            site = member.card.name
            start = self.start_of(site, server_round)
            if encoding is None or encoding.start is not start:
                # A state that is broadcast is encoded once, and in memory once.
                encoding = _EncodedStart(
                    start=start,
                    digest=arrays_digest(start),
                    arrays=encoded(prefixed("start", start)),
                )
            request = TrainRequest(
                **self._exchange.fields(member),
                plan=self.plan,
                first_step=self.participation.first_step(self.plan, site, server_round),
                steps=self.plan.steps_per_round,
                start=encoding.digest,
            )
            yield self._exchange.request(request, encoding.arrays, member)

    def _take_replies(
        self, server_round: int, replies: Iterable[Message]
    ) -> list[Answer[CheckedReply]]:
        """Check each reply and put its samples into the bank; return the answers without them."""
        answers = []
        moves = self._moves()
        for answer in self._exchange.answers(replies, check=self._check):
            if answer.checked is not None:
                self._bank_reply(server_round, answer.site, answer.checked, moves)
                # One site's arrays in memory at a time.
                bare_reply = replace(answer.checked, samples=NO_SAMPLES, last={})
                answer = replace(answer, checked=bare_reply)
            answers.append(answer)
            privacy = answer.checked.privacy if answer.checked else None
            self.record.events.write(
                "site",
                round=server_round,
                site=answer.site,
                status=answer.status,
                detail=answer.detail,
                epsilon=privacy.epsilon if privacy else None,
                budget=privacy.budget if privacy else None,
            )
        moves.store(server_round)
        return answers

    def _check(
        self, message: Message, reply: TrainReply, request: TrainRequest, member: Member
    ) -> CheckedReply:
        site = member.card.name
        checked = check_train_reply(
            message=message,
            reply=reply,
            request=request,
            card=member.card,
            shapes=self.federation.shapes,
            previous=self.record.statements.get(site),
        )
        start = self.start_of(site, request.round)
        check_displacement(checked, request=request, units=member.card.units, start=start)
        return checked

    def _bank_reply(
        self, server_round: int, site: str, reply: CheckedReply, moves: SketchedMoves
    ) -> None:
        chain = self.chain_of(server_round)
        self.bank.add(site, server_round, chain, reply.samples, reply.last)
        moves.add(
            site=site,
            start=without_prefix("parameters", self.move_start(site, server_round)),
            last=without_prefix("parameters", reply.last),
        )

    def _check_enough_replies(
        self, server_round: int, answers: Sequence[Answer[CheckedReply]], unfinished: int
    ) -> None:
        """Raise UserError if fewer sites gave a usable reply than a round needs."""
        usable = sum(answer.checked is not None for answer in answers)
        needed = least_sites(self.federation.scenario.resources.min_sites, unfinished)
        if usable >= needed:
            return
        problems = "; ".join(
            f"{answer.site}: {answer.status} {answer.detail}".strip()
            for answer in answers
            if not answer.usable
        )
        raise UserError(
            f"round {server_round}: {usable} training sites gave a usable reply, "
            f"resources.min_sites asks for {needed} of the {unfinished} with steps left: "
            f"{problems or 'no site is left'}"
        )

    # Who takes part, and with which weight.

    def _admit(self, server_round: int, grid: Grid) -> None:
        before = self.federation.roster
        roster = with_newcomers(grid, self.federation)
        if roster == before:
            return
        self.federation = replace(self.federation, roster=roster)
        self.record.warn(*self.participation.admit(server_round, before=before, after=roster))
        self.site_weights = self._weigh_all_sites()
        planned = self.federation.planned_sites
        sites = len(self.site_weights)
        if sites > planned and self.federation.scenario.aggregation.prior_share(2) < 1:
            self.record.warn(warning("prior-repeated", planned=planned, times=sites / planned))

    def weights_among(self, sites: Collection[str]) -> Mapping[str, float]:
        """Weigh the training sites that sent something, and warn of those whose weight is cut.

        None has more of the weight than the rule lets one of so many have. Shares among all would
        be more among few: a site that the bound holds to 1.2 / 20 may be beside two small ones
        alone.
        """
        units = self.federation.roster.units
        if set(sites) == set(units):
            return self.site_weights
        weights, warnings = weigh_sites(
            self.federation.scenario.aggregation, {site: units[site] for site in sites}
        )
        # A single site is tried only to see whether the rule can use it.
        if len(weights) > 1:
            self.record.warn(*warnings)
        return weights

    def _weigh_all_sites(self) -> Mapping[str, float]:
        weights, warnings = weigh_sites(
            self.federation.scenario.aggregation, self.federation.roster.units
        )
        self.record.warn(*warnings)
        return weights

    def distances(self) -> dict[str, float]:
        """Say how many times as far from the median site each site is as the others are.

        All rounds count together. Whatever the rule, a site's move is from the server's state to
        where its chain ended: for rules on independent chains the first one of these.
        """
        return self._moves().relative_distances(self.plan, self.federation.roster.units)

    def _moves(self) -> SketchedMoves:
        simulated = bool(self.federation.simulation_folder)
        return SketchedMoves(self.bank, self.federation.scenario.seed if simulated else None)

    # Checkpoints.

    def save(self, round_number: int, state: Arrays) -> None:
        """Put a round that is complete into the run's store; 0 before the first."""
        federation = self.federation
        checkpoint = Checkpoint(
            scenario=self._scenario_digest,
            run=federation.run,
            round=round_number,
            planned_sites=federation.planned_sites,
            participation=self.participation.state(),
            seconds=self.record.seconds_so_far(),
        )
        entry = self.record.new_entry(checkpoint)
        entry = self._known_sites.completed(entry, federation.roster, self.heads.last)
        files = {}
        if round_number == 0:
            files["files"] = prepared_files(federation.run_folder)
        save_round(self.record.store, entry, state, **files)
        self.heads.keep()

    def restore(self, rounds: Sequence[RoundEntry]) -> None:
        """Go on after the last of a run's rounds, whose state comes as initial arrays.

        Args:
            rounds: What the run's store holds of them; they are passed over.
        """
        checkpoint = rounds[-1].checkpoint
        self.done_rounds = checkpoint.round
        self._known_sites = known_sites(rounds)
        self.heads.restore(self._known_sites.heads)
        participation = checkpoint.participation
        if not self.federation.simulation_folder:
            # At real sites a steward may have changed the policy since; a site that refuses again
            # is charged nothing.
            participation = participation.model_copy(update={"finished": ()})
        self.participation.restore(participation)
        self.record.restore(rounds)
        for member in self.federation.roster.members:
            if not member.has_node:
                self.record.warn(warning("missing", member.card.name))


def _pooled_metrics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if not metrics:
        return {}
    return {
        name: pool([of_site[name] for of_site in metrics]) for name, pool in POOLED_METRICS.items()
    }


def _array_record(state: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in state.items()})
