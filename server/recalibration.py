"""After training: sites fit recalibration maps, or count bins once, and the server joins them."""

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
from server.check_reply import check_steps
from server.exchange import Exchange
from server.ledger_heads import LedgerHeads
from server.messages import encoded, read_arrays
from server.roster import Federation, Member
from server.run_record import RunRecord

MESSAGE = "train.recalibrate"
Scope = Literal["federated", "site"]


@dataclass(frozen=True)
class Recalibration:
    """What came of it.

    Attributes:
        scope: Whether every site uses the same map, or each that trained its own.
        average: The median of the sites' maps.
        site_maps: Site -> its map.
        statements: Site -> what its recalibration part has spent.
        noise: Set where privacy noise alone moves the parameters too far, or hides the counts.
        far_off: One of each site whose map is far off the median.
    """

    scope: Scope
    average: config.RecalibrationMap
    site_maps: Mapping[str, config.RecalibrationMap]
    statements: Mapping[str, PrivacyStatement]
    noise: RunWarning | None = None
    far_off: tuple[RunWarning, ...] = ()

    def map_of(self, site: str) -> config.RecalibrationMap:
        """Return the map that a site uses; one without a map of its own uses the average."""
        return self.site_maps.get(site, self.average) if self.scope == "site" else self.average


def recalibrate_sites(
    grid: Grid,
    federation: Federation,
    posterior: PosteriorSamples,
    heads: LedgerHeads,
    record: RunRecord,
) -> Recalibration | None:
    """Fit the map at the training sites.

    Every round starts from the median of the last one, so rounds of one step each are one descent
    on all sites' records together.

    Args:
        grid: The connected nodes.
        federation: The run.
        posterior: The samples whose predictions are recalibrated.
        heads: Heads of the sites' ledgers, brought up to date.
        record: Where warnings and events go.

    Returns:
        The maps; None if the scenario asks for none or no site answered.
    """
    scenario = federation.scenario
    if scenario.recalibration is None:
        return None
    plan = config.recalibration_plan(scenario.recalibration, scenario.privacy)
    fit = _Fit(federation, plan, posterior)
    members = [member for member in federation.roster.training if member.has_node]
    record.begin("recalibrate")
    for number in range(1, plan.rounds + 1):
        sites = [member.card.name for member in members]
        record.events.write("recalibrate", round=number, rounds=plan.rounds, sites=sites)
        exchange = Exchange[RecalibrateRequest, RecalibrateReply](
            federation=federation,
            heads=heads,
            record=record,
            message_type=MESSAGE,
            round_number=number,
            reply_type=RecalibrateReply,
            stage="recalibration",
        )
        replies = grid.send_and_receive(
            fit.requests(exchange, members), timeout=scenario.resources.round_timeout
        )
        answered = _take_replies(exchange, replies, fit, record)
        members = [member for member in members if member.card.name in answered]
        if not members:
            break
        fit.combine([member.card.name for member in members])
    if not fit.statements:
        return None
    result = fit.result(scenario.recalibration.scope)
    if result.noise:
        record.warn(result.noise)
    record.warn(*result.far_off)
    return result


def _take_replies(
    exchange: Exchange[RecalibrateRequest, RecalibrateReply],
    replies: Iterable[Message],
    fit: "_Fit",
    record: RunRecord,
) -> set[str]:
    """Take a round's replies; return the names of the sites whose reply is used."""
    answered = set()
    for answer in exchange.answers(replies, check=fit.take):
        if answer.usable:
            answered.add(answer.site)
        else:
            record.warn(warning("not-recalibrated", answer.site, reason=answer.problem))
    return answered


class _Fit:
    """What the sites have fitted so far: parameters of a descent, or counts of bins.

    Of counts there is one round.

    Attributes:
        statements: Site -> what its recalibration part has spent.
    """

    def __init__(
        self, federation: Federation, plan: config.AnyRecalibrationPlan, posterior: PosteriorSamples
    ) -> None:
        self.statements: dict[str, PrivacyStatement] = {}
        self._federation = federation
        self._plan = plan
        self._posterior = posterior
        self._noise_multiplier = planned_multiplier(plan)
        count = 0
        if isinstance(plan, config.RecalibrationPlan):
            count = config.parameter_count(plan.method, federation.roster.task.outcome)
        # Of which the next round starts.
        self._parameters = np.zeros(count)
        # By site: parameters of its last reply, those of the last round, and counts.
        self._fitted: dict[str, npt.NDArray[np.float64]] = {}
        self._latest: dict[str, npt.NDArray[np.float64]] = {}
        self._counts: dict[str, NoisedTable] = {}

    def requests(
        self,
        exchange: Exchange[RecalibrateRequest, RecalibrateReply],
        members: Iterable[Member],
    ) -> Iterator[Message]:
        """Build the requests of a round, one after the other."""
        samples = prefixed("posterior", self._posterior.arrays)
        digest = arrays_digest(samples)
        arrays = encoded(samples)
        for member in members:
            request = RecalibrateRequest(
                **exchange.fields(member),
                weights=tuple(map(float, self._posterior.weights)),
                arrays=digest,
                plan=self._plan,
                first_step=(exchange.round_number - 1) * self._plan.steps_per_round,
                steps=self._plan.steps_per_round,
                start=tuple(map(float, self._parameters)) or None,
            )
            yield exchange.request(request, arrays, member)

    def take(
        self, message: Message, reply: RecalibrateReply, request: RecalibrateRequest, member: Member
    ) -> None:
        """Check and keep what a site has fitted.

        Raises:
            ValueError: It is not what was asked for.
        """
        card = member.card
        check_steps(reply, request)
        if len(reply.parameters or ()) != len(request.start or ()):
            raise ValueError("its parameters do not fit the request")
        # How many of its units a site keeps for recalibration it alone decides.
        if reply.privacy.units > card.units or reply.privacy.adjacency != self._plan.adjacency:
            raise ValueError("its privacy statement does not fit the site's card or the request")
        statement = checked_statement(
            reply.privacy,
            self._history(reply.steps),
            self._history(reply.first_step + reply.steps),
            self.statements.get(card.name),
            self._plan.delta,
        )
        if isinstance(self._plan, config.CountingPlan):
            self._counts[card.name] = checked_counts(
                read_arrays(message, COUNT_ARRAYS, np.float64),
                reply,
                card,
                noise_multiplier=self._noise_multiplier,
                most_records=self._federation.scenario.evaluation.max_records_per_unit,
            )
        self._fitted[card.name] = np.array(reply.parameters or ())
        self.statements[card.name] = statement

    def _history(self, steps: int) -> tuple[GaussianEvent, ...]:
        return (GaussianEvent(self._noise_multiplier, 1.0, steps),)

    def combine(self, sites: Sequence[str]) -> None:
        """Take the median of these sites' parameters, of which the next round starts."""
        if isinstance(self._plan, config.RecalibrationPlan):
            self._latest = {site: self._fitted[site] for site in sites}
            self._parameters = median_parameters(self._latest)

    def result(self, scope: Scope) -> Recalibration:
        """Return the maps, and say where they are mostly noise or far off."""
        if isinstance(self._plan, config.RecalibrationPlan):
            return self._of_descent(self._plan, scope)
        return self._of_counts(scope)

    def _of_descent(self, plan: config.RecalibrationPlan, scope: Scope) -> Recalibration:
        noise_multiplier = self._noise_multiplier
        units = {site: statement.units for site, statement in self.statements.items()}
        deviations = {
            site: noise_deviation(plan, noise_multiplier, count) for site, count in units.items()
        }
        return Recalibration(
            scope=scope,
            average=bounded_map(plan, self._parameters),
            site_maps={site: bounded_map(plan, values) for site, values in self._fitted.items()},
            statements=self.statements,
            noise=noise_warning(plan, noise_multiplier, units, together=scope == "federated"),
            # A site that stopped answering has a map of an earlier round, which says nothing of
            # where the last one led.
            far_off=far_off_maps(plan.method, self._latest, deviations),
        )

    def _of_counts(self, scope: Scope) -> Recalibration:
        method = self._plan.method
        code = method_code(method)
        is_federated = scope == "federated"
        # A map is None where noise hides the counts.
        maps_of_many = {
            site: code.fit(table, len(self._counts)) for site, table in self._counts.items()
        }
        parameters = {
            site: np.array((mapping or code.identity()).parameters)
            for site, mapping in maps_of_many.items()
        }
        median = tuple(map(float, median_parameters(parameters)))
        own_maps = maps_of_many
        site_maps: dict[str, config.RecalibrationMap] = {}
        if not is_federated:
            own_maps = {site: code.fit(table) for site, table in self._counts.items()}
            site_maps = {site: mapping or code.identity() for site, mapping in own_maps.items()}
        return Recalibration(
            scope=scope,
            average=config.RecalibrationMap(method=method, parameters=median),
            site_maps=site_maps,
            statements=self.statements,
            noise=counts_warning(own_maps, together=is_federated),
            far_off=far_off_maps(method, parameters, {}),
        )
