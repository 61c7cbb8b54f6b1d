"""A site's answer to an evaluation request: what it counts of all its test records, and of each subgroup of them."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from clients.messages import RefusedError, read_predictors
from clients.model_inputs import capped_units, model_inputs
from clients.own_site import compute_device, site_streams
from clients.pay import Answer, Asked, SentArrays, pay, spending_of
from clients.stated_passes import stated_passes
from fl_dpbayes.calibration import (
    REPORT_BINS,
    CalibrationStatistics,
    empty,
    estimated_prevalence,
    from_batch,
    in_fixed_pieces,
    noised_table,
    recalibrate,
    to_arrays,
    top_label_counts,
    with_prevalence,
)
from fl_dpbayes.config import Policy, SiteFile
from fl_dpbayes.data import Site, SiteSplit, is_delta_allowed, ledger_place, load_site, open_ledger
from fl_dpbayes.models import build_model
from fl_dpbayes.posterior import predict
from fl_dpbayes.privacy import GaussianEvent, Ledger, Refused, Reserved
from fl_dpbayes.protocol import (
    PRIOR_CORRECTED,
    RECALIBRATED,
    Arrays,
    EvaluateReply,
    EvaluateRequest,
    Group,
    RefusalCode,
    most_groups,
    prefixed,
    request_digest,
    subgroup_prefix,
    without_prefix,
)

OTHER_GROUP = "other"
# Noise beyond it would leave the numbers that a reply can state.
MOST_NOISE = 1e100
Statistics = dict[str, CalibrationStatistics]


def evaluate_predictors(site_file: SiteFile, request: EvaluateRequest, asked: Asked) -> Answer:
    """Measure each predictor on the site's test records, and let out what the site's policy allows.

    That is exact sums (of public test data), noised ones, or nothing. Returns the reply and its
    arrays `<predictor>/<table>`, with subgroups also `group-<i>/<predictor>/<table>`. Raises
    RefusedError NOT_SENT where the policy lets nothing out; BAD_REQUEST if arrays do not fit; what
    the ledger refuses.
    """
    release = site_file.policy.evaluation_release
    if release == "none":
        raise RefusedError(RefusalCode.NOT_SENT)
    if request.trained_prevalence is not None and site_file.prevalence is None:
        raise RefusedError(RefusalCode.BAD_REQUEST, "trained_prevalence")
    arrays = read_predictors(
        asked.message, request.model, request.task, request.predictors, request.arrays
    )
    site = load_site(site_file)
    if site.task != request.task:
        raise RefusedError(RefusalCode.BAD_REQUEST, "task")
    test = model_inputs(site_file, request.model, site.test)
    if release == "noised":
        capped = capped_units(test, site_file.policy.max_test_records_per_unit)
        return _noised((site_file, site), capped, request, asked, arrays)
    charge = _count_evaluation((site_file, site), request, asked)
    groups, left_out = measured_groups(declared_groups(test, site_file.policy), request)
    tables: SentArrays = {}
    for name, statistics in _measure(site_file, test, request, arrays, groups).items():
        tables |= prefixed(name, to_arrays(statistics))
    whose = {
        "run": request.run,
        "round": request.round,
        "request": request_digest(request),
        "release": "public",
    }
    said = {"groups": groups, "groups_left_out": left_out, "passes": stated_passes(site_file)}
    reply = EvaluateReply.model_validate(whose | said)
    return Answer(reply, tables, charge)


def _noised(
    own: tuple[SiteFile, Site],
    part: SiteSplit,
    request: EvaluateRequest,
    asked: Asked,
    samples: Arrays,
) -> Answer:
    """Release one coarse noised table per predictor, paid for in the ledger's account of the test part.

    Each table is one full-batch Gaussian event; the test part is disjoint from the training part,
    so it has a budget of its own. Every unit counts at most `policy.max_test_records_per_unit` of
    its records. Returns the reply and its arrays `<predictor>/noised`. Raises RefusedError
    POLICY_DENIED with the field, or what the ledger refuses.
    """
    site_file, site = own
    settings, policy, sigma = site_file.ledger, site_file.policy, request.noise_multiplier
    if settings is None:
        raise RefusedError(RefusalCode.NOT_SENT)
    if sigma is None or not policy.min_evaluation_noise_multiplier <= sigma <= MOST_NOISE:
        raise RefusedError(RefusalCode.POLICY_DENIED, "noise_multiplier")
    if request.delta != settings.delta or not is_delta_allowed(site_file, "test", request.delta):
        raise RefusedError(RefusalCode.POLICY_DENIED, "delta")
    counted = _count_evaluation(own, request, asked)
    tables = len(request.measured)
    spending = spending_of(
        request, "test", f"evaluate {request.round}", (GaussianEvent(sigma, 1.0, tables),), tables
    )
    with open_ledger(site_file, site, asked.line) as ledger:

        def work(reserved: Reserved) -> tuple[dict[str, Any], SentArrays]:
            # A budget for some of the tables is not used: which ones would be missing is nobody's
            # choice.
            if reserved.steps < tables:
                raise RefusedError(RefusalCode.BUDGET_EXHAUSTED)
            streams = site_streams(site_file, request.run, request.round, "evaluate")
            arrays, most = SentArrays(), policy.max_test_records_per_unit
            for measured in _predictions(site_file, part, request, samples):
                exact = top_label_counts(measured.probabilities, part.labels, REPORT_BINS, most)
                table = noised_table(exact, sigma, streams.cipher(measured.predictor))
                arrays |= prefixed(measured.predictor, {"noised": table.sums})
            return {"release": "noised", "noise_std": table.noise_std}, arrays

        paid = pay(ledger, spending, request, EvaluateReply, own, work)
        return replace(paid, charge=counted | paid.charge)


@dataclass(frozen=True)
class _Measured:
    """What a `predictor` says of a part's records: (N, C) probabilities, and how uncertain its samples are of them."""

    predictor: str
    probabilities: npt.NDArray
    uncertainty: dict[str, npt.NDArray]


def _measure(
    site_file: SiteFile,
    part: SiteSplit,
    request: EvaluateRequest,
    arrays: Arrays,
    groups: Sequence[Group] = (),
) -> Statistics:
    measured: Statistics = {}
    for each in _predictions(site_file, part, request, arrays):
        measured |= count_predictions(
            each.predictor, part, groups, each.probabilities, **each.uncertainty
        )
    return measured


def _predictions(
    site_file: SiteFile, part: SiteSplit, request: EvaluateRequest, arrays: Arrays
) -> Iterator[_Measured]:
    module = build_model(request.model, request.task, 0, site_file.backbone_folder)
    for predictor, weights in request.predictors.items():
        samples, device = without_prefix(predictor, arrays), compute_device(site_file)
        prediction = predict(module, samples, np.asarray(weights), part.features, device=device)
        uncertainty = {key: getattr(prediction, key) for key in ("epistemic", "aleatoric", "total")}
        yield _Measured(predictor, prediction.probabilities, uncertainty)
        if predictor == "posterior" and request.recalibration is not None:
            mapped = in_fixed_pieces(
                partial(recalibrate, mapping=request.recalibration), prediction.probabilities
            )
            yield _Measured(RECALIBRATED, mapped, {})
        if predictor == "posterior" and request.trained_prevalence is not None:
            trained, declared, p = (
                request.trained_prevalence,
                site_file.prevalence,
                prediction.probabilities,
            )
            target = declared if isinstance(declared, tuple) else estimated_prevalence(p, trained)
            corrected = in_fixed_pieces(partial(with_prevalence, trained=trained, target=target), p)
            yield _Measured(PRIOR_CORRECTED, corrected, {})


def _count_evaluation(
    own: tuple[SiteFile, Site], request: EvaluateRequest, asked: Asked
) -> dict[str, Any]:
    """Count an evaluation in the ledger before anything is measured, or raise RefusedError.

    Return the log's words.
    """
    site_file, site = own
    policy, settings = site_file.policy, site_file.ledger
    if not policy.counts_evaluations:
        if settings is not None:
            with Ledger.open_existing(ledger_place(settings), settings.cohort) as ledger:
                if ledger.state().closed:
                    raise RefusedError(RefusalCode.COHORT_CLOSED)
        return {}
    with open_ledger(site_file, site, asked.line) as ledger:
        limits = policy.max_evaluations_per_run, policy.max_evaluations
        per_run, life = (math.inf if limit == "unlimited" else limit for limit in limits)
        # The same sums of other records are another evaluation: their difference is that of the
        # records.
        records = ledger.state().data_versions[-1].fingerprint
        identity = hashlib.sha256(f"{request_digest(request)} {records}".encode()).hexdigest()
        counted = ledger.count_evaluation(request.run, identity, per_run, life)
    if isinstance(counted, Refused):
        raise RefusedError(counted.code, counted.field)
    return {"evaluation": counted}


def declared_groups(part: SiteSplit, policy: Policy) -> dict[str, npt.NDArray]:
    """Join the values of attributes that the policy does not name, or that too few units have, to OTHER_GROUP.

    If that were too few units in turn, the smallest group joins it: else what is left out would
    follow from the rest. Returns attribute -> subgroup of each record, (N,) text, for the
    attributes that the policy names.
    """
    found: dict[str, npt.NDArray] = {}
    for attribute in (name for name in part.groups if name in policy.groups):
        values = part.groups[attribute]
        values = np.where(np.isin(values, policy.groups[attribute]), values, OTHER_GROUP)
        while True:
            sizes = {
                str(value): len(np.unique(part.unit_index[values == value]))
                for value in np.unique(values)
            }
            others = sizes.pop(OTHER_GROUP, None)
            small = [value for value, size in sizes.items() if size < policy.least_group_units]
            if not small and others is not None and others < policy.least_group_units and sizes:
                small = [min(sizes, key=lambda value: sizes[value])]
            if not small:
                break
            values = np.where(np.isin(values, small), OTHER_GROUP, values)
        if sizes:
            found[attribute] = values
    return found


def measured_groups(
    groups: Mapping[str, npt.NDArray], request: EvaluateRequest
) -> tuple[tuple[Group, ...], int]:
    """Choose the subgroups (attribute, value) of `groups`, (N,) text, that fit into a reply.

    Count those left out.
    """
    tables = to_arrays(empty(request.task.classes)).values()
    most = most_groups(len(request.measured) * sum(table.nbytes for table in tables))
    chosen, left_out = list[Group](), 0
    for attribute, values in groups.items():
        found = [(attribute, str(value)) for value in np.unique(values)]
        if len(chosen) + len(found) <= most:
            chosen += found
        else:
            left_out += len(found)
    return tuple(chosen), left_out


def count_predictions(
    predictor: str,
    part: SiteSplit,
    groups: Sequence[Group],
    probabilities: npt.NDArray,
    **uncertainty: npt.NDArray,
) -> Statistics:
    """Count predictions, (N, C), of all records as `<predictor>` and of subgroup i as `group-<i>/<predictor>`."""

    def counted(chosen: slice | npt.NDArray[np.bool_]) -> CalibrationStatistics:
        truth = None if part.truth is None else part.truth[chosen]
        parts = {name: values[chosen] for name, values in uncertainty.items()}
        return from_batch(probabilities[chosen], part.labels[chosen], truth=truth, **parts)

    measured = {predictor: counted(slice(None))}
    for number, (attribute, value) in enumerate(groups):
        measured[f"{subgroup_prefix(number)}/{predictor}"] = counted(
            part.groups[attribute] == value
        )
    return measured
