"""Work that spends a site's privacy budget: reserved before it starts, stored before its reply is sent."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from flwr.app import Message
from safetensors.numpy import load, save

from clients.messages import ChargedError, RefusedError
from clients.stated_passes import stated_passes
from fl_dpbayes.config import SiteFile
from fl_dpbayes.data import Site
from fl_dpbayes.files import AuditLine, Config, digest
from fl_dpbayes.privacy import (
    History,
    Ledger,
    LedgerError,
    Part,
    Refused,
    Reserved,
    Spending,
    StoredReply,
    write_history,
)
from fl_dpbayes.protocol import (
    EvaluateRequest,
    MessageT,
    PrivacyStatement,
    RecalibrateRequest,
    RefusalCode,
    TrainRequest,
    request_digest,
)

SentArrays = dict[str, npt.NDArray]
Request = TrainRequest | RecalibrateRequest | EvaluateRequest


@dataclass(frozen=True)
class Asked:
    """A request as it came, and the line of the audit log that was written for it before any step is paid for.

    A simulated site has no log.
    """

    message: Message
    line: AuditLine | None


@dataclass(frozen=True)
class Answer:
    """What leaves a site, and what it cost: the audit log's words."""

    reply: Config
    arrays: SentArrays
    charge: dict[str, Any]


def spending_of(request: Request, part: Part, purpose: str, plan: History, steps: int) -> Spending:
    """Say what a request asks to spend: so many steps of a plan.

    An evaluation is the whole of its own plan.
    """
    asked = request_digest(request)
    stated, first = (
        (asked, 0)
        if isinstance(request, EvaluateRequest)
        else (digest(request.plan), request.first_step)
    )
    return Spending(part, request.run, request.round, purpose, asked, stated, plan, first, steps)


def pay(
    ledger: Ledger,
    spending: Spending,
    request: Request,
    kind: type[MessageT],
    own: tuple[SiteFile, Site],
    work: Callable[[Reserved], tuple[dict[str, Any], SentArrays]],
) -> Answer:
    """Reserve what a request asks to spend, do the work, and store its reply.

    The same request gets that reply again.

    `kind`: of the reply. `own`: the site. `work` returns what is of this kind alone in the reply,
    and its arrays. Raises RefusedError what the ledger refuses, by code and field; ChargedError if
    the work failed; LedgerError if the ledger cannot be written.
    """
    charge = {"part": spending.part, "steps": 0}
    match ledger.reserve(spending, request.ledger_head):
        case StoredReply(body):
            reply, arrays = unpack_reply(body, kind)
            head = ledger.head()
        case Refused(code, field):
            raise RefusedError(code, field)
        case Reserved() as reserved:
            try:
                fields, arrays = work(reserved)
                said = _stated(ledger, spending, request, own, reserved) | {
                    "passes": stated_passes(own[0])
                }
                reply = kind.model_validate(said | fields)
                head = ledger.commit(reserved.reservation, pack_reply(reply, arrays))
            except LedgerError:
                # What a disk refuses depends on neither records nor noise: like a kill it leaves
                # the reservation open, to be taken over, and nothing was released.
                raise
            except Exception as error:
                # An interrupt is no failure of the work: like a kill it leaves the reservation
                # open, to be taken over.
                ledger.fail(reserved.reservation)
                raise ChargedError(charge | {"steps": reserved.steps}) from error
            spent = reply.model_dump(include={"privacy": {"epsilon"}})["privacy"]
            charge |= {"steps": reserved.steps, "epsilon_so_far": spent["epsilon"]}
            if ledger.state().closed:
                raise ChargedError(charge) from RefusedError(RefusalCode.COHORT_CLOSED)
    return Answer(reply.model_copy(update={"ledger_head": head}), arrays, charge)


def pack_reply(reply: Config, arrays: SentArrays) -> bytes:
    """Write a reply and its arrays as one safetensors file, which the ledger keeps."""
    return save(arrays, metadata={"reply": reply.model_dump_json()})


def unpack_reply(body: bytes, kind: type[MessageT]) -> tuple[MessageT, SentArrays]:
    """Read a stored reply back, the inverse of `pack_reply`.

    ValueError if the bytes are not such a file.
    """
    header_size = int.from_bytes(body[:8], "little")
    metadata = json.loads(body[8 : 8 + header_size])["__metadata__"]
    return kind.model_validate_json(metadata["reply"]), load(body)


def _stated(
    ledger: Ledger,
    spending: Spending,
    request: Request,
    own: tuple[SiteFile, Site],
    reserved: Reserved,
) -> dict[str, Any]:
    """Write what every paid reply states: whose it is, how far it went, and what the part has spent by the ledger."""
    site_file, site = own
    spent, cohort = ledger.spent(spending.part), ledger.cohort
    privacy = PrivacyStatement(
        cohort=cohort.name,
        unit=cohort.unit,
        adjacency=cohort.adjacency,
        delta=cohort.delta,
        units=site.recalibration_units if spending.part == "recalibration" else site.units,
        epsilon=_finite(spent.epsilon),
        epsilon_method=spent.method,
        mu=_finite(spent.mu.mu),
        mu_kind=spent.mu.kind,
        steps=spent.steps,
        budget=_finite(cohort.epsilon),
        history=tuple(
            (sigma, rate, int(steps)) for sigma, rate, steps in write_history(spent.history)
        ),
        seeded=site_file.insecure_seed is not None,
    )
    stated = {
        "run": spending.run,
        "round": spending.round,
        "request": spending.request_digest,
        "privacy": privacy,
    }
    if not isinstance(request, EvaluateRequest):
        status = "OK" if reserved.steps == request.steps else "PARTIAL"
        stated |= {"status": status, "first_step": request.first_step, "steps": reserved.steps}
    return stated | {"ledger_head": reserved.head}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
