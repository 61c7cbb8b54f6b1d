"""The last stage of a run: every site evaluates the global predictors on its own test records."""

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType

from fl_dpbayes.calibration import Evaluation
from fl_dpbayes.config import roles_sharing_records, warning
from fl_dpbayes.posterior import HospitalModel, PosteriorSamples
from fl_dpbayes.protocol import (
    EvaluateReply,
    EvaluateRequest,
    PredictorName,
    RefusalCode,
    arrays_digest,
    prefixed,
)
from server.exchange import NO_REPLY, Exchange
from server.ledger_heads import LedgerHeads
from server.messages import encoded, read_arrays
from server.recalibration import Recalibration
from server.roster import Federation, Member
from server.run_record import RunRecord

# Of an evaluation request there are two, posterior and last states.
MAX_PREDICTOR_BYTES = 256 * 2**20


def most_evaluated(federation: Federation, samples: int, record: RunRecord) -> int:
    """Return how many of a predictor's samples may travel, at least one.

    Warn where that is fewer than asked for.
    """
    most = federation.scenario.evaluation.max_samples
    fitting = max(1, MAX_PREDICTOR_BYTES // (4 * federation.parameters))
    if fitting < min(most, samples):
        asked, mebibytes = min(most, samples), MAX_PREDICTOR_BYTES // 2**20
        record.warn(warning("fewer-evaluated", fitting=fitting, asked=asked, mebibytes=mebibytes))
    return min(most, fitting)


class EvaluationStage:
    """Asks every site once and collects the additive statistics that come back."""

    def __init__(
        self, federation: Federation, round_number: int, heads: LedgerHeads, record: RunRecord
    ) -> None:
        """Begin the stage after a round; `heads` are read and brought up to date."""
        self._federation, self._heads, self._record = federation, heads, record
        self._exchange = Exchange[EvaluateRequest, EvaluateReply](
            federation, heads, MessageType.EVALUATE, round_number, EvaluateReply
        )
        scenario = federation.scenario
        self.evaluation = Evaluation(
            federation.roster.task.classes,
            roles_sharing_records(scenario.sites),
            seed=scenario.seed,
            max_records_per_unit=scenario.evaluation.max_records_per_unit,
            adjacency=scenario.privacy.adjacency,
        )

    def requests(
        self,
        predictors: dict[PredictorName, PosteriorSamples],
        recalibration: Recalibration | None,
        hospitals: HospitalModel | None,
    ) -> Iterator[Message]:
        """Build one request after the other; `predictors` is emptied once they are encoded.

        `hospitals` adds a predictor of its own for every site.
        """
        scenario = self._federation.scenario
        weights = {kind: tuple(map(float, samples.weights)) for kind, samples in predictors.items()}
        bundle = {
            name: one
            for kind, found in predictors.items()
            for name, one in prefixed(kind, found.arrays).items()
        }
        predictors.clear()
        shared = {} if hospitals is None else dict(bundle)
        bundle_digest = arrays_digest(bundle)
        arrays = encoded(bundle)
        for member in self._federation.roster.with_nodes:
            if hospitals is not None:
                effect = hospitals.effect(name := member.card.name, scenario.sites[name].group)
                own = hospitals.samples(effect, self._federation.shapes)
                weights["hierarchical"], more = (
                    tuple(map(float, own.weights)),
                    prefixed("hierarchical", own.arrays),
                )
                bundle_digest = arrays_digest(shared | more)
                arrays = ArrayRecord({**arrays, **encoded(more)})
            request = EvaluateRequest(
                run=self._federation.run,
                round=self._exchange.round_number,
                task=member.card.task,
                model=scenario.model,
                predictors=weights,
                arrays=bundle_digest,
                recalibration=recalibration.map_of(member.card.name) if recalibration else None,
                trained_prevalence=None
                if member.card.prevalence is None
                else scenario.data.prevalence,
                noise_multiplier=scenario.evaluation.noise_multiplier,
                delta=scenario.privacy.delta,
                ledger_head=self._heads.seen.get(member.card.name),
            )
            yield self._exchange.request(request, arrays, member)

    def collect(self, replies: Iterable[Message]) -> None:
        """Check the replies one by one and keep what they say.

        What is wrong or missing becomes a warning.
        """
        not_sent, warn = [], self._record.warn

        def add(
            reply: Message, record: EvaluateReply, request: EvaluateRequest, member: Member
        ) -> None:
            self.evaluation.add(
                member.card, request, record, partial(read_arrays, reply, dtype=np.float64)
            )

        for answer in self._exchange.answers(
            replies, add, lambda: warn(warning("dropped", stage="evaluation"))
        ):
            self._record.add_passes(answer.site, answer.passes)
            problem = answer.problem
            if answer.refusal is not None and answer.refusal.code is RefusalCode.NOT_SENT:
                not_sent.append(answer.site)
                problem = RefusalCode.NOT_SENT.value
            elif problem == NO_REPLY:
                warn(warning("no-evaluation-in-time", answer.site))
                continue
            elif problem:
                warn(warning("no-evaluation", answer.site, reason=problem))
            self._record.events.write("evaluated", site=answer.site, problem=problem)
        if not_sent:
            warn(warning("policy", sites=", ".join(not_sent)))
        gone = [
            member.card.name for member in self._federation.roster.members if not member.has_node
        ]
        warn(*(warning("gone", name) for name in gone), *self.evaluation.warnings())
