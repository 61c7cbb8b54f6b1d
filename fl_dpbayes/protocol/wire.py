"""Records to and from the text of a message; its arrays travel beside it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from fl_dpbayes.config import outside_text
from fl_dpbayes.files import Message, digest
from fl_dpbayes.protocol.evaluate import EvaluateRequest

# The largest honest headers list weights of 20,000 samples, or the noise of each of tens of
# thousands of steps.
MAX_HEADER_BYTES = 4 * 2**20
MAX_KEYS = 1000
MAX_VALUES = 100_000
# Of one key in an error.
MOST_KEY = 40
# More errors than this are counted, not described: describing them would cost more than reading
# them.
MOST_ERRORS = 100
MessageT = TypeVar("MessageT", bound=Message)


def write_header(record: Message) -> str:
    """Write a record as the JSON text that a message carries."""
    return record.model_dump_json()


def read_header(kind: type[MessageT], text: object) -> MessageT:
    """Read and validate the JSON text of a message.

    Its size, and the number of its keys and values, are bounded before it is parsed.

    Args:
        kind: The record that is expected.
        text: Anything.

    Raises:
        ValueError: If it is not text, too long, or not a valid record. The message names the first
            bad field and never repeats what came, but for the name of an unknown key, cut short and
            printable.
    """
    if not isinstance(text, str):
        raise ValueError("the header is not text")
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"the header has {len(text)} characters, more than {MAX_HEADER_BYTES}")
    # Each key is followed by a colon, and each value but the first of its list or table has a comma
    # before it.
    if text.count(":") > MAX_KEYS or text.count(",") > MAX_VALUES:
        raise ValueError(f"the header holds more than {MAX_KEYS} keys or {MAX_VALUES} values")
    try:
        value = json.loads(text, object_pairs_hook=_table)
    except (ValueError, RecursionError):
        raise ValueError("the header is not JSON, or nested too deep, or has a key twice") from None
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            raise ValueError(
                f"{kind.__name__}: {error.error_count()} fields are not valid"
            ) from None
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        field = ".".join(_keys(first["loc"], value))
        raise ValueError(f"{field or kind.__name__}: {outside_text(first['msg'])}") from None


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key comes twice")
    return table


def _keys(location: tuple[int | str, ...], value: Any) -> list[str]:
    """Drop the parts of an error's location that are names of a union's kinds, not header keys."""
    keys = []
    for part in location:
        is_index = isinstance(value, list) and isinstance(part, int) and part < len(value)
        is_key = is_index or (isinstance(value, dict) and part in value)
        if is_key or part == location[-1]:
            keys.append(outside_text(str(part), MOST_KEY))
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


def request_digest(request: Message) -> str:
    """Return the digest of a request without the ledger head that it echoes.

    The head may differ when the request is sent again.

    Args:
        request: The request.
    """
    return digest(request.model_copy(update={"ledger_head": None}))


def plan_text(request: Message) -> str:
    """Write what a person approves as canonical JSON: kind, task, model, and plan or evaluation.

    Args:
        request: A request, of which no run and no arrays enter.
    """
    approved = request.model_dump(
        mode="json", include={"task", "model", "plan", "noise_multiplier", "delta"}
    )
    approved["kind"] = type(request).__name__
    if isinstance(request, EvaluateRequest) and request.measured:
        approved["measured"] = request.measured
    return json.dumps(approved, sort_keys=True, separators=(",", ":"))


def plan_digest(request: Message) -> str:
    """Return the SHA-256 of `plan_text`, by which `fl-dpbayes site approve` names it."""
    return hashlib.sha256(plan_text(request).encode()).hexdigest()
