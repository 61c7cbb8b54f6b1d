"""The base of every aggregation rule's strategy: the training rounds and the evaluation."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fl_dpbayes.calibration import Evaluation
from fl_dpbayes.config import warning
from fl_dpbayes.errors import UserError
from fl_dpbayes.posterior import (
    HOSPITALS,
    POOLED_ROUNDS,
    AnySamples,
    HospitalModel,
    PooledRounds,
    PosteriorSamples,
    fit_hospitals,
)
from fl_dpbayes.report import sentence
from server.check_reply import check_disk_space
from server.evaluation import EvaluationStage, empty_evaluation, most_evaluated
from server.recalibration import Recalibration, recalibrate_sites
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.rounds import TrainingRounds

CombinedT = TypeVar("CombinedT")


class PosteriorStrategy(TrainingRounds):
    """Runs the sites' private chains and keeps their samples, which a rule makes one posterior of.

    A rule's strategy says what the posterior and the point predictor are (`posterior`, `last`);
    where it differs, also where chains start (`start_arrays`) and what becomes of a round
    (`next_state`).

    Attributes:
        recalibration: What came of recalibration; None before it, and without one.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        self.recalibration: Recalibration | None = None
        self._evaluation_stage: EvaluationStage | None = None

    @abstractmethod
    def posterior(self) -> AnySamples | None:
        """Return the global posterior's weighted samples so far, or None before the first."""

    @abstractmethod
    def last(self) -> AnySamples | None:
        """Return the point predictor: the last states, or None before the first."""

    @property
    def evaluation(self) -> Evaluation:
        """What the sites' evaluations say so far."""
        if self._evaluation_stage is None:
            return empty_evaluation(self.federation)
        return self._evaluation_stage.evaluation

    def averaged_temperature(self) -> float | None:
        """Return the mean temperature of averaged states; None of a rule that averages none."""
        return None

    def chain_names(self) -> list[str]:
        """Name the chains whose states are the posterior's samples, as the bank knows them."""
        return [member.card.name for member in self.federation.roster.training]

    def hospitals(self) -> HospitalModel | None:
        """Fit the posterior over hospitals to the states of all sites.

        Returns:
            The fit; None where the scenario asks for none.
        """
        sums = self.bank.last(HOSPITALS, 0)
        if not sums:
            return None
        rounds = PooledRounds.of_arrays(self.bank.last(POOLED_ROUNDS, 0) or {})
        model = fit_hospitals(sums, rounds, self.federation.scenario)
        reason = (
            "of that over hospitals, as it tells no level, or one too far out for "
            "hierarchical.largest_sd"
        )
        for site, is_left_out in zip(model.sites, model.posterior.is_left_out, strict=True):
            if is_left_out:
                self.record.warn(warning("left-out-of-posterior", site, reason=reason))
        return model

    def points_of(self, name: str) -> PosteriorSamples | None:
        """Return the last state of each chain of this name in the bank, as points."""
        stored = self.bank.stored_last_states(name)
        return stored.in_memory() if stored else None

    def combine_usable(
        self, sites: list[str], combine: Callable[[list[str]], CombinedT], kind: str, **values: int
    ) -> CombinedT | None:
        """Combine those sites of which a rule makes something one by one, and warn of the others.

        What one site sent must not cost the others their round or posterior, whose privacy is
        spent.

        Args:
            sites: Names of all sites.
            combine: Combines sites by name, or raises ValueError.
            kind: Kind of the warning.
            **values: Values of the warning.

        Returns:
            What was combined; None if no site can be used or all can.
        """
        usable = []
        for site in sites:
            try:
                combine([site])
                usable.append(site)
            except ValueError as reason:
                self.record.warn(warning(kind, site, reason=str(reason), **values))
        if not usable or usable == sites:
            return None
        return combine(usable)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """After the last round, recalibrate if asked to, then build every site's request."""
        if server_round != self.plan.total_rounds:
            return []
        posterior = self.posterior()
        last = self.last()
        if posterior is None or last is None:
            raise self._nothing_to_evaluate()
        members = self.federation.roster.with_nodes
        check_disk_space(self.plan, self.federation, len(members))
        most = most_evaluated(self.federation, max(len(posterior), len(last)), self.record)
        thinned = posterior.thinned(most)
        self.recalibration = recalibrate_sites(
            grid=grid,
            federation=self.federation,
            posterior=thinned,
            heads=self.heads,
            record=self.record,
        )
        self.begin("evaluate", server_round, members)
        stage = EvaluationStage(
            federation=self.federation,
            round_number=server_round,
            heads=self.heads,
            record=self.record,
        )
        self._evaluation_stage = stage
        return stage.requests(
            predictors={"last": last.thinned(most), "posterior": thinned},
            recalibration=self.recalibration,
            hospitals=self.hospitals(),
        )

    def _nothing_to_evaluate(self) -> UserError:
        reasons = "; ".join(sentence(warned) for warned in self.record.warnings)
        if not reasons:
            reasons = "lower training.burn_in, or see rounds.csv for what the sites said"
        return UserError(
            f"no posterior sample was kept, so there is nothing to evaluate: {reasons}"
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect every site's additive statistics; the metrics are those of the pooled roles."""
        if self._evaluation_stage is None:
            return None
        self._evaluation_stage.collect(replies)
        self.heads.keep()
        return MetricRecord({**self._evaluation_stage.evaluation.pooled_metrics()})
