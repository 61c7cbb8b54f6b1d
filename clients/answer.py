"""From a message to its answer: the checks of every request, and what the audit log says of it."""

import hashlib
from collections.abc import Callable

import torch
from flwr.app import Context, Message, MetricRecord

import clients
from clients.guard import Noted, own_site_file
from clients.messages import read_request, reply_message
from clients.own_site import card_of, site_file_of
from clients.pay import Answer
from clients.policy import check_code, check_installed_code, check_plan, check_size, check_standing
from clients.received_request import ReceivedRequest, RequestT
from fl_dpbayes.config import SiteFile, check_origin, installed_package
from fl_dpbayes.files import ASKED, Config
from fl_dpbayes.files.audit_log import record
from fl_dpbayes.models import noted_shapes, release_memory
from fl_dpbayes.privacy import planned_stretch, reply_metrics
from fl_dpbayes.protocol import (
    Arrays,
    TrainReply,
    TrainRequest,
    arrays_digest,
    plan_digest,
    request_digest,
    write_header,
)


def show_card(message: Message, context: Context, noted: Noted) -> Message:
    """Say who the site is and in which role it takes part."""
    site_file = _open_site(message, context, noted)
    check_origin(clients)
    card = card_of(site_file)
    if own_site_file(context):
        noted["released"] = _release(card, {})
    return reply_message(message, card, {})


def answer(
    message: Message,
    context: Context,
    noted: Noted,
    request_type: type[RequestT],
    work: Callable[[ReceivedRequest[RequestT]], Answer],
) -> Message:
    """Answer a request, if the site's policy stands and allows the code and the plan that it names.

    No step is paid for before a line of the audit log tells the request.

    Args:
        message: The request as it came.
        context: The node's context.
        noted: Gets what the audit log says of the message.
        request_type: Kind of the request.
        work: What makes the answer.
    """
    received = _receive(message, context, noted, request_type)
    try:
        with noted_shapes():
            answered = work(received)
    finally:
        release_memory()
    noted["charge"] = answered.charge
    # A stop holds for what was begun before it: the reply stays in the ledger, and is sent when the
    # stop is lifted.
    check_standing(received.site_file)
    reply_to_server = reply_message(message, answered.reply, answered.arrays)
    if isinstance(received.request, TrainRequest) and isinstance(answered.reply, TrainReply):
        metrics = _training_metrics(received.request, answered.reply)
        reply_to_server.content["metrics"] = metrics
    if own_site_file(context):
        noted["released"] = _release(answered.reply, answered.arrays)
    return reply_to_server


def _open_site(message: Message, context: Context, noted: Noted) -> SiteFile:
    """Read the file of a site that answers at all, with the code that was approved there."""
    site_file = site_file_of(message, context)
    noted["site"] = site_file.name
    check_standing(site_file)
    check_installed_code(site_file, own_site_file(context))
    return site_file


def _receive(
    message: Message, context: Context, noted: Noted, request_type: type[RequestT]
) -> ReceivedRequest[RequestT]:
    """Read a request, check it against the site's policy, and tell it to the audit log."""
    site_file = _open_site(message, context, noted)
    site_file_path = own_site_file(context)
    torch.set_num_threads(site_file.threads)
    request = read_request(message, request_type)
    digest = request_digest(request)
    if site_file_path:
        noted |= {"run": request.run, "round": request.round, "request": digest}
        noted |= {"plan": plan_digest(request), "code": installed_package().digest}
    check_code(site_file, request)
    check_plan(site_file, site_file_path, request)
    shapes = check_size(site_file, request)
    audit_line = None
    if site_file_path:
        audit_line = record(site_file_path, noted | {"decision": ASKED})
        noted["asked"] = audit_line.number
    return ReceivedRequest(
        site_file=site_file,
        request=request,
        digest=digest,
        message=message,
        shapes=shapes,
        audit_line=audit_line,
    )


def _training_metrics(request: TrainRequest, reply: TrainReply) -> MetricRecord:
    """Return what a training reply says again in the terms of Flower's own strategies."""
    stretch = planned_stretch(request.plan, reply.privacy.units, reply.first_step, reply.steps)
    return MetricRecord({**reply_metrics(reply, stretch)})


def _release(reply: Config, arrays: Arrays) -> dict[str, str | int]:
    """Return what the audit log says of a reply that leaves."""
    content = reply
    if "ledger_head" in type(reply).model_fields:
        # The head is another one when the same reply is sent again.
        content = reply.model_copy(update={"ledger_head": None})
    text = write_header(content) + arrays_digest(arrays)
    return {
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "arrays": len(arrays),
        "bytes": sum(array.nbytes for array in arrays.values()),
    }
