"""A site's answer to an evaluation request: sums over its test records, and over subgroups."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from clients.messages import Charge, RefusedError, read_predictors
from clients.model_inputs import capped_units, model_inputs
from clients.own_site import compute_device, site_streams
from clients.pay import Answer, SentArrays, WorkResult, pay
from clients.received_request import ReceivedRequest
from clients.stated_passes import stated_passes
from clients.subgroups import counted_groups, declared_groups, measured_groups
from fl_dpbayes.calibration import Sums, release_counts
from fl_dpbayes.config import SiteFile
from fl_dpbayes.data import Site, SiteSplit, is_delta_allowed, ledger_place, load_site, open_ledger
from fl_dpbayes.models import build_model
from fl_dpbayes.outcomes import Adjustments, Outcome
from fl_dpbayes.posterior import average_predictions
from fl_dpbayes.privacy import GaussianEvent, Ledger, Refused, Reserved, Spending
from fl_dpbayes.protocol import (
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
    # Of some outcomes no table may leave with noise.
    nothing_noised = release == "noised" and received.outcome.count_bounded is None
    if release == "none" or nothing_noised:
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
    outcome = received.outcome
    charge = _count_evaluation(received, site)
    group_bytes = len(request.measured) * outcome.sums.nbytes
    groups, left_out = measured_groups(declared_groups(part, site_file.policy), group_bytes)
    tables: SentArrays = {}
    for predictor, prediction in _predictions(received, part, samples):
        for place, sums in count_predictions(outcome, prediction, part, groups).items():
            tables |= prefixed(f"{place}{predictor}", sums.arrays())
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
    """Release one vector of noised counts per predictor, paid for in the account of the test part.

    A vector holds the counts of all records and of each declared subgroup, and is one full-batch
    Gaussian event; the test part is disjoint from the training part, so it has a budget of its own.
    Every unit counts at most `policy.max_test_records_per_unit` of its records.
    """
    request = received.request
    site_file = received.site_file
    count_bounded = received.outcome.count_bounded
    assert count_bounded is not None
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
        policy = site_file.policy
        groups = counted_groups(part, policy, tables * received.outcome.sums.noised_nbytes)
        chosen = {"": slice(None)} | {
            f"{subgroup_prefix(number)}/": members
            for number, members in enumerate(groups.members.values())
        }
        arrays: SentArrays = {}
        for predictor, prediction in _predictions(received, part, samples):
            released = release_counts(
                [count_bounded(prediction, part.labels, records) for records in chosen.values()],
                max_records_per_unit=policy.max_test_records_per_unit,
                noise_multiplier=noise_multiplier,
                generator=streams.cipher(predictor),
                tables_of_a_record=1 + groups.attributes,
            )
            for place, table in zip(chosen, released, strict=True):
                arrays |= prefixed(f"{place}{predictor}", {"noised": table.sums})
        return WorkResult(
            fields={
                "release": "noised",
                "noise_std": released[0].noise_std,
                "groups": tuple(groups.members),
                "groups_left_out": groups.left_out,
            },
            arrays=arrays,
        )

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


def _predictions(
    received: ReceivedRequest[EvaluateRequest], part: SiteSplit, samples: Arrays
) -> Iterator[tuple[str, Any]]:
    """Predict a part's records by each predictor, and by what follows from the posterior."""
    request = received.request
    site_file = received.site_file
    outcome = received.outcome
    module = build_model(request.model, request.task, 0, site_file.backbone_folder)
    for predictor, weights in request.predictors.items():
        prediction = average_predictions(
            module,
            without_prefix(predictor, samples),
            np.asarray(weights),
            part.features,
            law=outcome.law,
            device=compute_device(site_file),
        )
        yield predictor, prediction
        if predictor == "posterior":
            adjustments = Adjustments(
                recalibration=request.recalibration,
                trained_prevalence=request.trained_prevalence,
                prevalence=site_file.prevalence,
            )
            yield from outcome.adjusted(prediction, adjustments).items()


def count_predictions(
    outcome: Outcome[Any, Any], prediction: Any, part: SiteSplit, groups: Sequence[Group]
) -> dict[str, Sums]:
    """Count predictions of all records, and of each subgroup.

    Args:
        outcome: What is predicted.
        prediction: Of N records, as the outcome's law makes it.
        part: The records.
        groups: Subgroups (attribute, value).

    Returns:
        Sums over all records, "", and over subgroup i, `group-<i>/`.
    """

    def count(chosen: slice | npt.NDArray[np.bool_]) -> Sums:
        sums: Sums = outcome.count(prediction, part.labels, chosen, part.truth)
        return sums

    counted = {"": count(slice(None))}
    for number, (attribute, value) in enumerate(groups):
        counted[f"{subgroup_prefix(number)}/"] = count(part.groups[attribute] == value)
    return counted
