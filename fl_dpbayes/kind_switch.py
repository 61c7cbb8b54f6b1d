"""What `--set SECTION.kind=...` leaves of a section: keys that only other kinds have go with the old kind."""

from typing import Any

from pydantic import BaseModel

from fl_dpbayes.validation_text import records_at, tags_of

SWITCHES = ("kind", "rule")


def drop_keys_of_other_kinds(section: dict[str, Any], location: tuple[str, ...], model: type[BaseModel]) -> None:
    """Remove the keys of a section that its kind does not have and another kind of it has.

    Keys that no kind has stay, so that validation names them.

    Args:
        section: the table, with its new `kind` or `rule`; changed in place.
        location: where it stands in the model.
        model: the record of the whole file.
    """
    records = records_at(model, location)
    given = {value for switch in SWITCHES if isinstance(value := section.get(switch), str)}
    chosen = [record for record in records if given & tags_of(record)]
    if not chosen:
        return
    kept = {name for record in chosen for name in record.model_fields}
    known = {name for record in records for name in record.model_fields}
    for name in (known - kept) & section.keys():
        del section[name]
