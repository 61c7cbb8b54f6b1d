"""Records to and from Flower messages on the server's side, and replies that cannot be read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode

from fl_dpbayes.config import outside_text
from fl_dpbayes.files import Config
from fl_dpbayes.protocol import (
    MessageT,
    Refusal,
    RefusalCode,
    read_header,
    read_sent_arrays,
    write_header,
)

# Replies are pulled in the order of the requests: those behind a silent site's when its time is
# over.
PULL_SECONDS = 60.0
# What the grid answers in a site's place when a message's time to live is over.
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
# What a node answers that does not let the run's app bundle in (`fl-dpbayes site start`).
BUNDLE_REFUSED = ErrorCode.INVALID_FAB
UNREADABLE = "it cannot be read"
# Flower's own errors (`ErrorCode`) in words; whatever text comes with one is the other side's.
ERRORS = {1: "its app cannot be loaded", 5: "its node is gone", 8: "its app was killed"}


class RejectedError(Exception):
    """A reply that is not what was asked for.

    Its text is the reason, printable and at most 80 characters.
    """


@contextmanager
def rejecting() -> Iterator[None]:
    """Turn whatever goes wrong while one reply is read into its rejection.

    Its site is left out, and the run goes on. Checks raise a ValueError that names what is wrong.
    Nothing else should come, but what a site sends must not choose which of our mistakes ends the
    run of all others.

    Raises:
        RejectedError: With the reason.
    """
    try:
        yield
    except ValueError as error:
        raise RejectedError(outside_text(str(error))) from None
    except Exception as error:
        log(WARNING, "a reply could not be read: %s", type(error).__name__)
        raise RejectedError(UNREADABLE) from None


def encoded(arrays: dict[str, npt.NDArray]) -> ArrayRecord:
    """Encode the arrays of a request; each is taken out, so that memory need not hold it twice."""
    return ArrayRecord(
        {name: Array(np.ascontiguousarray(arrays.pop(name))) for name in list(arrays)}
    )


def request_message(
    record: Config | None,
    arrays: ArrayRecord | None,
    *,
    node_id: int,
    message_type: str,
    round_number: int,
    time_to_live: float,
    simulation_folder: str,
) -> Message:
    """Build the message that carries a request and its encoded arrays to a node.

    Args:
        record: The request; None asks but who the site is.
        arrays: Its arrays, if it has any.
        node_id: The node.
        message_type: Flower's type of the message.
        round_number: Used as Flower's group.
        time_to_live: Seconds for which it is waited for; Flower drops request and reply a minute
            later, so that what came in time can still be pulled.
        simulation_folder: Where a virtual site finds its site file; empty in deployment, and never
            read by a node that has a site file of its own.
    """
    config = ConfigRecord({"simulation-folder": simulation_folder})
    if record is not None:
        config["record"] = write_header(record)
    content = RecordDict({"config": config})
    if arrays is not None:
        content["arrays"] = arrays
    return Message(
        content=content,
        dst_node_id=node_id,
        message_type=message_type,
        ttl=time_to_live + PULL_SECONDS,
        group_id=str(round_number),
    )


def error_text(reply: Message) -> str:
    """Say which of Flower's errors came in the place of a reply.

    Nothing where none did, or a bundle was refused.
    """
    if not reply.has_error() or reply.error.code == BUNDLE_REFUSED:
        return ""
    meaning = ERRORS.get(reply.error.code, "the log of its node says more")
    return f"error code {reply.error.code}: {meaning}"


def read_reply(reply: Message, reply_type: type[MessageT], node_id: int) -> MessageT | Refusal:
    """Read the record of the node that was asked, or its refusal.

    Raises:
        ValueError: It is an error, of another node, or no record.
    """
    error = error_text(reply)
    if error:
        raise ValueError(error)
    if reply.has_error():
        return Refusal(code=RefusalCode.BUNDLE_NOT_APPROVED)
    if reply.metadata.src_node_id != node_id:
        raise ValueError("it comes from another node than was asked")
    config = reply.content.config_records.get("config", ConfigRecord())
    if "refusal" in config:
        return read_header(Refusal, config["refusal"])
    return read_header(reply_type, config.get("record"))


def read_arrays(
    message: Message, shapes: Mapping[str, tuple[int, ...]], dtype: npt.DTypeLike = np.float32
) -> dict[str, npt.NDArray]:
    """Decode a reply's arrays.

    Raises:
        ValueError: They are not finite, or not of exactly these names, shapes and type.
    """
    record = message.content.array_records.get("arrays", ArrayRecord())
    expected = {name: (shape, np.dtype(dtype)) for name, shape in shapes.items()}
    return read_sent_arrays(record, expected)


def array_bytes(message: Message) -> int:
    """Count the bytes of a message's arrays."""
    records = message.content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())
