"""Lets evaluation sums out with Gaussian noise that the site's ledger pays for."""

from collections.abc import Callable

from clients.messages import RefusedError
from clients.own_site import site_streams
from clients.pay import SentArrays, pay, privacy_statement
from fl_dpbayes.calibration.bins import REPORT_BINS
from fl_dpbayes.calibration.release import noised_table, noised_to_arrays
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.data.declared_units import is_delta_allowed
from fl_dpbayes.data.site import Site
from fl_dpbayes.data.site_ledger import open_ledger
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Reserved
from fl_dpbayes.privacy.ledger.state import Spending
from fl_dpbayes.protocol.arrays import prefixed
from fl_dpbayes.protocol.evaluate import EvaluateReply, EvaluateRequest
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.wire import request_digest

Measure = Callable[[], dict[str, CalibrationStatistics]]


def release_noised(
    site_file: SiteFile, site: Site, request: EvaluateRequest, measure: Measure
) -> tuple[EvaluateReply, SentArrays]:
    """Release one coarse noised table per predictor, paid for in the ledger's account of the test part.

    Each table is one full-batch Gaussian event; the test part is disjoint from the training part, so it has a budget of
    its own.

    `site`: its records; every unit counts at most `policy.max_test_records_per_unit` of them. Returns the reply and
    its arrays `<predictor>/noised`. Raises RefusedError POLICY_DENIED with the field, or what the ledger refuses.
    """
    settings, policy, sigma = site_file.ledger, site_file.policy, request.noise_multiplier
    if settings is None:
        raise RefusedError(RefusalCode.NOT_SENT)
    if sigma is None or sigma < policy.min_evaluation_noise_multiplier:
        raise RefusedError(RefusalCode.POLICY_DENIED, "noise_multiplier")
    if request.delta != settings.delta or not is_delta_allowed(site_file, "test", request.delta):
        raise RefusedError(RefusalCode.POLICY_DENIED, "delta")
    tables = len(request.measured)
    spending = Spending(
        part="test",
        run=request.run,
        round=request.round,
        purpose=f"evaluate {request.round}",
        request_digest=request_digest(request),
        plan_digest=request_digest(request),
        plan=(GaussianEvent(sigma, 1.0, tables),),
        first_step=0,
        steps=tables,
    )
    seeded = site_file.insecure_seed is not None
    with open_ledger(site_file, site) as ledger:

        def work(reserved: Reserved) -> tuple[EvaluateReply, SentArrays]:
            # A budget for some of the tables is not used: which ones would be missing is nobody's choice.
            if reserved.steps < tables:
                raise RefusedError(RefusalCode.BUDGET_EXHAUSTED)
            streams = site_streams(site_file, request.run, request.round, "evaluate")
            arrays: SentArrays = {}
            noise_std = 0.0
            for predictor, statistics in measure().items():
                generator, most = streams.generator(predictor), policy.max_test_records_per_unit
                table = noised_table(statistics, REPORT_BINS, sigma, generator, most)
                noise_std = table.noise_std
                arrays |= prefixed(predictor, noised_to_arrays(table))
            reply = EvaluateReply(
                run=request.run,
                round=request.round,
                request=spending.request_digest,
                release="noised",
                noise_std=noise_std,
                privacy=privacy_statement(ledger, "test", site.units, seeded=seeded),
                ledger_head=reserved.head,
            )
            return reply, arrays

        return pay(ledger, spending, request.ledger_head, EvaluateReply, work)
