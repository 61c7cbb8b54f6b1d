"""After training: sites fit recalibration maps, or count bins once, and the server makes one map of what they send."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.serverapp import Grid

from fl_dpbayes.calibration import (
    COUNT_ARRAYS,
    NoisedTable,
    bounded_map,
    checked_counts,
    counts_warning,
    far_off_maps,
    median_parameters,
    method_code,
    noise_deviation,
    noise_warning,
    planned_multiplier,
)
from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.config import recalibration as config
from fl_dpbayes.posterior import PosteriorSamples
from fl_dpbayes.privacy import GaussianEvent, checked_statement
from fl_dpbayes.protocol import (
    PrivacyStatement,
    RecalibrateReply,
    RecalibrateRequest,
    arrays_digest,
    prefixed,
)
from server.exchange import Exchange, check_steps
from server.ledger_heads import LedgerHeads
from server.messages import encoded, read_arrays
from server.roster import Federation, Member
from server.run_record import RunRecord

MESSAGE = "train.recalibrate"
Scope = Literal["federated", "site"]


@dataclass(frozen=True)
class Recalibration:
    """What came of it.

    `scope`: whether every site uses the same map, or each that trained its own. `average`: the
    median of the sites' maps. `statements`: what each recalibration part has spent. `noise`: set
    where privacy noise alone moves the parameters too far, or hides the counts. `far_off`: of each
    site whose map is far off the median.
    """

    scope: Scope
    average: config.RecalibrationMap
    own: Mapping[str, config.RecalibrationMap]
    statements: Mapping[str, PrivacyStatement]
    noise: RunWarning | None = None
    far_off: tuple[RunWarning, ...] = ()

    def map_of(self, site: str) -> config.RecalibrationMap:
        """Return the map that a site uses; one without a map of its own uses the average."""
        return self.own.get(site, self.average) if self.scope == "site" else self.average


def recalibrate_sites(
    grid: Grid,
    federation: Federation,
    posterior: PosteriorSamples,
    heads: LedgerHeads,
    record: RunRecord,
) -> Recalibration | None:
    """Fit the map at the training sites; None if the scenario asks for none or no site answered.

    Every round starts from the median of the last one, so rounds of one step each are one descent
    on all sites' records together. `heads` of the sites' ledgers are brought up to date.
    """
    scenario = federation.scenario
    if scenario.recalibration is None:
        return None
    plan, scope = (
        config.recalibration_plan(scenario.recalibration, scenario.privacy),
        scenario.recalibration.scope,
    )
    fit = _Fit(federation, plan, posterior)
    members = tuple(member for member in federation.roster.training if member.has_node)
    record.begin("recalibrate")
    dropped = warning("dropped", stage="recalibration")
    for number in range(1, plan.rounds + 1):
        names = [member.card.name for member in members]
        record.events.write("recalibrate", round=number, rounds=plan.rounds, sites=names)
        exchange = Exchange[RecalibrateRequest, RecalibrateReply](
            federation, heads, MESSAGE, number, RecalibrateReply
        )
        timeout, answered = scenario.resources.round_timeout, set()
        replies = grid.send_and_receive(fit.requests(exchange, members, heads), timeout=timeout)
        for answer in exchange.answers(replies, fit.take, lambda: record.warn(dropped)):
            record.add_passes(answer.site, answer.passes)
            if answer.usable:
                answered.add(answer.site)
            else:
                record.warn(warning("not-recalibrated", answer.site, reason=answer.problem))
        members = tuple(member for member in members if member.card.name in answered)
        if not members:
            break
        fit.combine([member.card.name for member in members])
    if not fit.statements:
        return None
    result = fit.result(scope)
    if result.noise:
        record.warn(result.noise)
    record.warn(*result.far_off)
    return result


class _Fit:
    """What the sites have fitted so far: parameters of a descent, or counts of bins, of which there is one round."""

    def __init__(
        self, federation: Federation, plan: config.AnyRecalibrationPlan, posterior: PosteriorSamples
    ) -> None:
        self._federation, self._plan, self._posterior = federation, plan, posterior
        self._noise_multiplier = planned_multiplier(plan)
        classes, counting = federation.roster.task.classes, isinstance(plan, config.CountingPlan)
        self._parameters = np.zeros(0 if counting else config.parameter_count(plan.method, classes))
        self._own: dict[str, npt.NDArray[np.float64]] = {}
        self._latest: dict[str, npt.NDArray[np.float64]] = {}
        self._counted: dict[str, NoisedTable] = {}
        self.statements: dict[str, PrivacyStatement] = {}

    def requests(
        self,
        exchange: Exchange[RecalibrateRequest, RecalibrateReply],
        members: Iterable[Member],
        heads: LedgerHeads,
    ) -> Iterator[Message]:
        """Build the requests of a round, one after the other."""
        bundle = prefixed("posterior", self._posterior.arrays)
        bundle_digest = arrays_digest(bundle)
        arrays = encoded(bundle)
        for member in members:
            request = RecalibrateRequest(
                run=self._federation.run,
                round=exchange.round_number,
                task=member.card.task,
                model=self._federation.scenario.model,
                weights=tuple(map(float, self._posterior.weights)),
                arrays=bundle_digest,
                plan=self._plan,
                first_step=(exchange.round_number - 1) * self._plan.steps_per_round,
                steps=self._plan.steps_per_round,
                start=tuple(map(float, self._parameters)) or None,
                ledger_head=heads.seen.get(member.card.name),
            )
            yield exchange.request(request, arrays, member)

    def take(
        self, reply: Message, answer: RecalibrateReply, request: RecalibrateRequest, member: Member
    ) -> None:
        """Check and keep what a site has fitted, or raise ValueError if it is not what was asked for."""
        name, card = member.card.name, member.card
        check_steps(answer, request)
        if len(answer.parameters or ()) != len(request.start or ()):
            raise ValueError("its parameters do not fit the request")
        # How many of its units a site keeps for recalibration it alone decides.
        if answer.privacy.units > card.units or answer.privacy.adjacency != self._plan.adjacency:
            raise ValueError("its privacy statement does not fit the site's card or the request")
        counts = answer.steps, answer.first_step + answer.steps
        own, reached = ((GaussianEvent(self._noise_multiplier, 1.0, steps),) for steps in counts)
        privacy = checked_statement(
            answer.privacy, own, reached, self.statements.get(name), self._plan.delta
        )
        if isinstance(self._plan, config.CountingPlan):
            arrays = read_arrays(reply, COUNT_ARRAYS, np.float64)
            most_records = self._federation.scenario.evaluation.max_records_per_unit
            self._counted[name] = checked_counts(
                arrays,
                answer,
                card,
                noise_multiplier=self._noise_multiplier,
                most_records=most_records,
            )
        self._own[name], self.statements[name] = np.array(answer.parameters or ()), privacy

    def combine(self, sites: Sequence[str]) -> None:
        """Take the median of the parameters of the sites that answered, of which the next round starts."""
        if isinstance(self._plan, config.RecalibrationPlan):
            self._latest = {site: self._own[site] for site in sites}
            self._parameters = median_parameters(self._latest)

    def result(self, scope: Scope) -> Recalibration:
        """Return the maps, and say where they are mostly noise or far off."""
        if isinstance(self._plan, config.RecalibrationPlan):
            return self._of_descent(self._plan, scope)
        return self._of_counts(scope)

    def _of_descent(self, plan: config.RecalibrationPlan, scope: Scope) -> Recalibration:
        units = {name: statement.units for name, statement in self.statements.items()}
        sigma = self._noise_multiplier
        deviations = {name: noise_deviation(plan, sigma, count) for name, count in units.items()}
        return Recalibration(
            scope=scope,
            average=bounded_map(plan, self._parameters),
            own={name: bounded_map(plan, values) for name, values in self._own.items()},
            statements=self.statements,
            noise=noise_warning(plan, sigma, units, together=scope == "federated"),
            # A site that stopped answering has a map of an earlier round, which says nothing of
            # where the last one led.
            far_off=far_off_maps(plan.method, self._latest, deviations),
        )

    def _of_counts(self, scope: Scope) -> Recalibration:
        method = self._plan.method
        code = method_code(method)
        together = scope == "federated"
        shared = {
            name: code.fit(table, len(self._counted)) for name, table in self._counted.items()
        }
        single = (
            shared if together else {name: code.fit(table) for name, table in self._counted.items()}
        )
        parameters = {
            name: np.array((mapping or code.identity()).parameters)
            for name, mapping in shared.items()
        }
        median = tuple(map(float, median_parameters(parameters)))
        return Recalibration(
            scope=scope,
            average=config.RecalibrationMap(method=method, parameters=median),
            own={}
            if together
            else {name: mapping or code.identity() for name, mapping in single.items()},
            statements=self.statements,
            noise=counts_warning(single, together=together),
            far_off=far_off_maps(method, parameters, {}),
        )
