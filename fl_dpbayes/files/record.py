"""The base of what people write and of what travels."""

import hashlib
import json
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Config(BaseModel):
    """A frozen record that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )

    @model_validator(mode="after")
    def _validated(self) -> Self:
        self._check_keys()
        return self

    def _check_keys(self) -> None:
        """Raise ValueError, naming value, allowed and remedy, where keys do not fit each other."""


# For a key that came later: a record without it is written, and has a digest, as before it came.
LEFT_OUT: Any = Field(exclude_if=lambda value: value is None)


def by_default(**keys: str) -> BeforeValidator:
    """Give a table the keys that it leaves out, such as its kind."""
    return BeforeValidator(lambda value: keys | value if isinstance(value, dict) else value)


# What travels between server and sites is checked as what people write is.
Message = Config


def canonical_json(record: BaseModel) -> str:
    """Write a record as one line of JSON with sorted keys, without spaces, equal for equal ones."""
    return json.dumps(record.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def digest(record: BaseModel) -> str:
    """Return the SHA-256 of a record's canonical JSON, in hexadecimal (64 characters)."""
    return hashlib.sha256(canonical_json(record).encode()).hexdigest()


JSONValue = None | bool | int | float | str | list["JSONValue"] | dict[str, "JSONValue"]


def json_values(value: object) -> JSONValue:
    """Turn nested values into plain JSON values of the same structure.

    Args:
        value: Mappings, lists, tuples, numbers, texts, None and NumPy values.

    Returns:
        The same in JSON: NaN is None, infinities are "inf" and "-inf", keys are strings.

    Raises:
        ValueError: If a value has another type.
    """
    # A summary of a thousand sites has millions of plain values: they leave first.
    if type(value) in (str, int, bool, NoneType):
        return value  # type: ignore[return-value]
    # NumPy's float64 is a float as well, and a plain float needs no look at NumPy.
    if type(value) is not float and isinstance(value, np.generic | np.ndarray):
        return json_values(value.tolist())
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return _json_number(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(item) for item in value]
    raise ValueError(
        f"{type(value).__name__} is no JSON value: give numbers, strings, lists, mappings or None"
    )


def _json_number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return float(value) if math.isfinite(value) else str(value)
