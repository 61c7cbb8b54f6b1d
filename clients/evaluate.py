"""A site's answer to an evaluation request: sums over its test records, and over subgroups."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from clients.messages import Charge, RefusedError, read_predictors
from clients.model_inputs import capped_units, model_inputs
from clients.own_site import compute_device, site_streams
from clients.pay import Answer, SentArrays, WorkResult, pay
from clients.received_request import ReceivedRequest
from clients.stated_passes import stated_passes
from clients.subgroups import declared_groups, measured_groups
from fl_dpbayes.calibration import (
    REPORT_BINS,
    CalibrationStatistics,
    estimated_prevalence,
    from_batch,
    in_fixed_pieces,
    noised_table,
    recalibrate,
    to_arrays,
    top_label_counts,
    with_prevalence,
)
from fl_dpbayes.config import SiteFile
from fl_dpbayes.data import Site, SiteSplit, is_delta_allowed, ledger_place, load_site, open_ledger
from fl_dpbayes.models import build_model
from fl_dpbayes.posterior import predict
from fl_dpbayes.privacy import GaussianEvent, Ledger, Refused, Reserved, Spending
from fl_dpbayes.protocol import (
    PRIOR_CORRECTED,
    RECALIBRATED,
    Arrays,
    EvaluateReply,
    EvaluateRequest,
    Group,
    RefusalCode,
    prefixed,
    subgroup_prefix,
    without_prefix,
)

# Noise beyond it would leave the numbers that a reply can state.
MOST_NOISE = 1e100
Statistics = dict[str, CalibrationStatistics]


@dataclass(frozen=True)
class _Measurement:
    """What a predictor says of a part's N records.

    Attributes:
        predictor: Its name.
        probabilities: Shape (N, C).
        uncertainty: Kind -> how uncertain its samples are of each record, nats, shape (N,).
    """

    predictor: str
    probabilities: npt.NDArray
    uncertainty: dict[str, npt.NDArray]


def evaluate_predictors(received: ReceivedRequest[EvaluateRequest]) -> Answer:
    """Measure each predictor on the site's test records, and let out what the site's policy allows.

    That is exact sums (of public test data), noised ones, or nothing.

    Args:
        received: The request; its message carries the predictors' samples.

    Returns:
        The reply and its arrays `<predictor>/<table>`, with subgroups also
        `group-<i>/<predictor>/<table>`.

    Raises:
        RefusedError: NOT_SENT where the policy lets nothing out; BAD_REQUEST if arrays do not fit;
            what the ledger refuses.
    """
    request = received.request
    site_file = received.site_file
    release = site_file.policy.evaluation_release
    if release == "none":
        raise RefusedError(RefusalCode.NOT_SENT)
    if request.trained_prevalence is not None and site_file.prevalence is None:
        raise RefusedError(RefusalCode.BAD_REQUEST, "trained_prevalence")
    samples = read_predictors(
        message=received.message,
        shapes=received.shapes,
        predictors=request.predictors,
        digest=request.arrays,
    )
    site = load_site(site_file)
    if site.task != request.task:
        raise RefusedError(RefusalCode.BAD_REQUEST, "task")
    test = model_inputs(site_file, request.model, site.test)
    if release == "noised":
        capped = capped_units(test, site_file.policy.max_test_records_per_unit)
        return _release_noised(received, site=site, part=capped, samples=samples)
    return _release_exact(received, site=site, part=test, samples=samples)


def _release_exact(
    received: ReceivedRequest[EvaluateRequest], site: Site, part: SiteSplit, samples: Arrays
) -> Answer:
    """Release the exact sums over all records and over each subgroup."""
    request = received.request
    site_file = received.site_file
    charge = _count_evaluation(received, site)
    groups, left_out = measured_groups(declared_groups(part, site_file.policy), request)
    tables: SentArrays = {}
    for measurement in _measure(site_file, part, request, samples):
        counted = count_predictions(
            measurement.predictor,
            part,
            groups,
            measurement.probabilities,
            **measurement.uncertainty,
        )
        for name, statistics in counted.items():
            tables |= prefixed(name, to_arrays(statistics))
    reply = EvaluateReply(
        run=request.run,
        round=request.round,
        request=received.digest,
        release="public",
        groups=groups,
        groups_left_out=left_out,
        passes=stated_passes(site_file),
    )
    return Answer(reply=reply, arrays=tables, charge=charge)


def _release_noised(
    received: ReceivedRequest[EvaluateRequest], site: Site, part: SiteSplit, samples: Arrays
) -> Answer:
    """Release one coarse noised table per predictor, paid for in the account of the test part.

    Each table is one full-batch Gaussian event; the test part is disjoint from the training part,
    so it has a budget of its own. Every unit counts at most `policy.max_test_records_per_unit` of
    its records.
    """
    request = received.request
    site_file = received.site_file
    noise_multiplier = _allowed_noise(site_file, request)
    counted = _count_evaluation(received, site)
    tables = len(request.measured)
    spending = Spending(
        part="test",
        run=request.run,
        round=request.round,
        purpose=f"evaluate {request.round}",
        request_digest=received.digest,
        # An evaluation is the whole of its own plan.
        plan_digest=received.digest,
        plan=(GaussianEvent(noise_multiplier, 1.0, tables),),
        first_step=0,
        steps=tables,
    )

    def work(reserved: Reserved) -> WorkResult:
        # A budget for some of the tables is not used: which ones would be missing is nobody's
        # choice.
        if reserved.steps < tables:
            raise RefusedError(RefusalCode.BUDGET_EXHAUSTED)
        streams = site_streams(site_file, request.run, request.round, "evaluate")
        most_records = site_file.policy.max_test_records_per_unit
        arrays: SentArrays = {}
        for measurement in _measure(site_file, part, request, samples):
            exact = top_label_counts(
                measurement.probabilities, part.labels, REPORT_BINS, most_records
            )
            generator = streams.cipher(measurement.predictor)
            table = noised_table(exact, noise_multiplier, generator)
            arrays |= prefixed(measurement.predictor, {"noised": table.sums})
        return WorkResult(fields={"release": "noised", "noise_std": table.noise_std}, arrays=arrays)

    with open_ledger(site_file, site, received.audit_line) as ledger:
        paid = pay(
            ledger=ledger,
            spending=spending,
            received=received,
            site=site,
            reply_type=EvaluateReply,
            work=work,
        )
    return Answer(reply=paid.reply, arrays=paid.arrays, charge={**counted, **paid.charge})


def _allowed_noise(site_file: SiteFile, request: EvaluateRequest) -> float:
    """Return the noise multiplier of a noised release, or raise RefusedError with the field."""
    policy = site_file.policy
    if site_file.ledger is None:
        raise RefusedError(RefusalCode.NOT_SENT)
    noise_multiplier = request.noise_multiplier
    least = policy.min_evaluation_noise_multiplier
    if noise_multiplier is None or not least <= noise_multiplier <= MOST_NOISE:
        raise RefusedError(RefusalCode.POLICY_DENIED, "noise_multiplier")
    is_cohorts_delta = request.delta == site_file.ledger.delta
    if not is_cohorts_delta or not is_delta_allowed(site_file, "test", request.delta):
        raise RefusedError(RefusalCode.POLICY_DENIED, "delta")
    return noise_multiplier


def _count_evaluation(received: ReceivedRequest[EvaluateRequest], site: Site) -> Charge:
    """Count an evaluation in the ledger before anything is measured, or raise RefusedError."""
    site_file = received.site_file
    policy = site_file.policy
    if not policy.counts_evaluations:
        _check_cohort_is_open(site_file)
        return {}
    with open_ledger(site_file, site, received.audit_line) as ledger:
        # The same sums of other records are another evaluation: their difference is that of the
        # records.
        records = ledger.state().data_versions[-1].fingerprint
        identity = hashlib.sha256(f"{received.digest} {records}".encode()).hexdigest()
        counted = ledger.count_evaluation(
            received.request.run,
            identity,
            _finite_limit(policy.max_evaluations_per_run),
            _finite_limit(policy.max_evaluations),
        )
    if isinstance(counted, Refused):
        raise RefusedError(counted.code, counted.field)
    return {"evaluation": counted}


def _check_cohort_is_open(site_file: SiteFile) -> None:
    settings = site_file.ledger
    if settings is None:
        return
    with Ledger.open_existing(ledger_place(settings), settings.cohort) as ledger:
        if ledger.state().closed:
            raise RefusedError(RefusalCode.COHORT_CLOSED)


def _finite_limit(limit: int | Literal["unlimited"]) -> float:
    return math.inf if limit == "unlimited" else limit


def _measure(
    site_file: SiteFile, part: SiteSplit, request: EvaluateRequest, samples: Arrays
) -> Iterator[_Measurement]:
    """Predict a part's records by each predictor, and by what follows from the posterior."""
    module = build_model(request.model, request.task, 0, site_file.backbone_folder)
    for predictor, weights in request.predictors.items():
        prediction = predict(
            module,
            without_prefix(predictor, samples),
            np.asarray(weights),
            part.features,
            device=compute_device(site_file),
        )
        probabilities = prediction.probabilities
        uncertainty = {
            "epistemic": prediction.epistemic,
            "aleatoric": prediction.aleatoric,
            "total": prediction.total,
        }
        yield _Measurement(predictor, probabilities, uncertainty)
        if predictor == "posterior":
            if request.recalibration is not None:
                recalibrated = in_fixed_pieces(
                    partial(recalibrate, mapping=request.recalibration), probabilities
                )
                yield _Measurement(RECALIBRATED, recalibrated, {})
            if request.trained_prevalence is not None:
                corrected = _with_sites_prevalence(
                    site_file, request.trained_prevalence, probabilities
                )
                yield _Measurement(PRIOR_CORRECTED, corrected, {})


def _with_sites_prevalence(
    site_file: SiteFile, trained: tuple[float, ...], probabilities: npt.NDArray
) -> npt.NDArray:
    """Correct predictions for the classes' prevalence at the site, declared or estimated."""
    if isinstance(site_file.prevalence, tuple):
        target: npt.ArrayLike = site_file.prevalence
    else:
        target = estimated_prevalence(probabilities, trained)
    return in_fixed_pieces(partial(with_prevalence, trained=trained, target=target), probabilities)


def count_predictions(
    predictor: str,
    part: SiteSplit,
    groups: Sequence[Group],
    probabilities: npt.NDArray,
    **uncertainty: npt.NDArray,
) -> Statistics:
    """Count predictions of all records, and of each subgroup.

    Args:
        predictor: The predictor's name.
        part: N records.
        groups: Subgroups (attribute, value).
        probabilities: Shape (N, C).
        **uncertainty: Kind -> how uncertain the samples are of each record, nats, shape (N,).

    Returns:
        `<predictor>` and, of subgroup i, `group-<i>/<predictor>` -> statistics.
    """

    def count(chosen: slice | npt.NDArray[np.bool_]) -> CalibrationStatistics:
        truth = None if part.truth is None else part.truth[chosen]
        chosen_uncertainty = {name: values[chosen] for name, values in uncertainty.items()}
        return from_batch(
            probabilities[chosen], part.labels[chosen], truth=truth, **chosen_uncertainty
        )

    statistics = {predictor: count(slice(None))}
    for number, (attribute, value) in enumerate(groups):
        in_group = part.groups[attribute] == value
        statistics[f"{subgroup_prefix(number)}/{predictor}"] = count(in_group)
    return statistics
