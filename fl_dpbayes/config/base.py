"""The base of what people write and of what travels."""

import hashlib
import json

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A frozen record that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


# What travels between server and sites is checked alike.
Message = Config


def canonical_json(record: BaseModel) -> str:
    """Write a record as one line of JSON with sorted keys and no spaces, equal for equal records."""
    return json.dumps(record.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def digest(record: BaseModel) -> str:
    """Return the SHA-256 of a record's canonical JSON, in hexadecimal (64 characters)."""
    return hashlib.sha256(canonical_json(record).encode()).hexdigest()
