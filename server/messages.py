"""Records to and from Flower messages, on the server's side."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from fl_dpbayes.config.base import Config
from fl_dpbayes.protocol.npy import read_sent_arrays
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.wire import MessageT, read_header, write_header

# What the grid answers in a site's place when a message's time to live is over.
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


def encoded(arrays: dict[str, npt.NDArray]) -> ArrayRecord:
    """Encode the arrays of a request; requests to several sites may share them.

    Args:
        arrays: name -> array; each is taken out as it is encoded, so that memory need not hold it twice.

    Returns:
        Flower's record of them.
    """
    return ArrayRecord({name: Array(np.ascontiguousarray(arrays.pop(name))) for name in list(arrays)})


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
    """Build the message that carries a request.

    Args:
        record: the request; None for a query, which asks nothing but who the site is.
        arrays: its arrays, encoded.
        node_id: the receiving node.
        message_type: Flower's `query`, `train` or `evaluate`.
        round_number: the round, used as Flower's group.
        time_to_live: seconds after which the message is dropped.
        simulation_folder: where a virtual site finds its site file; empty in deployment, and never read by a node
            that has a site file of its own.

    Returns:
        The message.
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
        ttl=time_to_live,
        group_id=str(round_number),
    )


def read_reply(reply: Message, kind: type[MessageT], node_id: int) -> MessageT | Refusal:
    """Read and validate the record of a node's reply, or the refusal that came instead.

    Args:
        reply: the message.
        kind: the record that is expected.
        node_id: the node that was asked.

    Returns:
        The record or the refusal.

    Raises:
        ValueError: if the reply is an error, comes from another node (an error that the grid itself made may), or
            carries no valid record.
    """
    if reply.has_error():
        raise ValueError(f"error code {reply.error.code}")
    if reply.metadata.src_node_id != node_id:
        raise ValueError("it comes from another node than was asked")
    config = reply.content.config_records.get("config", ConfigRecord())
    if "refusal" in config:
        return read_header(Refusal, config["refusal"])
    return read_header(kind, config.get("record"))


def read_arrays(
    message: Message, shapes: Mapping[str, tuple[int, ...]], dtype: npt.DTypeLike = np.float32
) -> dict[str, npt.NDArray]:
    """Decode the arrays of a reply, after checking their declared names, shapes and sizes.

    Args:
        message: the reply.
        shapes: name -> expected shape; nothing else is accepted.
        dtype: the type that every array must have.

    Returns:
        Name -> array.

    Raises:
        ValueError: at the first difference, before anything is allocated.
    """
    record = message.content.array_records.get("arrays", ArrayRecord())
    layout = {name: (shape, np.dtype(dtype)) for name, shape in shapes.items()}
    return read_sent_arrays(record, layout)


def array_bytes(message: Message) -> int:
    """Count the bytes of a message's arrays."""
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
