"""A site's answer to a training request: reserve, run the private chain, commit, release."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from clients.messages import RefusedError, read_start
from clients.model_inputs import model_inputs
from clients.own_site import compute_device, site_streams
from clients.pay import Answer, WorkResult, pay
from clients.policy import check_training_policy
from clients.received_request import ReceivedRequest
from fl_dpbayes.config import SiteFile
from fl_dpbayes.data import Site, load_site, open_ledger
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest
from fl_dpbayes.models import build_model, vector_to_arrays
from fl_dpbayes.privacy import (
    History,
    LedgerState,
    Reserved,
    Spending,
    chain_of_history,
    history_of_steps,
    joined,
    largest_prefix,
    slice_history,
    solve_plan,
)
from fl_dpbayes.protocol import MAX_HISTORY, Arrays, RefusalCode, TrainReply, TrainRequest, prefixed
from fl_dpbayes.samplers import (
    LocalTrace,
    TrainingRecords,
    log_likelihood_estimate,
    run_chain,
    state_arrays,
)
from fl_dpbayes.samplers.state_vectors import state_vectors
from fl_dpbayes.schedules import PlannedChain

PURPOSE = "train"
# A trace looks at so many records at most. Which ones stays at the site; they are the same in every
# round, so that rounds can be compared.
MOST_TRACED_RECORDS = 500
TRACED_RECORDS_SEED = 0
log = logging.getLogger("fl_dpbayes")


def train_chain(received: ReceivedRequest[TrainRequest]) -> Answer:
    """Run the requested stretch of the site's chain and release its samples.

    It runs as far as the site's budget admits.

    Args:
        received: The request; its message carries the start state `start/<name>`.

    Returns:
        The reply, and its arrays `samples/<name>` and `last/<name>`.

    Raises:
        RefusedError: With the code and the request's field.
        LedgerError: The ledger cannot be used; nothing was then released.
    """
    request = received.request
    site_file = received.site_file
    check_training_policy(site_file, request, received.shapes)
    start = read_start(request=request, message=received.message, shapes=received.shapes)
    site = load_site(site_file)
    if site.train is None or site.task != request.task:
        raise RefusedError(RefusalCode.BAD_REQUEST, "task")
    part = model_inputs(site_file, request.model, site.train)
    records = TrainingRecords(
        features=part.features,
        targets=part.labels,
        unit_index=part.unit_index,
        loss=received.outcome.loss,
    )
    with open_ledger(site_file, site, received.audit_line) as ledger:
        plan_digest = digest(request.plan)
        state = ledger.state()
        history = _planned_history(state, site, request, plan_digest)
        available = _available_steps(state, request, history)

        def work(reserved: Reserved) -> WorkResult:
            arrays = _run_stretch(
                received=received,
                records=records,
                chain=chain_of_history(request.plan, site.units, history),
                steps=range(request.first_step, request.first_step + reserved.steps),
                start=start,
            )
            return WorkResult(fields={}, arrays=arrays)

        spending = Spending(
            part="train",
            run=request.run,
            round=request.round,
            purpose=PURPOSE,
            request_digest=received.digest,
            plan_digest=plan_digest,
            plan=history,
            first_step=request.first_step,
            steps=available,
        )
        return pay(
            ledger=ledger,
            spending=spending,
            received=received,
            site=site,
            reply_type=TrainReply,
            work=work,
        )


def _planned_history(
    state: LedgerState, site: Site, request: TrainRequest, plan_digest: str
) -> History:
    """Return the events of the whole plan: those of the run's first request, or newly solved."""
    stored = state.planned("train", request.run, PURPOSE)
    if stored is not None:
        if stored.digest != plan_digest:
            raise RefusedError(RefusalCode.PLAN_CHANGED, "plan")
        return stored.history
    privacy = request.plan.privacy
    try:
        solved = solve_plan(request.plan, site.units)
    except (UserError, ValueError):
        # No noise of this coupling meets the request's budget, or its step sizes vanish.
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.privacy") from None
    if solved.epsilon <= privacy.epsilon:
        return solved.history
    # The request states its noise, and all steps together would cost more than the run's own
    # epsilon.
    multipliers = solved.noise_multipliers
    fitting = largest_prefix(
        multipliers, privacy.sampling_rate, privacy.epsilon, privacy.delta, privacy.adjacency
    )
    if fitting < 1:
        raise RefusedError(RefusalCode.BUDGET_EXHAUSTED, "plan.privacy.epsilon")
    return history_of_steps(multipliers[:fitting], privacy.sampling_rate)


def _available_steps(state: LedgerState, request: TrainRequest, history: History) -> int:
    """Return how many of the requested steps the plan holds, or raise RefusedError."""
    remaining_steps = sum(event.steps for event in history) - request.first_step
    remaining = slice_history(history, request.first_step, remaining_steps)
    spent = state.spent_in("train")
    # Checked before a step is paid for: a cost that is too long to state could not be released.
    if len(joined((*spent, *remaining))) > MAX_HISTORY:
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.privacy.coupling")
    available = min(request.steps, remaining_steps)
    if available < 1:
        raise RefusedError(RefusalCode.BUDGET_EXHAUSTED)
    return available


def _run_stretch(
    received: ReceivedRequest[TrainRequest],
    records: TrainingRecords,
    chain: PlannedChain,
    steps: range,
    start: Arrays,
) -> Arrays:
    request = received.request
    site_file = received.site_file
    device = compute_device(site_file)
    module = build_model(request.model, request.task, 0, site_file.backbone_folder)
    streams = site_streams(site_file, request.run, request.round, str(request.first_step))
    with local_trace(site_file=site_file, request=request, records=records, module=module) as trace:
        result = run_chain(
            module.to(device),
            records,
            chain=chain,
            steps=steps,
            start=state_vectors(start, request.plan.sampler, module),
            streams=streams.of_chain(),
            on_step=trace,
        )
    last = {name: torch.from_numpy(vector) for name, vector in result.last.items()}
    arrays = prefixed("last", state_arrays(last, module))
    if len(result.samples):
        arrays |= prefixed("samples", vector_to_arrays(torch.from_numpy(result.samples), module))
    return arrays


@contextmanager
def local_trace(
    site_file: SiteFile, request: TrainRequest, records: TrainingRecords, module: nn.Module
) -> Iterator[LocalTrace | None]:
    """Trace the chain that runs while the context lasts, if the site file names a folder for it.

    The table `<run>-<round>.csv` is written at the end, and where the chain fails as well: one that
    diverged needs it most. It is computed from records without noise, written to a file at the site
    and to nowhere else.

    Args:
        site_file: The site's own file.
        request: The request whose steps run.
        records: The records that the chain trains on.
        module: The model.

    Yields:
        What the chain calls after every step; None without a folder.
    """
    folder = site_file.trace_folder
    if folder is None:
        yield None
        return
    generator = np.random.default_rng(TRACED_RECORDS_SEED)
    trace = LocalTrace(
        request.plan, log_likelihood_estimate(module, records, MOST_TRACED_RECORDS, generator)
    )
    try:
        yield trace
    finally:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            trace.write_csv(folder / f"{request.run}-{request.round}.csv")
        except OSError as error:
            # The chain's privacy is spent: its reply must not be lost for want of a trace.
            log.warning(
                "the trace of round %s cannot be written to %s: %s", request.round, folder, error
            )
