"""Records as they come from a source, before they are a site's, and how they are loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import OfficialPart, RunWarning, Source, Table, Task, implementation, warning
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, files_below

SMALL, LARGE = 0.1, 10.0
T = TypeVar("T")


@dataclass(frozen=True)
class Records:
    """Labelled records with the privacy unit that each belongs to.

    `features`: float32, (N, *task.input_shape), pixels in [0, 1]; or uint8 grey levels, not yet
    scaled: a site takes its few records out of a large file before it spends four times the memory
    on them. `labels`: (N,), in 0 .. classes - 1. `units`: (N,), the id of each record's privacy
    unit: text, or the record's number where it is its own. `natural_site`: (N,) text, the site that
    collected each record. `unit`: what a privacy unit is called. `truth`: (N, classes), the
    probabilities that each label was drawn from, where records are made up. `published`: (N,), the
    risk of class 1 by a score that was published with the records. `groups`: attribute -> (N,)
    text, for example {"sex": ["female", ...]}. `feature_names`: those of a table, in their order.
    None, or empty, where nobody knows it.
    """

    features: npt.NDArray
    labels: npt.NDArray[np.int64]
    units: npt.NDArray
    natural_site: npt.NDArray | None
    task: Task
    unit: str
    truth: npt.NDArray[np.float64] | None = None
    published: npt.NDArray[np.float64] | None = None
    groups: Mapping[str, npt.NDArray] = field(default_factory=dict)
    feature_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: npt.NDArray) -> "Records":
        """Return the records at `indices` (integers in [0, N) or a boolean mask), in that order."""
        chosen: dict[str, Any] = {
            "groups": {name: value[indices] for name, value in self.groups.items()}
        }
        for key in ("features", "labels", "units", "natural_site", "truth", "published"):
            chosen[key] = None if (value := getattr(self, key)) is None else value[indices]
        return replace(self, **chosen)

    def scaled(self) -> "Records":
        """Return the same records with float32 features; grey levels 0 to 255 become 0 to 1."""
        if self.features.dtype == np.float32:
            return self
        return replace(self, features=self.features.astype(np.float32) / np.float32(255))


def magnitude_warnings(records: Records, source: Source) -> list[RunWarning]:
    """Name the numeric features of a table whose values are all below .1, or mostly above 10: what a site keeps."""
    if not isinstance(source, Table) or not source.features or not len(records):
        return []
    values = np.abs(records.features[:, : len(source.features)].astype(np.float64))
    sizes = zip(source.features, np.sqrt((values**2).mean(axis=0)), values.max(axis=0), strict=True)
    return [
        warning("magnitude", feature=name, size=f"{float(f'{size:.1g}'):,g}")
        for name, size, largest in sizes
        if size > LARGE or largest < SMALL
    ]


def load_unscaled(source: Source, part: OfficialPart) -> Records:
    """Load one official part of a source as its files hold it, in their order: pixels may still be whole numbers.

    A source of this package is read once in a process, while its files stay as they are; its
    records are then shared and read-only. Raises UserError if the source has no such part, or a
    file is missing, damaged or not as described.
    """
    if part not in source.parts:
        raise UserError(
            f"source {source.kind!r} has no part {part!r}: choose {' or '.join(source.parts)}"
            + (
                "; for held-out records give the site a number of records"
                if source.parts == ("train",)
                else ""
            )
        )
    code = implementation("fl_dpbayes.data.sources", source.kind, source.implemented_by)

    def load() -> Records:
        return frozen(code.load(source, part))

    if source.implemented_by:
        # Only its author knows what it reads.
        return load()
    places = [*source.places, *filter(None, [getattr(code, "PATH", None)])]
    return KEPT.get(
        ("records", source.model_dump_json(), part), load, array_bytes, files_below(places)
    )


def frozen(holder: T) -> T:
    """Make the arrays of a record of arrays read-only, and return it."""
    for array in arrays_of(holder):
        array.flags.writeable = False
    return holder


def array_bytes(holder: object) -> int:
    """Count the bytes of a record's arrays."""
    return sum(array.nbytes for array in arrays_of(holder))


def arrays_of(holder: object) -> list[npt.NDArray]:
    """Return the arrays of a record of arrays, those of its records among them."""
    found = []
    for value in vars(holder).values():
        parts = value.values() if isinstance(value, Mapping) else [value]
        for part in parts:
            if isinstance(part, np.ndarray):
                found.append(part)
            elif is_dataclass(part):
                found += arrays_of(part)
    return found
