"""What the records of all sites must have in common: their schema.

A site's card carries it as digests.
"""

import hashlib
import json
from typing import Annotated

from pydantic import Field

from fl_dpbayes.config.sources import Source
from fl_dpbayes.files import Config

# Where a source lies and whose its records are; sites may differ in these.
_OF_THE_SITE = {
    "path",
    "folder",
    "name",
    "revision",
    "config",
    "splits",
    "constants",
    "site_column",
    "unit_column",
    "group_columns",
    "site_pattern",
    "patient_pattern",
}
_CONSTANTS = ("centers", "scales", "missing", "days_since")
_LABELS = ("label", "classes", "class_names")
PartDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RecordSchema(Config):
    """Digests of what a source makes of its records.

    Attributes:
        features: SHA-256 of the record's shape and of the features, in their order.
        constants: SHA-256 of the constants of the preparation.
        labels: SHA-256 of the labels, in their order.
    """

    features: PartDigest
    constants: PartDigest
    labels: PartDigest

    def differences(self, other: "RecordSchema") -> list[str]:
        """Name the parts in which another schema differs."""
        return [
            name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)
        ]


def record_schema(source: Source) -> RecordSchema:
    """Return the schema of a source.

    Nothing is read but the names of an image folder's sub-folders.

    Raises:
        UserError: These are not here.
    """
    task = source.task
    keys = source.model_dump(mode="json", exclude=_OF_THE_SITE)
    constants = {key: keys.pop(key) for key in _CONSTANTS if key in keys}
    labels = {key: keys.pop(key) for key in _LABELS if key in keys}
    labels |= task.outcome.model_dump(mode="json", exclude={"kind"})
    labels["class_names"] = source.names_of_classes
    features = {"shape": task.input_shape, **keys}
    parts = {"features": features, "constants": constants, "labels": labels}
    # Lists keep their order; keys of a table, as of missing values and categories, are in the order
    # of the features.
    texts = {name: json.dumps(part, separators=(",", ":")) for name, part in parts.items()}
    return RecordSchema(
        **{name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    )
