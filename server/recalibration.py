"""After training: the sites fit a recalibration map to the posterior, round by round, and the server averages it.

An isotonic map is fitted by the server, to counts of bins that the sites release once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.serverapp import Grid

from fl_dpbayes.calibration.isotonic import fit_isotonic, identity_map
from fl_dpbayes.calibration.isotonic_counts import COUNT_ARRAYS, checked_counts, counts_warning, planned_multiplier
from fl_dpbayes.calibration.release import NoisedTable, merge_noised
from fl_dpbayes.config.recalibration import (
    PARAMETER_BOUND,
    AnyRecalibrationPlan,
    CountingPlan,
    RecalibrationMap,
    RecalibrationPlan,
    parameter_count,
)
from fl_dpbayes.config.recalibration_plan import recalibration_plan
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.site_weights import size_weights
from fl_dpbayes.privacy.check_statement import checked_statement
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.protocol.arrays import prefixed
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.recalibrate import RecalibrateReply, RecalibrateRequest
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.train import PrivacyStatement
from fl_dpbayes.protocol.wire import arrays_digest
from server.exchange import Exchange, check_answer
from server.fixed import Federation
from server.messages import encoded, read_arrays, read_reply
from server.progress import EventLog
from server.rejection import RejectedError, rejecting
from server.roster import Member
from server.run_record import NO_REPLY, RunRecord

MESSAGE_TYPE = "train.recalibrate"
# In log T: probabilities flatter or sharper by a factor of 1.6 by chance.
LARGEST_DEVIATION = 0.5


@dataclass(frozen=True)
class Recalibration:
    """What came of it.

    Attributes:
        scope: whether every site uses the average, or each that trained its own.
        average: the sites' map: the mean, each site weighed by its declared units; of counts the map of their sum.
        own: site -> its own map.
        statements: site -> what its recalibration part has spent.
        noise: set where privacy noise alone moves the parameters too far, or hides the counts.
    """

    scope: Literal["federated", "site"]
    average: RecalibrationMap
    own: Mapping[str, RecalibrationMap]
    statements: Mapping[str, PrivacyStatement]
    noise: RunWarning | None = None

    def map_of(self, site: str) -> RecalibrationMap:
        """Return the map that a site uses; one without a map of its own uses the average."""
        return self.own.get(site, self.average) if self.scope == "site" else self.average


def recalibrate_sites(
    grid: Grid,
    federation: Federation,
    posterior: PosteriorSamples,
    ledger_heads: dict[str, str],
    record: RunRecord,
    events: EventLog,
) -> Recalibration | None:
    """Fit the map at the training sites.

    Every round starts from the average of the last one, so rounds of one step each are one descent on all sites'
    records together.

    Args:
        grid: hands over replies one by one.
        federation: the scenario, which says whether and how, and the sites.
        posterior: whose predictions are mapped.
        ledger_heads: site -> head of its ledger's chain; brought up to date.
        record: takes warnings and the time.
        events: takes what a progress display shows.

    Returns:
        The maps, or None if the scenario asks for none or no site answered.
    """
    scenario = federation.scenario
    if scenario.recalibration is None:
        return None
    plan, timeout = recalibration_plan(scenario.recalibration, scenario.privacy), scenario.resources.round_timeout
    counting = isinstance(plan, CountingPlan)
    noise_multiplier = planned_multiplier(plan)
    parameters = np.zeros(0 if counting else parameter_count(plan.method, federation.roster.task.classes))
    own: dict[str, npt.NDArray[np.float64]] = {}
    counted: dict[str, NoisedTable] = {}
    statements: dict[str, PrivacyStatement] = {}
    members = tuple(member for member in federation.roster.training if member.has_node)
    record.begin("recalibrate")
    for number in range(1, plan.rounds + 1):
        names = [member.card.name for member in members]
        events.write("recalibrate", round=number, rounds=plan.rounds, sites=names)
        exchange = Exchange[RecalibrateRequest](federation, MESSAGE_TYPE, number)
        asked = _requests(exchange, federation, plan, members, parameters, posterior, ledger_heads)
        problems: dict[str, str] = {}
        for reply in grid.send_and_receive(asked, timeout=timeout):
            matched = exchange.match(reply)
            if matched is None:
                record.warn(warning("dropped", stage="recalibration"))
                continue
            member, request = matched
            name = member.card.name
            try:
                with rejecting():
                    answer = _checked(reply, request, member)
                    if isinstance(answer, RecalibrateReply):
                        privacy = _checked_cost(answer, request, member.card, noise_multiplier, statements.get(name))
                        if counting:
                            arrays = read_arrays(reply, COUNT_ARRAYS, np.float64)
                            counted[name] = checked_counts(arrays, answer, member.card, noise_multiplier)
            except RejectedError as error:
                problems[name] = f"rejected: {error}"
                continue
            if isinstance(answer, Refusal):
                problems[name] = answer.describe()
                continue
            own[name], statements[name] = np.array(answer.parameters or ()), privacy
            ledger_heads[name] = answer.ledger_head
        problems |= dict.fromkeys(exchange.unanswered(), NO_REPLY)
        for name, problem in problems.items():
            record.warn(warning("not-recalibrated", name, reason=problem))
        members = tuple(member for member in members if member.card.name not in problems)
        if not members or counting:
            break
        weights = size_weights(scenario.aggregation, {member.card.name: member.card.units for member in members})
        parameters = np.average([own[name] for name in weights], axis=0, weights=list(weights.values()))
    if not own:
        return None
    if not isinstance(plan, RecalibrationPlan):
        return _of_counts(scenario.recalibration.scope, counted, statements, record)
    noise = _noise_warning(plan, scenario.recalibration.scope, noise_multiplier, statements)
    if noise:
        record.warn(noise)
    return Recalibration(
        scope=scenario.recalibration.scope,
        average=_map(plan, parameters),
        own={name: _map(plan, values) for name, values in own.items()},
        statements=statements,
        noise=noise,
    )


def _of_counts(
    scope: Literal["federated", "site"],
    counted: Mapping[str, NoisedTable],
    statements: Mapping[str, PrivacyStatement],
    record: RunRecord,
) -> Recalibration:
    own = {name: fit_isotonic(table) for name, table in counted.items()}
    together = fit_isotonic(reduce(merge_noised, counted.values()))
    noise = counts_warning(together, own if scope == "site" else {})
    if noise:
        record.warn(noise)
    return Recalibration(
        scope=scope,
        average=together or identity_map(),
        own={name: fitted or identity_map() for name, fitted in own.items()} if scope == "site" else {},
        statements=statements,
        noise=noise,
    )


def _noise_warning(
    plan: RecalibrationPlan,
    scope: Literal["federated", "site"],
    noise_multiplier: float,
    statements: Mapping[str, PrivacyStatement],
) -> RunWarning | None:
    """Say so where the privacy noise alone moves the parameters too far for the map to be of use.

    From a flat loss, noise alone makes theta a sum of a_t sigma C xi_t / n, of deviation (a sigma C / n) sqrt(sum_t
    (1 - t/T)^2) at a site, and of 1/sqrt(K) of that in the average of K alike.
    """
    decay = np.sqrt(np.square(1 - np.arange(plan.steps) / plan.steps).sum())
    alike = np.sqrt(len(statements)) if scope == "federated" else 1.0
    deviations = {
        name: plan.step_size * noise_multiplier * plan.clip_norm * decay / (statement.units * alike)
        for name, statement in statements.items()
    }
    name = max(deviations, key=lambda key: deviations[key])
    if deviations[name] <= LARGEST_DEVIATION:
        return None
    found = {"units": statements[name].units, "deviation": float(deviations[name]), "largest": LARGEST_DEVIATION}
    return warning("map-noise", name=name, **found)


def _requests(
    exchange: Exchange[RecalibrateRequest],
    federation: Federation,
    plan: AnyRecalibrationPlan,
    members: tuple[Member, ...],
    parameters: npt.NDArray[np.float64],
    posterior: PosteriorSamples,
    ledger_heads: Mapping[str, str],
) -> list[Message]:
    bundle = prefixed("posterior", posterior.arrays)
    bundle_digest = arrays_digest(bundle)
    arrays = encoded(bundle)
    return [
        exchange.request(
            RecalibrateRequest(
                run=federation.run,
                round=exchange.round_number,
                task=member.card.task,
                model=federation.scenario.model,
                weights=tuple(map(float, posterior.weights)),
                arrays=bundle_digest,
                plan=plan,
                first_step=(exchange.round_number - 1) * plan.steps_per_round,
                steps=plan.steps_per_round,
                start=tuple(map(float, parameters)) or None,
                ledger_head=ledger_heads.get(member.card.name),
            ),
            arrays,
            member,
        )
        for member in members
    ]


def _checked(reply: Message, request: RecalibrateRequest, member: Member) -> RecalibrateReply | Refusal:
    answer = read_reply(reply, RecalibrateReply, member.node_id)
    if isinstance(answer, Refusal):
        return answer
    check_answer(answer, request)
    if answer.first_step != request.first_step or answer.steps > request.steps:
        raise ValueError("it ran other steps than it was asked to")
    if (answer.status == "OK") != (answer.steps == request.steps):
        raise ValueError(f"status {answer.status} does not fit {answer.steps} of {request.steps} steps")
    if len(answer.parameters or ()) != len(request.start or ()):
        raise ValueError("its parameters do not fit the request")
    return answer


def _checked_cost(
    answer: RecalibrateReply,
    request: RecalibrateRequest,
    card: SiteCard,
    noise_multiplier: float,
    previous: PrivacyStatement | None,
) -> PrivacyStatement:
    # How many of its units a site keeps for recalibration it alone decides.
    if answer.privacy.units > card.units or answer.privacy.adjacency != request.plan.adjacency:
        raise ValueError("its privacy statement does not fit the site's card or the request")
    own, reached = (
        (GaussianEvent(noise_multiplier, 1.0, steps),) for steps in (answer.steps, answer.first_step + answer.steps)
    )
    return checked_statement(answer.privacy, own, reached, previous, request.plan.delta)


def _map(plan: RecalibrationPlan, parameters: npt.NDArray[np.float64]) -> RecalibrationMap:
    # An average of bounded values may pass the bound by rounding.
    bounded = np.clip(parameters, -PARAMETER_BOUND, PARAMETER_BOUND)
    return RecalibrationMap(method=plan.method, parameters=tuple(map(float, bounded)))
