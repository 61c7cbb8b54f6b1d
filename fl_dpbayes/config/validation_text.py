"""What the records say of a file: a validation error in one clear line, and a kind's keys."""

import tomllib
import typing
from collections.abc import Collection, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fl_dpbayes.config.names import near_hint
from fl_dpbayes.config.other_libraries import key_hint
from fl_dpbayes.config.registry import Registry, kinds_of
from fl_dpbayes.errors import UserError

SWITCHES = ("kind", "rule", "method")
# What says which units are tested on; errors go to logs.
SECRET = "key"
Record = TypeVar("Record", bound=BaseModel)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: Place of the file.
        what: What an error calls it.

    Raises:
        UserError: It is absent or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{what} {path} does not exist") from None
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {path} is not valid TOML: {error}") from None


def read_record(
    model: type[Record], content: Mapping[str, Any], origin: str, folder: Path | None = None
) -> Record:
    """Validate parsed TOML.

    Args:
        model: The record that it is to be.
        content: The parsed file.
        origin: What an error's line begins with.
        folder: Where relative paths start; None: where the program runs.

    Raises:
        UserError: It is not valid; the error has one line.
    """
    try:
        return model.model_validate(content, context=folder)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error, model)}") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Say in one line what is wrong with the first bad key: key, value and remedy."""
    first = min(error.errors(include_url=False), key=lambda item: item["type"] == "missing")
    tags = _union_tags(model)
    location: list[int | str] = []
    for index, part in enumerate(first["loc"]):
        # Pydantic names a section's kind behind the section; the kind is no key of the file.
        is_kind = index > 0 and part in tags
        if part != "[key]" and not is_kind:
            location.append(part)
    key = ".".join(str(part) for part in location)
    kind = first["type"]
    value = first.get("input")
    if kind == "extra_forbidden":
        allowed = _fields_at(model, first["loc"][:-1])
        hint = key_hint(str(location[-1]), allowed)
        return f"unknown key {key!r}: {hint}allowed here: {', '.join(allowed)}"
    if kind == "missing":
        return f"key {key!r} is missing: add it{_description_at(model, first['loc'])}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        context = first.get("ctx", {})
        discriminator = str(context.get("discriminator", "kind")).strip("'")
        tag = context.get("tag", "is missing")
        expected = str(context.get("expected_tags", ""))
        hint = near_hint(str(tag), expected.replace("'", "").split(", "))
        return f"{key}: {discriminator} {tag!r}: {hint}choose one of {expected}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return (
            f"{key} is {_short(value)}: it must be a table; {_table_at(model, first['loc'], value)}"
        )
    message = first["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        message = _description_at(model, first["loc"]).removeprefix(", ") or message
    message = message[0].lower() + message[1:] if message else message
    if kind == "value_error" or location[-1:] == [SECRET]:
        return f"{key}: {message}" if key else message
    return f"{key} is {_short(value)}: {message}"


def drop_keys_of_other_kinds(
    content: dict[str, Any],
    location: tuple[str, ...],
    model: type[BaseModel],
    given: Collection[tuple[str, ...]],
) -> None:
    """Remove the keys of a section that its new kind does not have and another kind of it has.

    Keys that no kind has stay, and those that were given beside the kind, so that validation names
    them.

    Args:
        content: The whole file; changed in place.
        location: Where the section stands, with its new kind.
        model: The record of the whole file.
        given: Keys that were given beside the kind.
    """
    section = reduce(getitem, location, content)
    records = _records_at(model, location)
    switches = [section.get(switch) for switch in SWITCHES]
    kinds = {value for value in switches if isinstance(value, str)}
    chosen_records = [record for record in records if kinds.intersection(kinds_of(record))]
    if not chosen_records:
        return
    chosen_keys = {name for record in chosen_records for name in record.model_fields}
    all_keys = {name for record in records for name in record.model_fields}
    for name in (all_keys - chosen_keys) & section.keys():
        if (*location, name) not in given:
            del section[name]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _records_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the records that a field may hold."""
    for annotation in field.metadata:
        if isinstance(annotation, Registry):
            return list(dict.fromkeys(annotation.loaded().values()))
    return _records_in(field.annotation)


def _records_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [record for part in typing.get_args(annotation) for record in _records_in(part)]


def _table_at(model: type[BaseModel], location: tuple[Any, ...], given: Any) -> str:
    """Say which keys the table at a location has.

    A kind given in its place is taken for an example.
    """
    records = _records_at(model, location)
    kinds = [tag for record in records for tag in sorted(kinds_of(record))]
    if not kinds:
        return f"its keys are {', '.join(_fields_at(model, location))}"
    discriminator = "rule" if any("rule" in record.model_fields for record in records) else "kind"
    example = given if given in kinds else kinds[0]
    allowed = ", ".join(map(repr, kinds))
    return (
        f"its key {discriminator!r} is one of {allowed}, for example {{ {discriminator} = "
        f"{example!r} }}"
    )


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    return sorted({name for record in _records_at(model, location) for name in record.model_fields})


def _description_at(model: type[BaseModel], location: tuple[Any, ...]) -> str:
    """Say what a key holds, where its field says so."""
    *section, name = location
    fields = (record.model_fields.get(name) for record in _records_at(model, tuple(section)))
    return next(
        (f", {field.description}" for field in fields if field is not None and field.description),
        "",
    )


def _records_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[type[BaseModel]]:
    candidates: list[type[BaseModel]] = [model]
    for part in location:
        following: list[type[BaseModel]] = []
        for candidate in candidates:
            if part in candidate.model_fields:
                following += _records_of(candidate.model_fields[part])
        tagged = [candidate for candidate in candidates if part in kinds_of(candidate)]
        candidates = following or tagged or candidates
    return candidates


def _union_tags(model: type[BaseModel]) -> set[str]:
    tags: set[str] = set()
    for field in model.model_fields.values():
        for record in _records_of(field):
            tags |= {*kinds_of(record), *_union_tags(record)}
    return tags
