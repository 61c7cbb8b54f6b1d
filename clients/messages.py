"""Records to and from Flower messages, on a site's side."""

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from clients.refused import RefusedError
from fl_dpbayes.config.base import Config
from fl_dpbayes.protocol.arrays import read_sent_arrays
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.wire import MessageT, read_header, write_header


def read_request(message: Message, kind: type[MessageT]) -> MessageT:
    """Read and validate the record of a request.

    Raises:
        RefusedError: BAD_REQUEST with the first bad field.
    """
    config = message.content.config_records.get("config", ConfigRecord())
    try:
        return read_header(kind, config.get("record"))
    except ValueError as error:
        raise RefusedError(RefusalCode.BAD_REQUEST, str(error).split(":", maxsplit=1)[0]) from None


def read_arrays(message: Message, shapes: dict[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.float32]]:
    """Decode the arrays of a request, after checking their declared names, shapes and sizes.

    Args:
        message: the request.
        shapes: name -> expected shape, all float32; nothing else is accepted.

    Returns:
        Name -> array.

    Raises:
        RefusedError: BAD_REQUEST, before any array of unexpected size is decoded.
    """
    record = message.content.array_records.get("arrays", ArrayRecord())
    try:
        return read_sent_arrays(record, {name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()})
    except ValueError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "arrays") from None


def reply_message(request: Message, record: Config, arrays: dict[str, npt.NDArray]) -> Message:
    """Build the reply that carries a record and its arrays."""
    content = RecordDict({"config": ConfigRecord({"record": write_header(record)})})
    if arrays:
        content["arrays"] = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    return Message(content, reply_to=request)


def refusal_message(request: Message, refusal: Refusal) -> Message:
    """Build the reply that carries a refusal."""
    return Message(RecordDict({"config": ConfigRecord({"refusal": write_header(refusal)})}), reply_to=request)
