"""A round's first half, which all rules share: who is asked to train, and for what."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import INFO

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_dpbayes.config.data_folder import backbone_folder
from fl_dpbayes.config.errors import warning
from fl_dpbayes.config.scenario import site_plan
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.site_weights import weigh_sites
from fl_dpbayes.protocol.arrays import Arrays, prefixed
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import arrays_digest
from fl_dpbayes.samplers.state_vectors import initial_vectors, state_arrays
from server.check_reply import check_disk_space, check_reply_size
from server.checkpoint import BANK_FOLDER
from server.exchange import Exchange
from server.ledger_heads import LedgerHeads
from server.messages import encoded
from server.participation import Participation
from server.roster import Federation, Member, with_newcomers
from server.run_record import RunRecord


class RoundRequests(Strategy):
    """Lets sites join between rounds and asks those that train; a rule says where chains start."""

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        self.federation, self.record = federation, record
        self.bank = PosteriorBank(federation.run_folder / BANK_FOLDER)
        self.site_weights: Mapping[str, float] = self._weights()
        self.plan = site_plan(federation.scenario, federation.planned_sites)
        check_reply_size(self.plan, federation)
        self.participation = Participation(federation.scenario.resources.silent_rounds)
        self.heads = LedgerHeads(federation.heads_file)
        self.done_rounds = 0

    def start_arrays(self, site: str, chain: int, arrays: Arrays) -> Arrays:
        """Return where a site's chain goes on this round: the server state, which is broadcast."""
        return arrays

    def chain_of(self, round_number: int) -> int:
        """Return the number, from 0, of the chain that a round belongs to."""
        return (round_number - 1) // self.plan.rounds

    def initial_state(self, chain: int) -> Arrays:
        """Return where every site's chain of this number starts."""
        scenario = self.federation.scenario
        task, seed = self.federation.roster.task, scenario.seed + chain
        module = build_model(scenario.model, task, seed, backbone_folder(None))
        return state_arrays(initial_vectors(scenario.sampler, to_vector(module)), module)

    def summary(self) -> None:
        """Log what is about to run."""
        log(INFO, "\t├── training sites: %s", len(self.federation.roster.training))
        log(INFO, "\t├── steps per round: %s of %s", self.plan.steps_per_round, self.plan.total_steps)
        log(INFO, "\t└── chains start from: %s", self.plan.chain_start)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let sites that have come since join, then build one request after the other for each that goes on."""
        if server_round <= self.done_rounds:
            return []
        if server_round > 1:
            self._admit(server_round, grid)
        received = {name: array.numpy() for name, array in arrays.items()}
        self.state = self.initial_state(self.chain_of(server_round)) if self._starts_chain(server_round) else received
        members = self.participation.asked(self.federation.roster)
        check_disk_space(self.plan, self.federation, len(members))
        self.exchange = Exchange[TrainRequest, TrainReply](
            self.federation, self.heads, MessageType.TRAIN, server_round, TrainReply
        )
        self.begin("train", server_round, members)
        return self._requests(server_round, members)

    def start_of(self, site: str, server_round: int) -> Arrays:
        """Return the state that a site's request of the present round carries."""
        if self._starts_chain(server_round):
            return self.state
        return self.start_arrays(site, self.chain_of(server_round), self.state)

    def begin(self, stage: str, server_round: int, members: Iterable[Member]) -> None:
        """Begin a stage of the run in which these members are asked."""
        names = [member.card.name for member in members]
        self.record.begin(stage, round=server_round, rounds=self.plan.total_rounds, sites=names)

    def _requests(self, server_round: int, members: Iterable[Member]) -> Iterator[Message]:
        for member in members:
            start = self.start_of(member.card.name, server_round)
            request = TrainRequest(
                run=self.federation.run, round=server_round, task=member.card.task,
                model=self.federation.scenario.model, plan=self.plan,
                first_step=self.participation.first_step(self.plan, member.card.name, server_round),
                steps=self.plan.steps_per_round, start=arrays_digest(start),
                ledger_head=self.heads.seen.get(member.card.name),
            )  # fmt: skip
            yield self.exchange.request(request, encoded(prefixed("start", start)), member)

    def _admit(self, server_round: int, grid: Grid) -> None:
        before, roster = self.federation.roster, with_newcomers(grid, self.federation)
        if roster == before:
            return
        self.federation = replace(self.federation, roster=roster)
        self.record.warn(*self.participation.admit(server_round, before, roster))
        self.site_weights = self._weights()
        planned, now = self.federation.planned_sites, len(self.site_weights)
        if now > planned and self.federation.scenario.aggregation.prior_share(2) < 1:
            self.record.warn(warning("prior-repeated", planned=planned, times=now / planned))

    def _weights(self) -> Mapping[str, float]:
        weights, found = weigh_sites(self.federation.scenario.aggregation, self.federation.roster.units)
        if found:
            self.record.warn(found)
        return weights

    def _starts_chain(self, server_round: int) -> bool:
        return (server_round - 1) % self.plan.rounds == 0
