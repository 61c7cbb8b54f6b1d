"""From a message to its answer: what every request is checked for, and what the audit log says of it."""

import hashlib
from collections.abc import Callable

import torch
from flwr.app import Context, Message, MetricRecord

import clients
from clients.guard import Noted, own_site_file
from clients.messages import read_request, reply_message
from clients.own_site import card_of, site_file_of
from clients.pay import Answer, Asked, Request
from clients.policy import check_code, check_installed_code, check_plan, check_size, check_standing
from fl_dpbayes.config import SiteFile, check_origin, installed_package
from fl_dpbayes.files import ASKED, Config
from fl_dpbayes.files.audit_log import record
from fl_dpbayes.models import noted_shapes, release_memory
from fl_dpbayes.privacy import planned_stretch, reply_metrics
from fl_dpbayes.protocol import (
    Arrays,
    MessageT,
    TrainReply,
    TrainRequest,
    arrays_digest,
    plan_digest,
    request_digest,
    write_header,
)


def show_card(message: Message, context: Context, noted: Noted) -> Message:
    """Say who the site is and in which role it takes part."""
    site_file = site_file_of(message, context)
    noted["site"] = site_file.name
    check_standing(site_file)
    check_installed_code(site_file, own_site_file(context))
    check_origin(clients)
    card = card_of(site_file)
    if own_site_file(context):
        noted["released"] = _release(card, {})
    return reply_message(message, card, {})


def answer(
    came: tuple[Message, Context],
    kind: type[MessageT],
    work: Callable[[SiteFile, MessageT, Asked], Answer],
    noted: Noted,
) -> Message:
    """Answer a request, if the site's policy stands and allows the code and the plan that it names.

    No step is paid for before a line of the audit log tells the request. `came`: the message, and
    the context of the node. `noted`: gets what the audit log says of it.
    """
    message, context = came
    site_file = site_file_of(message, context)
    noted["site"] = site_file.name
    check_standing(site_file)
    check_installed_code(site_file, own_site_file(context))
    torch.set_num_threads(site_file.threads)
    request = read_request(message, kind)
    assert isinstance(request, Request)
    if own := own_site_file(context):
        noted |= {"run": request.run, "round": request.round, "request": request_digest(request)}
        noted |= {"plan": plan_digest(request), "code": installed_package().digest}
    check_code(site_file, request)
    check_plan(site_file, own, request)
    check_size(site_file, request)
    line = None
    if own:
        line = record(own, noted | {"decision": ASKED})
        noted["asked"] = line.number
    try:
        with noted_shapes():
            done = work(site_file, request, Asked(message, line))
    finally:
        release_memory()
    noted["charge"] = done.charge
    # A stop holds for what was begun before it: the reply stays in the ledger, and is sent when the
    # stop is lifted.
    check_standing(site_file)
    answered = reply_message(message, done.reply, done.arrays)
    if isinstance(request, TrainRequest) and isinstance(done.reply, TrainReply):
        stretch = planned_stretch(
            request.plan, done.reply.privacy.units, done.reply.first_step, done.reply.steps
        )
        answered.content["metrics"] = MetricRecord({**reply_metrics(done.reply, stretch)})
    if own:
        noted["released"] = _release(done.reply, done.arrays)
    return answered


def _release(reply: Config, arrays: Arrays) -> dict[str, str | int]:
    # Without the ledger's head, which is another one when the same reply is sent again.
    content = (
        reply.model_copy(update={"ledger_head": None})
        if "ledger_head" in type(reply).model_fields
        else reply
    )
    digest = hashlib.sha256((write_header(content) + arrays_digest(arrays)).encode()).hexdigest()
    return {
        "digest": digest,
        "arrays": len(arrays),
        "bytes": sum(array.nbytes for array in arrays.values()),
    }
