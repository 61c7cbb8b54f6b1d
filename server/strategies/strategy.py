"""The strategy that all aggregation rules share: ask training sites, check and bank samples, evaluate at the end."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import INFO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_dpbayes.config.base import digest
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.journal import Entry
from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.scenario import site_plan
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.samples import AnySamples
from fl_dpbayes.posterior.site_weights import weigh_sites
from fl_dpbayes.protocol.arrays import Arrays, prefixed
from fl_dpbayes.protocol.cavity import CAVITY
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import arrays_digest
from fl_dpbayes.samplers.state_vectors import initial_slots, state_arrays
from server.admission import admission_rules
from server.check_reply import CheckedReply, check_train_reply
from server.check_size import check_reply_size, check_room
from server.checkpoint import Checkpoint, write_checkpoint
from server.evaluation import Evaluation
from server.evaluation_stage import EvaluationStage, most_evaluated
from server.exchange import Exchange
from server.fixed import Federation
from server.ledger_heads import keep_heads, read_heads
from server.messages import DROPPED, EXPIRED, array_bytes, encoded, read_reply
from server.participation import Participation
from server.progress import EventLog
from server.reachable import check_reachable
from server.recalibration import Recalibration, recalibrate_sites
from server.rejection import RejectedError, rejecting
from server.roster import Member, with_newcomers
from server.run_record import RunRecord, SiteOutcome
from server.stored_run import BANK_FOLDER

FINAL_REFUSALS = frozenset(
    {
        RefusalCode.BUDGET_EXHAUSTED,
        RefusalCode.POLICY_DENIED,
        RefusalCode.ROLE_DENIED,
        RefusalCode.PLAN_CHANGED,
        RefusalCode.NOT_REPEATABLE,
    }
)

# How long a node that came later may take to say who it is: the others wait.
CARD_SECONDS = 60.0


class PosteriorStrategy(Strategy):
    """Runs the sites' private chains and keeps their samples; a rule says how they become one posterior.

    A rule says where the sites' chains start (`start_arrays`), what the server makes of a round (`next_state`), and what
    the posterior and the point predictor are (`posterior`, `last`).
    """

    def __init__(self, federation: Federation, record: RunRecord, events: EventLog) -> None:
        self.federation = federation
        self.record = record
        self.events = events
        self.bank = PosteriorBank(federation.run_folder / BANK_FOLDER)
        self.site_weights: Mapping[str, float] = self._weights()
        self.plan: TrainingPlan = site_plan(federation.scenario, federation.planned_sites)
        check_reply_size(self.plan, federation)
        self._participation = Participation(federation.scenario.resources.silent_rounds)
        self._earlier_heads = read_heads(federation.heads_file)
        self._ledger_heads: dict[str, str] = dict(self._earlier_heads)
        self._done_rounds = 0
        self.recalibration: Recalibration | None = None
        self._evaluation_stage: EvaluationStage | None = None

    @abstractmethod
    def start_arrays(self, site: str, chain: int, arrays: Arrays) -> Arrays:
        """Return where a site's chain goes on this round, given the current server state."""

    def cavity(self, site: str) -> Arrays:
        """Return the Gaussian that a site's next request carries as its prior; none unless the plan asks for it."""
        return {}

    @abstractmethod
    def next_state(self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]) -> Arrays:
        """Return the server state after a round."""

    @abstractmethod
    def posterior(self) -> AnySamples | None:
        """Return the global posterior's weighted samples so far, or None before the first."""

    @abstractmethod
    def last(self) -> AnySamples | None:
        """Return the point predictor: the last states, or None before the first."""

    def chain_names(self) -> list[str]:
        """Name the chains whose states are the posterior's samples, as the bank knows them."""
        return [member.card.name for member in self.federation.roster.training]

    def chain_of(self, round_number: int) -> int:
        """Return the number, from 0, of the chain that a round belongs to."""
        return (round_number - 1) // self.plan.rounds

    def initial_state(self, chain: int) -> Arrays:
        """Return where every site's chain of this number starts."""
        scenario = self.federation.scenario
        module = build_model(scenario.model, self.federation.roster.task, scenario.seed + chain)
        return state_arrays(initial_slots(scenario.sampler, to_vector(module)), module)

    def save(self, round_number: int, state: Arrays) -> None:
        """Write the checkpoint of a round that is complete; 0 before the first."""
        federation = self.federation
        checkpoint = Checkpoint(
            scenario=digest(federation.scenario),
            run=federation.run,
            round=round_number,
            cards=tuple(member.card for member in federation.roster.members),
            left_out=federation.roster.left_out,
            ledger_heads=self._ledger_heads,
            planned_sites=federation.planned_sites,
            participation=self._participation.state(),
            journal=self.record.journal.append([*self.bank.new_entries(), *self.record.new_entries()]),
            seconds=self.record.seconds_so_far(),
        )
        write_checkpoint(federation.run_folder, checkpoint, state)
        self._keep_heads()
        self.bank.keep_through(round_number)

    def restore(self, checkpoint: Checkpoint, entries: Iterable[Entry]) -> None:
        """Go on after a checkpoint of this run: its rounds are passed over, and its state comes as initial arrays."""
        self._done_rounds = checkpoint.round
        # Another run may have asked the sites since.
        self._ledger_heads = dict(checkpoint.ledger_heads) | self._earlier_heads
        self._participation.restore(checkpoint.participation)
        self.record.restore(entries, checkpoint.seconds, checkpoint.round)
        for member in self.federation.roster.members:
            if not member.has_node:
                self.record.warn(f"{member.card.name} was missing when the run was resumed")

    def summary(self) -> None:
        """Log what is about to run."""
        log(INFO, "\t├── training sites: %s", len(self.federation.roster.training))
        log(INFO, "\t├── steps per round: %s of %s", self.plan.steps_per_round, self.plan.total_steps)
        log(INFO, "\t└── chains start from: %s", self.plan.chain_start)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Let sites that have come since join, then build one request after the other for each that goes on."""
        if server_round <= self._done_rounds:
            return
        if server_round > 1:
            self._admit(server_round, grid)
        received = {name: array.numpy() for name, array in arrays.items()}
        self._state = self.initial_state(self.chain_of(server_round)) if self._starts_chain(server_round) else received
        training = self.federation.roster.training
        members = [member for member in training if member.has_node and self._participation.is_asked(member.card.name)]
        check_room(self.plan, self.federation, len(members))
        self._exchange = Exchange[TrainRequest](self.federation, MessageType.TRAIN, server_round)
        self._begin("train", server_round, members)
        for member in members:
            start = self._start_of(member.card.name, server_round)
            cavity = self.cavity(member.card.name)
            request = TrainRequest(
                run=self.federation.run,
                round=server_round,
                task=member.card.task,
                model=self.federation.scenario.model,
                plan=self.plan,
                first_step=self._participation.first_step(self.plan, member.card.name, server_round),
                steps=self.plan.steps_per_round,
                start=arrays_digest(start),
                cavity=arrays_digest(cavity) if cavity else None,
                ledger_head=self._ledger_heads.get(member.card.name),
            )
            sent = encoded(prefixed("start", start) | prefixed(CAVITY, cavity))
            yield self._exchange.request(request, sent, member)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and bank the replies one by one, let the rule form the next state, and write a checkpoint."""
        if server_round <= self._done_rounds:
            return None, None
        good: dict[str, CheckedReply] = {}
        outcomes: list[SiteOutcome] = []
        for reply in replies:
            matched = self._exchange.match(reply)
            if matched is None:
                self.record.warn(f"round {server_round}: {DROPPED}")
                continue
            member, request = matched
            outcome, checked = self._outcome(reply, member, request)
            outcomes.append(outcome)
            if checked is not None:
                self.bank.add(
                    member.card.name, server_round, self.chain_of(server_round), checked.samples, checked.last
                )
                good[member.card.name] = checked.without_arrays()
            self.events.write("site", round=server_round, **outcome.event())
            del reply, checked
        outcomes += [SiteOutcome.silent(name) for name in self._exchange.unanswered()]
        if self.federation.simulation_folder and not all(outcome.usable for outcome in outcomes):
            # Simulated sites have this disk for their ledgers: what failed because it is full comes again on resume.
            check_room(self.plan, self.federation, len(outcomes))
        self.record.add_round(server_round, outcomes, bytes_down=self._exchange.bytes_down)
        for sentence in self._participation.count(outcomes):
            self.record.warn(sentence)
        over = all(self._participation.has_finished(member.card.name) for member in self.federation.roster.training)
        if not outcomes and over:
            log(INFO, "every training site has spent its budget: no further step is taken")
            return None, None
        minimum = self.federation.scenario.resources.min_sites
        if len(good) < minimum and not over:
            problems = "; ".join(outcome.describe() for outcome in outcomes if not outcome.usable)
            raise UserError(
                f"round {server_round}: {len(good)} training sites gave a usable reply, resources.min_sites asks for "
                f"{minimum}: {problems or 'no site is left'}"
            )
        if good:
            self._state = self.next_state(server_round, self._state, good)
        self.save(server_round, self._state)
        state = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in self._state.items()})
        return state, MetricRecord({**self.record.last_round()})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """After the last round, recalibrate if asked to, then build an evaluation request for every site."""
        if server_round != self.plan.total_rounds:
            return []
        posterior, last = self.posterior(), self.last()
        if posterior is None or last is None:
            raise UserError(
                "no posterior sample was kept, so there is nothing to evaluate: "
                + "; ".join(
                    self.record.warnings or ["lower training.burn_in, or see rounds.csv for what the sites said"]
                )
            )
        check_room(self.plan, self.federation, len(self.federation.roster.with_nodes))
        most = most_evaluated(self.federation, max(len(posterior), len(last)), self.record)
        thinned = posterior.thinned(most)
        self.recalibration = recalibrate_sites(
            grid, self.federation, thinned, self._ledger_heads, self.record, self.events
        )
        self._begin("evaluate", server_round, self.federation.roster.with_nodes)
        stage = EvaluationStage(
            self.federation, server_round, self.recalibration, self._ledger_heads, self.record, self.events
        )
        self._evaluation_stage = stage
        return stage.requests({"last": last.thinned(most), "posterior": thinned})

    @property
    def evaluation(self) -> Evaluation | None:
        """What the sites' evaluations say so far; None before they were asked."""
        return self._evaluation_stage.evaluation if self._evaluation_stage is not None else None

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Collect every site's additive statistics; the metrics are those of the pooled roles."""
        if self._evaluation_stage is None:
            return None
        self._evaluation_stage.collect(replies)
        self._keep_heads()
        return MetricRecord({**self._evaluation_stage.evaluation.pooled_metrics()})

    def _weights(self) -> Mapping[str, float]:
        units = {member.card.name: member.card.units for member in self.federation.roster.training}
        weights, warning = weigh_sites(self.federation.scenario.aggregation, units)
        if warning:
            self.record.warn(warning)
        return weights

    def _keep_heads(self) -> None:
        seen = {site: head for site, head in self._ledger_heads.items() if self._earlier_heads.get(site) != head}
        keep_heads(self.federation.heads_file, seen)

    def _admit(self, server_round: int, grid: Grid) -> None:
        before = self.federation.roster
        roster = with_newcomers(
            grid,
            before,
            admission_rules(self.federation.scenario, self.federation.simulation_folder, CARD_SECONDS),
        )
        if roster == before:
            return
        self.federation = replace(self.federation, roster=roster)
        for sentence in self._participation.admit(server_round, before, roster):
            self.record.warn(sentence)
        self.site_weights = self._weights()
        planned, now = self.federation.planned_sites, len(self.site_weights)
        if now > planned and self.federation.scenario.aggregation.prior_share(2) < 1:
            self.record.warn(
                f"the plan shares the prior between the {planned} training sites of the start and more have joined: "
                f"the posterior counts it {now / planned:.3g} times"
            )

    def _starts_chain(self, server_round: int) -> bool:
        return (server_round - 1) % self.plan.rounds == 0

    def _start_of(self, site: str, server_round: int) -> Arrays:
        if self._starts_chain(server_round):
            return self._state
        return self.start_arrays(site, self.chain_of(server_round), self._state)

    def _begin(self, stage: str, server_round: int, members: Iterable[Member]) -> None:
        self.record.begin(stage)
        self.events.write(
            stage,
            round=server_round,
            rounds=self.plan.total_rounds,
            sites=[member.card.name for member in members],
        )

    def _outcome(
        self, reply: Message, member: Member, request: TrainRequest
    ) -> tuple[SiteOutcome, CheckedReply | None]:
        name = member.card.name
        if reply.has_error() and reply.error.code in EXPIRED:
            return SiteOutcome.silent(name), None
        if reply.has_error():
            return SiteOutcome.failed(name, f"error code {reply.error.code}"), None
        start = self._start_of(name, request.round)
        try:
            with rejecting():
                record = read_reply(reply, TrainReply, member.node_id)
                if not isinstance(record, Refusal):
                    previous = self.record.statements.get(name)
                    checked = check_train_reply(reply, record, request, member.card, self.federation.shapes, previous)
                    check_reachable(checked, request, member.card.units, start)
        except RejectedError as error:
            return SiteOutcome.rejected(name, str(error)), None
        if isinstance(record, Refusal):
            if record.code in FINAL_REFUSALS:
                self._participation.finish(name)
            return SiteOutcome.refused(name, record), None
        self._ledger_heads[name] = record.ledger_head
        return SiteOutcome.answered(name, record.status, checked, array_bytes(reply)), checked
