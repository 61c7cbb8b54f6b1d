"""Work that spends a site's privacy budget: reserved before it, stored before its reply is sent."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy.typing as npt
from safetensors.numpy import load, save

from clients.messages import Charge, ChargedError, RefusedError
from clients.received_request import ReceivedRequest, RequestT
from clients.stated_passes import stated_passes
from fl_dpbayes.config import SiteFile
from fl_dpbayes.data import Site
from fl_dpbayes.files import Config
from fl_dpbayes.privacy import (
    Ledger,
    LedgerError,
    Part,
    Refused,
    Reserved,
    Spending,
    StoredReply,
)
from fl_dpbayes.protocol import (
    EvaluateRequest,
    MessageT,
    PrivacyStatement,
    RefusalCode,
)

SentArrays = dict[str, npt.NDArray]


@dataclass(frozen=True)
class Answer:
    """What leaves a site, and what it cost.

    Attributes:
        reply: The reply's header.
        arrays: The reply's arrays, by name.
        charge: What the audit log says of the cost.
    """

    reply: Config
    arrays: SentArrays
    charge: Charge


@dataclass(frozen=True)
class WorkResult:
    """What paid work adds to the fields that every paid reply has.

    Attributes:
        fields: Fields of this kind of reply alone.
        arrays: The reply's arrays, by name.
    """

    fields: Mapping[str, object]
    arrays: SentArrays


def pay(
    ledger: Ledger,
    spending: Spending,
    received: ReceivedRequest[RequestT],
    site: Site,
    reply_type: type[MessageT],
    work: Callable[[Reserved], WorkResult],
) -> Answer:
    """Reserve what a request asks to spend, do the work, and store its reply.

    The same request gets that reply again.

    Args:
        ledger: The open ledger of the site's cohort.
        spending: What the request asks to spend.
        received: The request.
        site: The site's records.
        reply_type: Kind of the reply.
        work: What the reserved steps are for.

    Raises:
        RefusedError: What the ledger refuses, by code and field.
        ChargedError: The work failed, or the cohort was closed meanwhile.
        LedgerError: The ledger cannot be written.
    """
    reservation = ledger.reserve(spending, received.request.ledger_head)
    if isinstance(reservation, Refused):
        raise RefusedError(reservation.code, reservation.field)
    if isinstance(reservation, StoredReply):
        stored, arrays = unpack_reply(reservation.body, reply_type)
        stored = stored.model_copy(update={"ledger_head": ledger.head()})
        return Answer(reply=stored, arrays=arrays, charge={"part": spending.part, "steps": 0})

    charge: Charge = {"part": spending.part, "steps": reservation.steps}
    try:
        result = work(reservation)
        privacy = _privacy_statement(ledger, spending.part, received.site_file, site)
        stated = _stated_fields(received, reservation) | {
            "privacy": privacy,
            "passes": stated_passes(received.site_file),
        }
        reply = reply_type.model_validate({**stated, **result.fields})
        head = ledger.commit(reservation.reservation, pack_reply(reply, result.arrays))
    except LedgerError:
        # What a disk refuses depends on neither records nor noise: like a kill it leaves the
        # reservation open, to be taken over, and nothing was released.
        raise
    except Exception as error:
        # An interrupt is no failure of the work: like a kill it leaves the reservation open, to be
        # taken over.
        ledger.fail(reservation.reservation)
        raise ChargedError(charge, error) from error

    charge["epsilon_so_far"] = privacy.epsilon
    if ledger.state().closed:
        raise ChargedError(charge, RefusedError(RefusalCode.COHORT_CLOSED))
    return Answer(
        reply=reply.model_copy(update={"ledger_head": head}), arrays=result.arrays, charge=charge
    )


def pack_reply(reply: Config, arrays: SentArrays) -> bytes:
    """Write a reply and its arrays as one safetensors file, which the ledger keeps."""
    return save(arrays, metadata={"reply": reply.model_dump_json()})


def unpack_reply(body: bytes, reply_type: type[MessageT]) -> tuple[MessageT, SentArrays]:
    """Read a stored reply back, the inverse of `pack_reply`.

    Raises:
        ValueError: The bytes are not such a file.
    """
    header_size = int.from_bytes(body[:8], "little")
    metadata = json.loads(body[8 : 8 + header_size])["__metadata__"]
    return reply_type.model_validate_json(metadata["reply"]), load(body)


def _stated_fields(received: ReceivedRequest[RequestT], reservation: Reserved) -> dict[str, object]:
    """Return what a paid reply states of its request, and how far the work went."""
    request = received.request
    fields: dict[str, object] = {
        "run": request.run,
        "round": request.round,
        "request": received.digest,
        "ledger_head": reservation.head,
    }
    if not isinstance(request, EvaluateRequest):
        fields["status"] = "OK" if reservation.steps == request.steps else "PARTIAL"
        fields["first_step"] = request.first_step
        fields["steps"] = reservation.steps
    return fields


def _privacy_statement(
    ledger: Ledger, part: Part, site_file: SiteFile, site: Site
) -> PrivacyStatement:
    """Return what a part of the site's records has spent, by the ledger."""
    cohort = ledger.cohort
    spent = ledger.spent(part)
    history = tuple(
        (event.noise_multiplier, event.sampling_rate, event.steps) for event in spent.history
    )
    return PrivacyStatement(
        cohort=cohort.name,
        unit=cohort.unit,
        adjacency=cohort.adjacency,
        delta=cohort.delta,
        units=site.recalibration_units if part == "recalibration" else site.units,
        epsilon=_finite_or_none(spent.epsilon),
        epsilon_method=spent.method,
        mu=_finite_or_none(spent.mu.mu),
        mu_kind=spent.mu.kind,
        steps=spent.steps,
        budget=_finite_or_none(cohort.epsilon),
        history=history,
        seeded=site_file.insecure_seed is not None,
    )


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
