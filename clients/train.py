"""A site's answer to a training request: reserve, run the private chain, commit, release."""

import numpy.typing as npt
import torch
from flwr.app import Message
from torch import nn

from clients.device import compute_device
from clients.model_inputs import model_inputs
from clients.policy import check_training_policy
from clients.privacy_statement import privacy_statement
from clients.refused import RefusedError
from clients.start_arrays import cavity_vectors, read_start
from clients.stored_reply import pack_reply, unpack_reply
from clients.trace import local_trace
from fl_dpbayes.config.base import digest
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.data.site import Site, SiteSplit, load_site
from fl_dpbayes.data.site_ledger import open_ledger
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import vector_to_arrays
from fl_dpbayes.privacy.events import History, history_of_steps, joined
from fl_dpbayes.privacy.ledger.ledger import Ledger, Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import Spending, slice_history
from fl_dpbayes.privacy.planned_noise import chain_of_history
from fl_dpbayes.privacy.solve import largest_prefix, solve_plan
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.protocol.arrays import Arrays, prefixed
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.train import MAX_HISTORY, TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import request_digest
from fl_dpbayes.samplers.chain import ChainResult, ChainStart, run_chain
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.state_vectors import state_arrays, state_vectors

PURPOSE = "train"


def train_chain(
    site_file: SiteFile, request: TrainRequest, message: Message
) -> tuple[TrainReply, dict[str, npt.NDArray]]:
    """Run the requested stretch of the site's chain, as far as its budget admits, and release its samples.

    The steps are reserved in the ledger before the first of them, and the reply is stored before it is sent: the same
    request again gets the stored reply.

    Args:
        site_file: the site.
        request: what is asked.
        message: the Flower message that carries the start state `start/<name>`, and `cavity/<name>`.

    Returns:
        The reply, and its arrays `samples/<name>` and `last/<name>`.

    Raises:
        RefusedError: with the code and the request's field.
        LedgerError: if the ledger cannot be used; nothing was then released.
    """
    check_training_policy(site_file, request)
    start, cavity = read_start(request, message)
    site = load_site(site_file)
    if site.train is None or site.task != request.task:
        raise RefusedError(RefusalCode.BAD_REQUEST, "task")
    part = model_inputs(site_file, request.model, site.train)
    with open_ledger(site_file, site) as ledger:
        history = _planned_history(ledger, site, request)
        _check_statement_fits(ledger, history, request.first_step)
        available = min(request.steps, sum(event.steps for event in history) - request.first_step)
        if available < 1:
            raise RefusedError(RefusalCode.BUDGET_EXHAUSTED)
        spending = Spending(
            part="train",
            run=request.run,
            round=request.round,
            purpose=PURPOSE,
            request_digest=request_digest(request),
            plan_digest=digest(request.plan),
            plan=history,
            first_step=request.first_step,
            steps=available,
        )
        match ledger.reserve(spending, request.ledger_head):
            case StoredReply(body):
                reply, arrays = unpack_reply(body, TrainReply)
                return reply.model_copy(update={"ledger_head": ledger.head()}), arrays
            case Refused(code, field):
                raise RefusedError(code, field)
            case Reserved() as reserved:
                return _run_and_commit(ledger, reserved, site_file, site, part, request, history, start, cavity)


def _planned_history(ledger: Ledger, site: Site, request: TrainRequest) -> History:
    stored = ledger.planned("train", request.run, PURPOSE)
    if stored is not None:
        if stored.digest != digest(request.plan):
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
    # The request states its noise, and all steps together would cost more than the run's own epsilon.
    sigmas = solved.noise_multipliers
    fitting = largest_prefix(sigmas, privacy.sampling_rate, privacy.epsilon, privacy.delta, privacy.adjacency)
    if fitting < 1:
        raise RefusedError(RefusalCode.BUDGET_EXHAUSTED, "plan.privacy.epsilon")
    return history_of_steps(sigmas[:fitting], privacy.sampling_rate)


def _check_statement_fits(ledger: Ledger, history: History, first_step: int) -> None:
    # Found before a step is paid for: a cost that is too long to state could not be released.
    rest = slice_history(history, first_step, sum(event.steps for event in history))
    if len(joined((*ledger.state().spent_in("train"), *rest))) > MAX_HISTORY:
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.privacy.coupling")


def _run_and_commit(
    ledger: Ledger,
    reserved: Reserved,
    site_file: SiteFile,
    site: Site,
    part: SiteSplit,
    request: TrainRequest,
    history: History,
    start: Arrays,
    cavity: Arrays,
) -> tuple[TrainReply, dict[str, npt.NDArray]]:
    try:
        module = build_model(request.model, request.task, seed=0)
        result = _run(site_file, site, part, request, history, reserved.steps, module, start, cavity)
        arrays = prefixed("last", state_arrays({k: torch.from_numpy(v) for k, v in result.last.items()}, module))
        if len(result.samples):
            samples = vector_to_arrays(torch.from_numpy(result.samples), module)
            arrays |= prefixed("samples", samples)
        reply = _reply(ledger, reserved, site, request, seeded=site_file.insecure_seed is not None)
        head = ledger.commit(reserved.reservation, pack_reply(reply, arrays))
    except Exception:
        # An interrupt is no failure of the work: like a kill it leaves the reservation open, to be taken over.
        ledger.fail(reserved.reservation)
        raise
    return reply.model_copy(update={"ledger_head": head}), arrays


def _run(
    site_file: SiteFile,
    site: Site,
    part: SiteSplit,
    request: TrainRequest,
    history: History,
    steps: int,
    module: nn.Module,
    start: Arrays,
    cavity: Arrays,
) -> ChainResult:
    device = compute_device(site_file)
    prior = cavity_vectors(cavity, module, device)
    with local_trace(site_file, request, part, module, prior) as trace:
        return run_chain(
            module.to(device),
            TrainingRecords(part.features, part.labels, part.unit_index),
            chain=chain_of_history(request.plan, site.units, history),
            steps=range(request.first_step, request.first_step + steps),
            start=ChainStart(state_vectors(start, request.plan.sampler, module), prior),
            streams=_streams(site_file, request).of_chain(),
            on_step=trace,
        )


def _streams(site_file: SiteFile, request: TrainRequest) -> Streams:
    if site_file.insecure_seed is None:
        return Streams.from_entropy()
    context = f"{site_file.name}|{request.run}|{request.round}|{request.first_step}"
    return Streams.from_insecure_seed(site_file.insecure_seed, context)


def _reply(ledger: Ledger, reserved: Reserved, site: Site, request: TrainRequest, *, seeded: bool) -> TrainReply:
    return TrainReply(
        run=request.run,
        round=request.round,
        request=request_digest(request),
        status="OK" if reserved.steps == request.steps else "PARTIAL",
        first_step=request.first_step,
        steps=reserved.steps,
        privacy=privacy_statement(ledger, "train", site, seeded=seeded),
        ledger_head=reserved.head,
    )
