"""A site's answer to a recalibration request: reserve, run the private fit, commit, release its parameters."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.messages import RefusedError, read_predictors
from clients.model_inputs import capped_units, model_inputs
from clients.own_site import compute_device, site_streams
from clients.pay import Answer, Asked, SentArrays, pay, spending_of
from clients.policy import check_recalibration_policy
from fl_dpbayes.calibration import Stretch, method_code, noised, private_fit, share_bound
from fl_dpbayes.config import AnyRecalibrationPlan, CountingPlan, SiteFile
from fl_dpbayes.data import SiteSplit, load_site, open_ledger
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import build_model
from fl_dpbayes.posterior import predict
from fl_dpbayes.privacy import GaussianEvent, Part, Reserved, solve_multiplier
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


def recalibrate_posterior(site_file: SiteFile, request: RecalibrateRequest, asked: Asked) -> Answer:
    """Run the requested stretch of the private fit on the site's recalibration part, as far as its budget admits.

    The part is disjoint from those for training and testing, so it has a budget of its own. Returns
    the reply, and the array `noised` of a count of bins. Raises RefusedError with the code and the
    request's field. Raises LedgerError if the ledger cannot be used; nothing was then released.
    """
    check_recalibration_policy(site_file, request)
    predictors = {PREDICTOR: request.weights}
    samples = read_predictors(
        asked.message, request.model, request.task, predictors, request.arrays
    )
    site = load_site(site_file)
    if site.recalibration is None or site.task != request.task:
        raise RefusedError(RefusalCode.BAD_REQUEST, "task")
    _check_bound(request.plan, site.recalibration_units)
    part = model_inputs(site_file, request.model, site.recalibration)
    noise_multiplier = _noise_multiplier(request.plan)
    plan = (GaussianEvent(noise_multiplier, 1.0, request.plan.steps),)
    predict = partial(_probabilities, site_file, request, samples)
    with open_ledger(site_file, site, asked.line) as ledger:

        def work(reserved: Reserved) -> tuple[dict[str, Any], SentArrays]:
            generator = site_streams(site_file, request.run, request.round, PURPOSE).cipher("noise")
            if isinstance(request.plan, CountingPlan):
                most = site_file.policy.max_test_records_per_unit
                capped = capped_units(part, most)
                exact = method_code(request.plan.method).count(predict(capped), capped.labels, most)
                table = noised(exact, noise_multiplier, generator)
                return {"noise_std": table.noise_std}, {"noised": table.sums}
            units, first = site.recalibration_units, request.first_step
            stretch = Stretch(request.plan, noise_multiplier, units, first, reserved.steps)
            records = predict(part), part.labels, part.unit_index
            found = private_fit(*records, stretch, start=request.start or (), generator=generator)
            return {"parameters": tuple(map(float, found))}, {}

        spending = spending_of(request, PART, PURPOSE, plan, request.steps)
        return pay(ledger, spending, request, RecalibrateReply, (site_file, site), work)


def _check_bound(plan: AnyRecalibrationPlan, units: int) -> None:
    # Before anything is paid for: no fit of so many units, or of such a clip norm, could be
    # released.
    if isinstance(plan, CountingPlan):
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
    module, device = (
        build_model(request.model, request.task, 0, site_file.backbone_folder),
        compute_device(site_file),
    )
    values, weights = without_prefix(PREDICTOR, samples), np.asarray(request.weights)
    return predict(module, values, weights, part.features, device=device).probabilities
