"""The last stage of a run: every site evaluates the global predictors on its own test records."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType

from fl_dpbayes.calibration import Evaluation
from fl_dpbayes.config import roles_sharing_records, warning
from fl_dpbayes.outcomes import outcome_of
from fl_dpbayes.posterior import HospitalModel, PosteriorSamples
from fl_dpbayes.protocol import (
    Arrays,
    EvaluateReply,
    EvaluateRequest,
    PredictorName,
    RefusalCode,
    arrays_digest,
    prefixed,
)
from server.exchange import Exchange
from server.ledger_heads import LedgerHeads
from server.messages import encoded, read_arrays
from server.recalibration import Recalibration
from server.roster import Federation, Member
from server.round_outcomes import NO_REPLY
from server.run_record import RunRecord

# Of an evaluation request there are two, posterior and last states.
MAX_PREDICTOR_BYTES = 256 * 2**20


def most_evaluated(federation: Federation, samples: int, record: RunRecord) -> int:
    """Return how many of a predictor's samples may travel, at least one.

    Warn where that is fewer than the scenario asks for.

    Args:
        federation: The run.
        samples: Number of samples of the largest predictor.
        record: Where warnings go.
    """
    most = federation.scenario.evaluation.max_samples
    fitting = max(1, MAX_PREDICTOR_BYTES // (4 * federation.parameters))
    wanted = min(most, samples)
    if fitting < wanted:
        mebibytes = MAX_PREDICTOR_BYTES // 2**20
        record.warn(warning("fewer-evaluated", fitting=fitting, asked=wanted, mebibytes=mebibytes))
    return min(most, fitting)


@dataclass(frozen=True)
class _Bundle:
    """Predictors as evaluation requests carry them.

    Attributes:
        weights: Predictor -> weights of its samples.
        digest: Digest of all samples.
        arrays: All samples, encoded.
    """

    weights: dict[PredictorName, tuple[float, ...]]
    digest: str
    arrays: ArrayRecord


def empty_evaluation(federation: Federation) -> Evaluation:
    """Return what is known of a run's test results before any came."""
    scenario = federation.scenario
    return Evaluation(
        form=outcome_of(federation.roster.task.outcome).sums,
        roles_sharing_records=roles_sharing_records(scenario.sites),
        seed=scenario.seed,
        max_records_per_unit=scenario.evaluation.max_records_per_unit,
        adjacency=scenario.privacy.adjacency,
    )


class EvaluationStage:
    """Asks every site once and collects the additive statistics that come back.

    Attributes:
        evaluation: What came back.
    """

    def __init__(
        self, federation: Federation, round_number: int, heads: LedgerHeads, record: RunRecord
    ) -> None:
        """Begin the stage.

        Args:
            federation: The run.
            round_number: The last round.
            heads: Heads of the sites' ledgers, brought up to date by each reply that is used.
            record: Where warnings and events go.
        """
        self._federation = federation
        self._record = record
        self._exchange = Exchange[EvaluateRequest, EvaluateReply](
            federation=federation,
            heads=heads,
            record=record,
            message_type=MessageType.EVALUATE,
            round_number=round_number,
            reply_type=EvaluateReply,
            stage="evaluation",
        )
        self.evaluation = empty_evaluation(federation)

    def requests(
        self,
        predictors: dict[PredictorName, PosteriorSamples],
        recalibration: Recalibration | None,
        hospitals: HospitalModel | None,
    ) -> Iterator[Message]:
        """Build one request after the other.

        Args:
            predictors: Samples of each predictor; emptied once they are encoded.
            recalibration: The sites' maps, if there are any.
            hospitals: Adds a predictor of its own for every site.
        """
        weights = {name: tuple(samples.weights.tolist()) for name, samples in predictors.items()}
        samples: Arrays = {
            name: array
            for predictor, of_predictor in predictors.items()
            for name, array in prefixed(predictor, of_predictor.arrays).items()
        }
        predictors.clear()
        # Encoding takes the arrays out of `samples`; each hospital's digest needs them again.
        shared_samples = {} if hospitals is None else dict(samples)
        digest = arrays_digest(samples)
        shared = _Bundle(weights=weights, digest=digest, arrays=encoded(samples))
        for member in self._federation.roster.with_nodes:
            bundle = shared
            if hospitals is not None:
                bundle = self._with_hospital(shared, shared_samples, hospitals, member)
            yield self._request(bundle, recalibration, member)

    def _with_hospital(
        self, shared: _Bundle, shared_samples: Arrays, hospitals: HospitalModel, member: Member
    ) -> _Bundle:
        """Add a hospital's own predictor to those of all sites."""
        site = member.card.name
        effect = hospitals.effect(site, self._federation.scenario.sites[site].group)
        samples = hospitals.samples(effect, self._federation.shapes)
        arrays = prefixed("hierarchical", samples.arrays)
        return _Bundle(
            weights={**shared.weights, "hierarchical": tuple(samples.weights.tolist())},
            digest=arrays_digest(shared_samples | arrays),
            arrays=ArrayRecord({**shared.arrays, **encoded(arrays)}),
        )

    def _request(
        self, bundle: _Bundle, recalibration: Recalibration | None, member: Member
    ) -> Message:
        scenario = self._federation.scenario
        card = member.card
        has_prevalence = card.prevalence is not None
        request = EvaluateRequest(
            **self._exchange.fields(member),
            predictors=bundle.weights,
            arrays=bundle.digest,
            recalibration=recalibration.map_of(card.name) if recalibration else None,
            trained_prevalence=scenario.data.prevalence if has_prevalence else None,
            noise_multiplier=scenario.evaluation.noise_multiplier,
            delta=scenario.privacy.delta,
        )
        return self._exchange.request(request, bundle.arrays, member)

    def collect(self, replies: Iterable[Message]) -> None:
        """Check the replies one by one and keep what they say.

        What is wrong or missing becomes a warning.
        """
        not_sent = []
        for answer in self._exchange.answers(replies, check=self._add):
            problem = answer.problem
            if answer.refusal is not None and answer.refusal.code is RefusalCode.NOT_SENT:
                not_sent.append(answer.site)
                problem = RefusalCode.NOT_SENT.value
            elif problem == NO_REPLY:
                self._record.warn(warning("no-evaluation-in-time", answer.site))
                continue
            elif problem:
                self._record.warn(warning("no-evaluation", answer.site, reason=problem))
            self._record.events.write("evaluated", site=answer.site, problem=problem)
        if not_sent:
            self._record.warn(warning("policy", sites=", ".join(not_sent)))
        for member in self._federation.roster.members:
            if not member.has_node:
                self._record.warn(warning("gone", member.card.name))
        self._record.warn(*self.evaluation.warnings())

    def _add(
        self, message: Message, reply: EvaluateReply, request: EvaluateRequest, member: Member
    ) -> None:
        read = partial(read_arrays, message, dtype=np.float64)
        self.evaluation.add(member.card, request, reply, read)
