"""What `--set SECTION.kind=...` leaves of a section: keys that only other kinds have go with the old kind."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from fl_dpbayes.config.validation_text import records_at, tags_of

SWITCHES = ("kind", "rule", "method")


def drop_keys_of_other_kinds(
    content: dict[str, Any], location: tuple[str, ...], model: type[BaseModel], given: Collection[tuple[str, ...]]
) -> None:
    """Remove the keys of a section that its kind does not have and another kind of it has.

    Keys that no kind has stay, and those that were given beside the kind, so that validation names them.

    Args:
        content: the whole file; changed in place.
        location: where the section stands, with its new `kind` or `rule`.
        model: the record of the whole file.
        given: places of keys that are not to be removed.
    """
    section = content
    for name in location:
        section = section[name]
    records = records_at(model, location)
    kinds = {value for switch in SWITCHES if isinstance(value := section.get(switch), str)}
    chosen = [record for record in records if kinds & tags_of(record)]
    if not chosen:
        return
    kept = {name for record in chosen for name in record.model_fields}
    known = {name for record in records for name in record.model_fields}
    for name in (known - kept) & section.keys():
        if (*location, name) not in given:
            del section[name]
