"""The training rounds, which all rules share: who is asked, what is banked of the answers, and what stays on disk."""

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO
from statistics import fmean

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_dpbayes.config import backbone_folder, site_plan, warning
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Entry, digest
from fl_dpbayes.models import build_model, to_vector
from fl_dpbayes.posterior import (
    SKETCH_SIZE,
    PosteriorBank,
    PosteriorSamples,
    noise_of_mean,
    relative_distances,
    sketched_move,
    weigh_sites,
)
from fl_dpbayes.privacy import planned_chain
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
    CheckedReply,
    check_disk_space,
    check_displacement,
    check_reply_size,
    check_train_reply,
)
from server.checkpoint import BANK_FOLDER, Checkpoint, JournaledSites, write_checkpoint
from server.exchange import Answer, Exchange
from server.ledger_heads import LedgerHeads
from server.messages import encoded
from server.participation import Participation, least_sites
from server.roster import Federation, Member, with_newcomers
from server.run_record import RunRecord

# What Flower's own result says of a round's sites.
RESULT: dict[str, Callable[[list[float]], float]] = {
    "units": sum,
    "steps": max,
    "epsilon": max,
    "temperature": fmean,
}

NOTHING = PosteriorSamples(arrays={}, weights=np.zeros(0), temperatures=np.zeros(0))
# The bank's name for the summed moves of all sites; no site can be called so.
MOVES = "sums of moves"
SEED = "seed"
# A float64 holds as many exactly.
SEED_BITS = 53


class TrainingRounds(Strategy):
    """The rounds of every rule: sites join in between, those that train are asked, and replies taken one by one."""

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        self.federation, self.record = federation, record
        self.bank = PosteriorBank(federation.run_folder / BANK_FOLDER)
        self.site_weights: Mapping[str, float] = self._weights()
        self.plan = site_plan(federation.scenario, federation.planned_sites)
        check_reply_size(self.plan, federation)
        self.participation = Participation(federation.scenario.resources.silent_rounds)
        self.heads = LedgerHeads(federation.heads_file)
        self._journaled = JournaledSites()
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
        sites, plan = len(self.federation.roster.training), self.plan
        log(
            INFO,
            "\t└── %s training sites, %s of %s steps per round",
            sites,
            plan.steps_per_round,
            plan.total_steps,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let sites that have come since join, then build one request after the other for each that goes on."""
        if server_round <= self.done_rounds:
            return []
        if server_round > 1:
            self._admit(server_round, grid)
        received = {name: array.numpy() for name, array in arrays.items()}
        self.state = (
            self.initial_state(self.chain_of(server_round))
            if self._starts_chain(server_round)
            else received
        )
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

    def next_state(
        self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]
    ) -> Arrays:
        """Return the server state after a round: as it was, unless the rule makes something of the banked replies."""
        return arrays

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check and bank the replies one by one, let the rule form the next state, and write a checkpoint."""
        if server_round <= self.done_rounds:
            return None, None
        answers = self._banked(server_round, replies)
        if self.federation.simulation_folder and not all(answer.usable for answer in answers):
            # Simulated sites have this disk for their ledgers: what failed because it is full comes
            # again on resume.
            check_disk_space(self.plan, self.federation, len(answers))
        self.record.add_round(server_round, answers, bytes_down=self.exchange.bytes_down)
        self.record.warn(*self.participation.count(answers))
        training = [member.card.name for member in self.federation.roster.training]
        left = [name for name in training if not self.participation.has_finished(name)]
        over = not left
        good = {answer.site: answer.checked for answer in answers if answer.checked is not None}
        if not good and over:
            log(
                INFO,
                "no training site goes on: no further step is taken, and on resume this round is "
                "asked for again",
            )
            return None, None
        minimum = least_sites(self.federation.scenario.resources.min_sites, len(left))
        if len(good) < minimum and not over:
            problems = "; ".join(
                f"{bad.site}: {bad.status} {bad.detail}".strip()
                for bad in answers
                if not bad.usable
            )
            raise UserError(
                f"round {server_round}: {len(good)} training sites gave a usable reply, "
                "resources.min_sites asks for "
                f"{minimum} of the {len(left)} with steps left: {problems or 'no site is left'}"
            )
        if good:
            self.state = self.next_state(server_round, self.state, good)
        self.save(server_round, self.state)
        state = ArrayRecord(
            {name: Array(np.ascontiguousarray(array)) for name, array in self.state.items()}
        )
        said = [checked.metrics for checked in good.values()]
        metrics = {name: how([one[name] for one in said]) for name, how in RESULT.items() if said}
        return state, MetricRecord(
            {**(self.record.round_rows[-1] if self.record.round_rows else {}), **metrics}
        )

    def save(self, round_number: int, state: Arrays) -> None:
        """Write the checkpoint of a round that is complete; 0 before the first."""
        federation = self.federation
        sites = self._journaled.new_entries(federation.roster, self.heads.seen)
        entries = [*self.bank.new_entries(), *self.record.new_entries(), *sites]
        checkpoint = Checkpoint(
            scenario=digest(federation.scenario),
            run=federation.run,
            round=round_number,
            planned_sites=federation.planned_sites,
            participation=self.participation.state(),
            journal=self.record.journal.append(entries),
            seconds=self.record.seconds_so_far(),
        )
        write_checkpoint(federation.run_folder, checkpoint, state)
        self.heads.keep()
        self.bank.drop_replaced()

    def restore(self, checkpoint: Checkpoint, entries: Sequence[Entry]) -> None:
        """Go on after a checkpoint of this run: its rounds are passed over, and its state comes as initial arrays."""
        self.done_rounds = checkpoint.round
        self._journaled = JournaledSites(entries)
        self.heads.restore(self._journaled.heads)
        # At real sites a steward may have changed the policy since; a site that refuses again is
        # charged nothing.
        forgotten = {} if self.federation.simulation_folder else {"finished": ()}
        self.participation.restore(checkpoint.participation.model_copy(update=forgotten))
        self.record.restore(entries, checkpoint.seconds, checkpoint.round)
        missing = [
            member.card.name for member in self.federation.roster.members if not member.has_node
        ]
        self.record.warn(*(warning("missing", name) for name in missing))

    def _requests(self, server_round: int, members: Iterable[Member]) -> Iterator[Message]:
        encoding: tuple[Arrays, str, ArrayRecord] | None = None
        for member in members:
            start = self.start_of(member.card.name, server_round)
            if encoding is None or encoding[0] is not start:
                # A state that is broadcast is encoded once, and in memory once.
                encoding = start, arrays_digest(start), encoded(prefixed("start", start))
            request = TrainRequest(
                run=self.federation.run,
                round=server_round,
                task=member.card.task,
                model=self.federation.scenario.model,
                plan=self.plan,
                first_step=self.participation.first_step(self.plan, member.card.name, server_round),
                steps=self.plan.steps_per_round,
                start=encoding[1],
                ledger_head=self.heads.seen.get(member.card.name),
            )
            yield self.exchange.request(request, encoding[2], member)

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

    def weights_among(self, sites: Collection[str]) -> Mapping[str, float]:
        """Weigh the training sites that sent something: none has more of it than the rule lets one of so many have.

        Who is cut is named. Shares among all would be more among few: a site that the bound holds
        to 1.2 / 20 may be beside two small ones alone.
        """
        units = self.federation.roster.units
        if set(sites) == set(units):
            return self.site_weights
        weights, warnings = weigh_sites(
            self.federation.scenario.aggregation, {site: units[site] for site in sites}
        )
        # One alone is asked for to see whether the rule can use it.
        if len(weights) > 1:
            self.record.warn(*warnings)
        return weights

    def _weights(self) -> Mapping[str, float]:
        weights, warnings = weigh_sites(
            self.federation.scenario.aggregation, self.federation.roster.units
        )
        self.record.warn(*warnings)
        return weights

    def _starts_chain(self, server_round: int) -> bool:
        return (server_round - 1) % self.plan.rounds == 0

    def _banked(self, server_round: int, replies: Iterable[Message]) -> list[Answer[CheckedReply]]:
        """Check each reply and put its samples into the bank; return the answers without them."""
        answers, dropped = [], warning("dropped", stage=f"round {server_round}")
        moves = self._moves()
        start = without_prefix("parameters", self.state)
        for answer in self.exchange.answers(
            replies, self._checked, lambda: self.record.warn(dropped)
        ):
            checked = answer.checked
            if checked is not None:
                self.bank.add(
                    answer.site,
                    server_round,
                    self.chain_of(server_round),
                    checked.samples,
                    checked.last,
                )
                move = sketched_move(
                    start, without_prefix("parameters", checked.last), int(moves[SEED])
                )
                name = f"site/{answer.site}"
                moves[name] = moves.get(name, np.zeros(SKETCH_SIZE + 1)) + np.append(move, 1.0)
                answer = replace(answer, checked=replace(checked, samples=NOTHING, last={}))
            answers.append(answer)
            self.record.add_passes(answer.site, answer.passes)
            said = {key: getattr(answer, key) for key in ("site", "status", "detail")}
            spent = {
                key: getattr(checked.privacy, key) if checked else None
                for key in ("epsilon", "budget")
            }
            self.record.events.write("site", round=server_round, **said, **spent)
            # One site's arrays in memory at a time.
            del checked
        self.bank.add(MOVES, server_round, 0, NOTHING, moves)
        return answers

    def _moves(self) -> dict[str, npt.NDArray]:
        """Return each site's sketched moves from the server's state and their number, summed over rounds, and a seed.

        Only simulations, which are repeatable, take the scenario's seed: sites may know that.
        """
        stored = self.bank.last(MOVES, 0)
        if stored is not None:
            return {**stored}
        seed = secrets.randbits(SEED_BITS)
        if self.federation.simulation_folder:
            seed = self.federation.scenario.seed % 2**SEED_BITS
        return {SEED: np.array(seed, np.float64)}

    def distances(self) -> dict[str, float]:
        """Say how many times as far from the median site each site is as the others are, all rounds together.

        Whatever the rule, a site's move is from the server's state to where its chain ended: for
        rules on independent chains the first one of these.
        """
        sums = without_prefix("site", self._moves())
        units = self.federation.roster.units
        means = {site: total[:-1] / total[-1] for site, total in sums.items()}
        noise = {
            site: noise_of_mean(planned_chain(self.plan, units[site]), int(total[-1]))
            for site, total in sums.items()
        }
        return relative_distances(means, noise)

    def _checked(
        self, reply: Message, record: TrainReply, request: TrainRequest, member: Member
    ) -> CheckedReply:
        previous = self.record.statements.get(member.card.name)
        checked = check_train_reply(
            reply, record, request, member.card, self.federation.shapes, previous
        )
        check_displacement(
            checked, request, member.card.units, self.start_of(member.card.name, request.round)
        )
        return checked
