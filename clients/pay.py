"""Work that spends a site's privacy budget: reserved before it starts, stored before its reply is sent."""

import json
import math
from collections.abc import Callable

import numpy.typing as npt
from safetensors.numpy import load, save

from clients.messages import RefusedError
from fl_dpbayes.config.base import Config
from fl_dpbayes.privacy.events import joined, write_history
from fl_dpbayes.privacy.ledger.ledger import Ledger, Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import Part, Spending
from fl_dpbayes.protocol.train import PrivacyStatement
from fl_dpbayes.protocol.wire import MessageT

SentArrays = dict[str, npt.NDArray]


def pay(
    ledger: Ledger,
    spending: Spending,
    echoed_head: str | None,
    kind: type[MessageT],
    work: Callable[[Reserved], tuple[MessageT, SentArrays]],
) -> tuple[MessageT, SentArrays]:
    """Reserve what a request asks to spend, do the work, and store its reply; the same request gets that reply again.

    `kind`: of the reply, which has the field `ledger_head`. Raises RefusedError what the ledger refuses, by code
    and field.
    """
    match ledger.reserve(spending, echoed_head):
        case StoredReply(body):
            reply, arrays = unpack_reply(body, kind)
            head = ledger.head()
        case Refused(code, field):
            raise RefusedError(code, field)
        case Reserved() as reserved:
            try:
                reply, arrays = work(reserved)
                head = ledger.commit(reserved.reservation, pack_reply(reply, arrays))
            except Exception:
                # An interrupt is no failure of the work: like a kill it leaves the reservation open, to be taken over.
                ledger.fail(reserved.reservation)
                raise
    return reply.model_copy(update={"ledger_head": head}), arrays


def pack_reply(reply: Config, arrays: SentArrays) -> bytes:
    """Write a reply and its arrays as one safetensors file, which the ledger keeps."""
    return save(arrays, metadata={"reply": reply.model_dump_json()})


def unpack_reply(body: bytes, kind: type[MessageT]) -> tuple[MessageT, SentArrays]:
    """Read a stored reply back, the inverse of `pack_reply`.

    Raises ValueError if the bytes are not such a file.
    """
    header_size = int.from_bytes(body[:8], "little")
    metadata = json.loads(body[8 : 8 + header_size])["__metadata__"]
    return kind.model_validate_json(metadata["reply"]), load(body)


def privacy_statement(ledger: Ledger, part: Part, units: int, *, seeded: bool) -> PrivacyStatement:
    """State what a part of the site's cohort has spent, from the ledger alone; infinite values are None.

    `part`: of the units; the parts are disjoint and each has the whole budget. `units`: the declared number of the
    part's units.
    """
    spent, cohort = ledger.spent(part), ledger.cohort
    return PrivacyStatement(
        cohort=cohort.name,
        unit=cohort.unit,
        units=units,
        adjacency=cohort.adjacency,
        delta=cohort.delta,
        epsilon=_finite(spent.epsilon),
        epsilon_method=spent.method,
        mu=_finite(spent.mu.mu),
        mu_kind=spent.mu.kind,
        steps=spent.steps,
        budget=_finite(cohort.epsilon),
        history=tuple((sigma, rate, int(steps)) for sigma, rate, steps in write_history(joined(spent.history))),
        seeded=seeded,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
