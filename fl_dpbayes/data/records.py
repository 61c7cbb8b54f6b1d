"""Records as they come from a source, before they are a site's, and how they are loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import OfficialPart, RunWarning, Source, Table, Task, implementation, warning
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, files_below

SMALL, LARGE = 0.1, 10.0
NAMED = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Records:
    """Labelled records with the privacy unit that each belongs to.

    Attributes:
        features: float32, (N, *task.input_shape), pixels in [0, 1]; or uint8 grey levels, not yet
            scaled: a site takes its few records out of a large file before it spends four times the
            memory on them.
        labels: (N,), in 0 .. classes - 1.
        units: (N,), the id of each record's privacy unit: text, or the record's number where it is
            its own.
        natural_site: (N,) text, the site that collected each record, None where nobody knows it.
        task: The records' shape and number of classes.
        unit: What a privacy unit is called.
        truth: (N, classes), the probabilities that each label was drawn from, where records are
            made up, else None.
        published: (N,), the risk of class 1 by a score that was published with the records, None
            without one.
        groups: Attribute -> (N,) text, for example {"sex": ["female", ...]}.
        feature_names: Those of a table, in their order, empty where nobody knows them.
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
        """Return some of the records.

        Args:
            indices: Integers in [0, N), in the order that the result has, or a boolean mask, (N,).
        """
        return replace(
            self,
            features=self.features[indices],
            labels=self.labels[indices],
            units=self.units[indices],
            natural_site=None if self.natural_site is None else self.natural_site[indices],
            truth=None if self.truth is None else self.truth[indices],
            published=None if self.published is None else self.published[indices],
            groups={name: values[indices] for name, values in self.groups.items()},
        )

    def scaled(self) -> "Records":
        """Return the same records with float32 features; grey levels 0 to 255 become 0 to 1."""
        if self.features.dtype == np.float32:
            return self
        return replace(self, features=self.features.astype(np.float32) / np.float32(255))


def magnitude_warnings(records: Records, source: Source) -> list[RunWarning]:
    """Name the numeric features of a table whose size should be about 1 and is not.

    A feature is named whose values are all below .1 and not all 0 (a finding that nobody has is
    none the smaller), or whose root mean square is above 10. A site keeps what the warning says,
    since it is computed from records.

    Args:
        records: Records of the source.
        source: Where they are from; only a table has such features.

    Returns:
        At most one warning, of all such features; five are named.
    """
    if not isinstance(source, Table) or not source.features or not len(records):
        return []
    values = np.abs(records.features[:, : len(source.features)].astype(np.float64))
    root_mean_squares = np.sqrt((values**2).mean(axis=0))
    maxima = values.max(axis=0)
    is_odd = (root_mean_squares > LARGE) | ((maxima < SMALL) & (maxima > 0))
    odd = [
        f"{source.features[place]!r} (about {float(f'{root_mean_squares[place]:.1g}'):,g})"
        for place in np.flatnonzero(is_odd)
    ]
    if not odd:
        return []
    named = ", ".join(odd[:NAMED])
    if len(odd) > NAMED:
        named += f" and {len(odd) - NAMED} more"
    return [warning("magnitude", features=named, count=len(odd))]


def load_unscaled(source: Source, part: OfficialPart) -> Records:
    """Load one official part of a source in its order; pixels may still be whole numbers.

    A source of this package is read once in a process, while its files stay as they are; its
    records are then shared and read-only.

    Args:
        source: Where the records are.
        part: The official part of them.

    Raises:
        UserError: If the source has no such part, or a file is missing, damaged or not as
            described.
    """
    if part not in source.parts:
        problem = f"source {source.kind!r} has no part {part!r}: choose {' or '.join(source.parts)}"
        if source.parts == ("train",):
            problem += "; for held-out records give the site a number of records"
        raise UserError(problem)
    code = implementation("fl_dpbayes.data.sources", source.kind, source.implemented_by)

    def load() -> Records:
        records = code.load(source, part)
        _check_shapes(records, source)
        return frozen(records)

    if source.implemented_by:
        # Only its author knows what it reads.
        return load()
    places = list(source.places)
    # The module of a source whose file comes with a package names that file.
    packaged_file = getattr(code, "PATH", None)
    if packaged_file:
        places.append(packaged_file)
    key = ("records", source.model_dump_json(), part)
    return KEPT.get(key, load, array_bytes, files_below(places))


def _check_shapes(records: Records, source: Source) -> None:
    """Check that a source gave one label, unit and row of features for each record.

    Raises:
        UserError: If it did not, or labels are no numbers.
    """
    count = len(records.features)
    shapes = {
        "features": (records.features.shape, (count, *records.task.input_shape)),
        "labels": (records.labels.shape, (count,)),
        "units": (records.units.shape, (count,)),
    }
    for name, (shape, needed) in shapes.items():
        if shape != needed:
            raise UserError(
                f"source {source.kind!r} gave {name} of shape {shape}, its task needs {needed}"
            )
    if records.labels.dtype.kind not in "biuf":
        raise UserError(
            f"source {source.kind!r} gave labels of {records.labels.dtype}: they must be numbers"
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
    arrays = []
    for field_value in vars(holder).values():
        values = field_value.values() if isinstance(field_value, Mapping) else [field_value]
        for value in values:
            if isinstance(value, np.ndarray):
                arrays.append(value)
            elif is_dataclass(value):
                arrays += arrays_of(value)
    return arrays
