"""A site's answer to a recalibration request: reserve, run the private fit, commit, release its parameters."""

import numpy as np
import numpy.typing as npt
from flwr.app import Message

from clients.capped_units import capped_units
from clients.device import compute_device
from clients.model_inputs import model_inputs
from clients.policy import check_recalibration_policy
from clients.predictor_arrays import read_predictors
from clients.privacy_statement import privacy_statement
from clients.refused import RefusedError
from clients.stored_reply import pack_reply, unpack_reply
from fl_dpbayes.calibration.recalibration.descent import private_fit
from fl_dpbayes.calibration.recalibration.maps import method_code
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, noised_to_arrays, sensitivity
from fl_dpbayes.config.base import digest
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.recalibration import AnyRecalibrationPlan, CountingPlan
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.data.site import Site, SiteSplit, load_site
from fl_dpbayes.data.site_ledger import open_ledger
from fl_dpbayes.models.build import build_model
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Ledger, Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import Part, Spending
from fl_dpbayes.privacy.solve import solve_multiplier
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.protocol.arrays import Arrays, without_prefix
from fl_dpbayes.protocol.evaluate import PredictorName
from fl_dpbayes.protocol.recalibrate import RecalibrateReply, RecalibrateRequest
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.wire import request_digest

PART: Part = "recalibration"
PREDICTOR: PredictorName = "posterior"
PURPOSE = "recalibrate"


def recalibrate_posterior(
    site_file: SiteFile, request: RecalibrateRequest, message: Message
) -> tuple[RecalibrateReply, dict[str, npt.NDArray]]:
    """Run the requested stretch of the private fit on the site's recalibration part, as far as its budget admits.

    The part is disjoint from those for training and testing, so it has a budget of its own.

    Args:
        site_file: the site.
        request: what is asked.
        message: the Flower message that carries the posterior's samples.

    Returns:
        The reply, and the array `noised` of a count of bins.

    Raises:
        RefusedError: with the code and the request's field.
        LedgerError: if the ledger cannot be used; nothing was then released.
    """
    check_recalibration_policy(site_file, request)
    samples = read_predictors(message, request.model, request.task, {PREDICTOR: request.weights}, request.arrays)
    site = load_site(site_file)
    if site.recalibration is None or site.task != request.task:
        raise RefusedError(RefusalCode.BAD_REQUEST, "task")
    part = model_inputs(site_file, request.model, site.recalibration)
    noise_multiplier = _noise_multiplier(request.plan)
    spending = Spending(
        part=PART,
        run=request.run,
        round=request.round,
        purpose=PURPOSE,
        request_digest=request_digest(request),
        plan_digest=digest(request.plan),
        plan=(GaussianEvent(noise_multiplier, 1.0, request.plan.steps),),
        first_step=request.first_step,
        steps=request.steps,
    )
    with open_ledger(site_file, site) as ledger:
        match ledger.reserve(spending, request.ledger_head):
            case StoredReply(body):
                reply, arrays = unpack_reply(body, RecalibrateReply)
                return reply.model_copy(update={"ledger_head": ledger.head()}), arrays
            case Refused(code, field):
                raise RefusedError(code, field)
            case Reserved() as reserved:
                return _fit_and_commit(ledger, reserved, site_file, site, part, request, samples, noise_multiplier)


def _noise_multiplier(plan: AnyRecalibrationPlan) -> float:
    if plan.epsilon is None:
        return 0.0
    try:
        return solve_multiplier(plan.epsilon, plan.delta, 1.0, plan.steps, plan.adjacency)
    except UserError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.epsilon") from None


def _fit_and_commit(
    ledger: Ledger,
    reserved: Reserved,
    site_file: SiteFile,
    site: Site,
    part: SiteSplit,
    request: RecalibrateRequest,
    samples: Arrays,
    noise_multiplier: float,
) -> tuple[RecalibrateReply, dict[str, npt.NDArray]]:
    generator = _streams(site_file, request).generator("noise")
    parameters, noise_std, arrays = None, None, {}
    try:
        if isinstance(request.plan, CountingPlan):
            table = _count(site_file, part, request, samples, noise_multiplier, generator)
            noise_std, arrays = table.noise_std, noised_to_arrays(table)
        else:
            fit = private_fit(
                _probabilities(site_file, part, request, samples),
                part.labels,
                part.unit_index,
                plan=request.plan,
                noise_multiplier=noise_multiplier,
                units=site.recalibration_units,
                start=request.start or (),
                first_step=request.first_step,
                steps=reserved.steps,
                generator=generator,
            )
            parameters = tuple(map(float, fit.parameters))
        reply = RecalibrateReply(
            run=request.run,
            round=request.round,
            request=request_digest(request),
            status="OK" if reserved.steps == request.steps else "PARTIAL",
            first_step=request.first_step,
            steps=reserved.steps,
            parameters=parameters,
            noise_std=noise_std,
            privacy=privacy_statement(ledger, PART, site, seeded=site_file.insecure_seed is not None).model_copy(
                update={"units": site.recalibration_units}
            ),
            ledger_head=reserved.head,
        )
        head = ledger.commit(reserved.reservation, pack_reply(reply, arrays))
    except Exception:
        # An interrupt is no failure of the work: like a kill it leaves the reservation open, to be taken over.
        ledger.fail(reserved.reservation)
        raise
    return reply.model_copy(update={"ledger_head": head}), arrays


def _count(
    site_file: SiteFile,
    part: SiteSplit,
    request: RecalibrateRequest,
    samples: Arrays,
    noise_multiplier: float,
    generator: np.random.Generator,
) -> NoisedTable:
    most = site_file.policy.max_test_records_per_unit
    capped = capped_units(part, most)
    exact = method_code(request.plan.method).count(_probabilities(site_file, capped, request, samples), capped.labels)
    noise_std = noise_multiplier * sensitivity(SENT_COLUMNS, max_records_per_unit=most)
    return NoisedTable(exact + noise_std * generator.standard_normal(exact.shape), noise_std)


def _probabilities(
    site_file: SiteFile, part: SiteSplit, request: RecalibrateRequest, samples: Arrays
) -> npt.NDArray[np.float64]:
    return predictive_probabilities(
        build_model(request.model, request.task, seed=0),
        without_prefix(PREDICTOR, samples),
        np.asarray(request.weights),
        part.features,
        device=compute_device(site_file),
    )


def _streams(site_file: SiteFile, request: RecalibrateRequest) -> Streams:
    if site_file.insecure_seed is None:
        return Streams.from_entropy()
    context = f"{site_file.name}|{request.run}|{request.round}|{PURPOSE}"
    return Streams.from_insecure_seed(site_file.insecure_seed, context)
