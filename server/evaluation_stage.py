"""The last stage of a run: every site evaluates the global predictors on its own test records."""

import math
from collections.abc import Iterable, Iterator, MutableMapping

from flwr.app import Message, MessageType

from fl_dpbayes.config.shared_records import roles_sharing_records
from fl_dpbayes.config.warning import warning
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.arrays import prefixed
from fl_dpbayes.protocol.evaluate import EvaluateReply, EvaluateRequest, PredictorName
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.wire import arrays_digest
from server.evaluation import Evaluation
from server.exchange import Exchange, check_answer
from server.fixed import Federation
from server.messages import encoded, read_reply
from server.progress import EventLog
from server.recalibration import Recalibration
from server.rejection import RejectedError, rejecting
from server.roster import Member
from server.run_record import RunRecord

# Of an evaluation request there are two, posterior and last states.
MAX_PREDICTOR_BYTES = 256 * 2**20


def most_evaluated(federation: Federation, samples: int, record: RunRecord) -> int:
    """Return how many samples of a predictor may travel, and warn where that is fewer than asked for.

    Args:
        federation: its scenario says how many were asked for, its model how large they are.
        samples: how many there are.
        record: where the warning goes.

    Returns:
        At least one.
    """
    most = federation.scenario.evaluation.max_samples
    sample_bytes = 4 * sum(math.prod(shape) for shape in federation.shapes.values())
    fitting = max(1, MAX_PREDICTOR_BYTES // sample_bytes)
    if fitting < min(most, samples):
        asked, mebibytes = min(most, samples), MAX_PREDICTOR_BYTES // 2**20
        record.warn(warning("fewer-evaluated", fitting=fitting, asked=asked, mebibytes=mebibytes))
    return min(most, fitting)


class EvaluationStage:
    """Asks every site once and collects the additive statistics that come back."""

    def __init__(
        self,
        federation: Federation,
        round_number: int,
        recalibration: Recalibration | None,
        ledger_heads: MutableMapping[str, str],
        record: RunRecord,
        events: EventLog,
    ) -> None:
        """Begin the stage after a round; `ledger_heads` is read and brought up to date."""
        self._federation, self._round, self._recalibration = federation, round_number, recalibration
        self._ledger_heads, self._record, self._events = ledger_heads, record, events
        self._exchange = Exchange[EvaluateRequest](federation, MessageType.EVALUATE, round_number)
        shared = roles_sharing_records(federation.scenario.sites)
        self.evaluation = Evaluation(federation.roster.task.classes, shared)

    def requests(self, predictors: dict[PredictorName, PosteriorSamples]) -> Iterator[Message]:
        """Build one request after the other; `predictors` is emptied once they are encoded."""
        scenario = self._federation.scenario
        weights = {kind: tuple(map(float, samples.weights)) for kind, samples in predictors.items()}
        bundle = {
            name: array
            for kind, samples in predictors.items()
            for name, array in prefixed(kind, samples.arrays).items()
        }
        predictors.clear()
        bundle_digest = arrays_digest(bundle)
        arrays = encoded(bundle)
        for member in self._federation.roster.with_nodes:
            request = EvaluateRequest(
                run=self._federation.run,
                round=self._round,
                task=member.card.task,
                model=scenario.model,
                predictors=weights,
                arrays=bundle_digest,
                recalibration=self._recalibration.map_of(member.card.name) if self._recalibration else None,
                trained_prevalence=None if member.card.prevalence is None else scenario.data.prevalence,
                noise_multiplier=scenario.evaluation.noise_multiplier,
                delta=scenario.privacy.delta,
                ledger_head=self._ledger_heads.get(member.card.name),
            )
            yield self._exchange.request(request, arrays, member)

    def collect(self, replies: Iterable[Message]) -> None:
        """Check the replies one by one and keep what they say; what is wrong or missing becomes a warning."""
        not_sent = []
        for reply in replies:
            matched = self._exchange.match(reply)
            if matched is None:
                self._record.warn(warning("dropped", stage="evaluation"))
                continue
            name = matched[0].card.name
            problem = self._problem(reply, *matched)
            if problem == RefusalCode.NOT_SENT.value:
                not_sent.append(name)
            elif problem:
                self._record.warn(warning("no-evaluation", name, reason=problem))
            self._events.write("evaluated", site=name, problem=problem)
        if not_sent:
            self._record.warn(warning("policy", sites=", ".join(not_sent)))
        for name in self._exchange.unanswered():
            self._record.warn(warning("no-evaluation-in-time", name))
        for member in self._federation.roster.members:
            if not member.has_node:
                self._record.warn(warning("gone", member.card.name))
        for found in self.evaluation.warnings():
            self._record.warn(found)

    def _problem(self, reply: Message, member: Member, request: EvaluateRequest) -> str:
        try:
            with rejecting():
                record = read_reply(reply, EvaluateReply, member.node_id)
                if not isinstance(record, Refusal):
                    check_answer(record, request)
                    self.evaluation.add(member.card, request, record, reply)
        except RejectedError as error:
            return f"rejected: {error}"
        if isinstance(record, Refusal):
            return record.code.value if record.code is RefusalCode.NOT_SENT else record.describe()
        if record.ledger_head is not None:
            self._ledger_heads[member.card.name] = record.ledger_head
        return ""
