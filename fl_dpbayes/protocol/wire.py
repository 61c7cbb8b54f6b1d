"""Records to and from the text of a message; its arrays travel beside it."""

import hashlib
import json
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from fl_dpbayes.protocol.record import Record

MAX_HEADER_BYTES = 16 * 1024 * 1024
RecordT = TypeVar("RecordT", bound=Record)


def write_header(record: Record) -> str:
    """Write a record as the JSON text that a message carries."""
    return record.model_dump_json()


def read_header(kind: type[RecordT], text: object) -> RecordT:
    """Read and validate the JSON text of a message.

    Args:
        kind: the record that is expected.
        text: what the message holds; anything may come.

    Returns:
        The validated record.

    Raises:
        ValueError: if it is not text, too long, or not a valid record; the message names the first bad field and
            never repeats what came.
    """
    if not isinstance(text, str):
        raise ValueError("the header is not text")
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"the header has {len(text)} characters, more than {MAX_HEADER_BYTES}")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(_keys(first["loc"], text))
        raise ValueError(f"{field or kind.__name__}: {first['msg']}") from None


def _keys(location: tuple[int | str, ...], text: str) -> list[str]:
    """Leave out the parts of an error's location that are no keys of the header but names of a union's kinds."""
    try:
        value = json.loads(text)
    # A header may be nested deeper than Python reads.
    except (ValueError, RecursionError):
        return [str(part) for part in location]
    keys = []
    for part in location:
        is_index = isinstance(value, list) and isinstance(part, int) and part < len(value)
        is_key = is_index or (isinstance(value, dict) and part in value)
        if is_key or part == location[-1]:
            keys.append(str(part))
        if is_key:
            value = value[part]
    return keys


def arrays_digest(arrays: Mapping[str, npt.NDArray]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of arrays, in order of their names."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()
