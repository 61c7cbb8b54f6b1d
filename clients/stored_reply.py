"""A reply as the bytes that the ledger keeps, to be sent again when the same request comes again."""

import json

import numpy.typing as npt
from safetensors.numpy import load, save

from fl_dpbayes.config.base import Message
from fl_dpbayes.protocol.wire import MessageT


def pack_reply(reply: Message, arrays: dict[str, npt.NDArray]) -> bytes:
    """Write a reply and its arrays as one safetensors file."""
    return save(arrays, metadata={"reply": reply.model_dump_json()})


def unpack_reply(body: bytes, kind: type[MessageT]) -> tuple[MessageT, dict[str, npt.NDArray]]:
    """Read a stored reply back, the inverse of `pack_reply`.

    Raises:
        ValueError: if the bytes are not such a file.
    """
    header_size = int.from_bytes(body[:8], "little")
    metadata = json.loads(body[8 : 8 + header_size])["__metadata__"]
    return kind.model_validate_json(metadata["reply"]), load(body)
