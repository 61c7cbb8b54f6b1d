"""A site's answer to a recalibration request: reserve, run the private fit, commit, release."""

import numpy as np
import numpy.typing as npt

from clients.messages import RefusedError, read_predictors
from clients.model_inputs import capped_units, model_inputs
from clients.own_site import compute_device, site_streams
from clients.pay import Answer, WorkResult, pay
from clients.policy import check_recalibration_policy
from clients.received_request import ReceivedRequest
from fl_dpbayes.calibration import Stretch, method_code, noised, private_fit, share_bound
from fl_dpbayes.config import AnyRecalibrationPlan, CountingPlan, RecalibrationPlan, SiteFile
from fl_dpbayes.data import SiteSplit, load_site, open_ledger
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest
from fl_dpbayes.models import build_model
from fl_dpbayes.posterior import predict
from fl_dpbayes.privacy import GaussianEvent, Part, Reserved, Spending, solve_multiplier
from fl_dpbayes.protocol import (
    Arrays,
    PredictorName,
    RecalibrateReply,
    RecalibrateRequest,
    RefusalCode,
    without_prefix,
)

PART: Part = "recalibration"
PREDICTOR: PredictorName = "posterior"
PURPOSE = "recalibrate"


def recalibrate_posterior(received: ReceivedRequest[RecalibrateRequest]) -> Answer:
    """Run the requested stretch of the private fit on the site's recalibration part.

    It runs as far as the part's budget admits. The part is disjoint from those for training and
    testing, so it has a budget of its own.

    Args:
        received: The request; its message carries the posterior samples.

    Returns:
        The reply, and the array `noised` of a count of bins.

    Raises:
        RefusedError: With the code and the request's field.
        LedgerError: The ledger cannot be used; nothing was then released.
    """
    request = received.request
    site_file = received.site_file
    plan = request.plan
    check_recalibration_policy(site_file, request)
    samples = read_predictors(
        message=received.message,
        shapes=received.shapes,
        predictors={PREDICTOR: request.weights},
        digest=request.arrays,
    )
    site = load_site(site_file)
    if site.recalibration is None or site.task != request.task:
        raise RefusedError(RefusalCode.BAD_REQUEST, "task")
    units = site.recalibration_units
    _check_share_bound(plan, units)
    part = model_inputs(site_file, request.model, site.recalibration)
    noise_multiplier = _noise_multiplier(plan)
    history = (GaussianEvent(noise_multiplier, 1.0, plan.steps),)
    with open_ledger(site_file, site, received.audit_line) as ledger:

        def work(reserved: Reserved) -> WorkResult:
            streams = site_streams(site_file, request.run, request.round, PURPOSE)
            generator = streams.cipher("noise")
            if isinstance(plan, CountingPlan):
                return _count_bins(
                    received=received,
                    plan=plan,
                    part=part,
                    samples=samples,
                    noise_multiplier=noise_multiplier,
                    generator=generator,
                )
            stretch = Stretch(
                plan=plan,
                noise_multiplier=noise_multiplier,
                units=units,
                first_step=request.first_step,
                steps=reserved.steps,
            )
            parameters = private_fit(
                _probabilities(site_file, request, samples, part),
                part.labels,
                part.unit_index,
                stretch,
                start=request.start or (),
                generator=generator,
            )
            return WorkResult(fields={"parameters": tuple(map(float, parameters))}, arrays={})

        spending = Spending(
            part=PART,
            run=request.run,
            round=request.round,
            purpose=PURPOSE,
            request_digest=received.digest,
            plan_digest=digest(plan),
            plan=history,
            first_step=request.first_step,
            steps=request.steps,
        )
        return pay(
            ledger=ledger,
            spending=spending,
            received=received,
            site=site,
            reply_type=RecalibrateReply,
            work=work,
        )


def _count_bins(
    received: ReceivedRequest[RecalibrateRequest],
    plan: CountingPlan,
    part: SiteSplit,
    samples: Arrays,
    noise_multiplier: float,
    generator: np.random.Generator,
) -> WorkResult:
    site_file = received.site_file
    most_records = site_file.policy.max_test_records_per_unit
    capped = capped_units(part, most_records)
    probabilities = _probabilities(site_file, received.request, samples, capped)
    exact = method_code(plan.method).count(probabilities, capped.labels, most_records)
    table = noised(exact, noise_multiplier, generator)
    return WorkResult(fields={"noise_std": table.noise_std}, arrays={"noised": table.sums})


def _check_share_bound(plan: AnyRecalibrationPlan, units: int) -> None:
    # Before anything is paid for: no fit of so many units, or of such a clip norm, could be
    # released.
    if not isinstance(plan, RecalibrationPlan):
        return
    try:
        share_bound(plan, units)
    except ValueError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.clip_norm") from None


def _noise_multiplier(plan: AnyRecalibrationPlan) -> float:
    if plan.epsilon is None:
        return 0.0
    try:
        return solve_multiplier(plan.epsilon, plan.delta, 1.0, plan.steps, plan.adjacency)
    except UserError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.epsilon") from None


def _probabilities(
    site_file: SiteFile, request: RecalibrateRequest, samples: Arrays, part: SiteSplit
) -> npt.NDArray:
    """Predict a part's records by the posterior, shape (N, C)."""
    module = build_model(request.model, request.task, 0, site_file.backbone_folder)
    prediction = predict(
        module,
        without_prefix(PREDICTOR, samples),
        np.asarray(request.weights),
        part.features,
        device=compute_device(site_file),
    )
    return prediction.probabilities
