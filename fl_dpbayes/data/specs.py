"""What a scenario or a site file says about records: source, partition, shift."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from fl_dpbayes.data.made_up_sources import Logistic2D, Radiographs
from fl_dpbayes.protocol.card import Role
from fl_dpbayes.protocol.record import Record

Severity = Annotated[int, Field(ge=1, le=5)]
OfficialPart = Literal["train", "validation", "test"]
BuiltInSource = Literal["digits", "mnist", "pneumonia", "heart"]
ImageShift = Literal["gamma", "contrast", "exposure", "detector_noise", "blur", "inversion", "border", "rotation"]
ShiftKind = Literal[
    "gamma", "contrast", "exposure", "detector_noise", "blur", "inversion", "border", "rotation",
    "prevalence", "label_flip",
]  # fmt: skip


class BuiltIn(Record):
    """One of the data sets that the project knows; `folder` is the data folder (unused for digits)."""

    kind: BuiltInSource
    folder: Path | None = None


class Table(Record):
    """A CSV or Parquet table with a label column and numeric features.

    A feature is (value - center) / scale, by constants that are public: known beforehand, not computed from the table.
    Without them values stay as they are. `unit_column` names the privacy unit, for example the patient.
    """

    kind: Literal["table"] = "table"
    path: Path
    label: str
    classes: Annotated[int, Field(ge=2, le=1000)]
    features: Annotated[tuple[str, ...], Field(min_length=1)]
    centers: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    unit_column: Annotated[str, Field(min_length=1, max_length=100)] | None = None

    @model_validator(mode="after")
    def _constants_fit_features(self) -> "Table":
        for key in ("centers", "scales"):
            count = len(getattr(self, key))
            if count not in (0, len(self.features)):
                raise ValueError(f"{key} has {count} values for {len(self.features)} features: give one each, or none")
        if any(scale <= 0 for scale in self.scales):
            raise ValueError("a value of scales is not above 0")
        return self


class ImageFolder(Record):
    """A folder with one sub-folder of images per class, in alphabetical order of their names."""

    kind: Literal["images"] = "images"
    path: Path
    height: PositiveInt
    width: PositiveInt
    channels: Literal[1, 3] = 1


Source = Annotated[BuiltIn | Table | ImageFolder | Logistic2D | Radiographs, Field(discriminator="kind")]


class IIDPartition(Record):
    """Records are dealt at random into equal shares."""

    kind: Literal["iid"] = "iid"


class DirichletPartition(Record):
    """Label skew: each class is divided over the sites by Dirichlet(alpha) proportions."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0)]
    min_records: PositiveInt = 20


class ClassesPartition(Record):
    """Each site holds records of `classes_per_site` classes only."""

    kind: Literal["classes"] = "classes"
    classes_per_site: PositiveInt


class QuantityPartition(Record):
    """Quantity skew: site sizes are proportional to Dirichlet(alpha) weights, labels are mixed."""

    kind: Literal["quantity"] = "quantity"
    alpha: Annotated[float, Field(gt=0)]
    min_records: PositiveInt = 20


class NaturalPartition(Record):
    """Each record stays with the site that collected it; site names are those of the data set."""

    kind: Literal["natural"] = "natural"


Partition = Annotated[
    IIDPartition | DirichletPartition | ClassesPartition | QuantityPartition | NaturalPartition,
    Field(discriminator="kind"),
]


class Shift(Record):
    """A change of acquisition, population or annotation at one site, of severity 1 to 5."""

    kind: ShiftKind
    severity: Severity = 3


def _named_source(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class DataSpec(Record):
    """Where a scenario's records come from; `source = "digits"` is short for `source = {kind = "digits"}`.

    A relative path in a source starts at the working directory of the command that reads the scenario; the scenario
    that a run writes into its directory holds it as an absolute one.
    `test_fraction` is the share of each training site's units that is kept for testing.
    """

    source: Annotated[Source, BeforeValidator(_named_source)]
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2


def with_absolute_path(data: DataSpec) -> DataSpec:
    """Resolve the path of a source against the working directory, so that it means the same from any other."""
    for key in ("path", "folder"):
        place = getattr(data.source, key, None)
        if place is not None:
            return data.model_copy(update={"source": data.source.model_copy(update={key: place.resolve()})})
    return data


class SiteSpec(Record):
    """One site of a scenario: its role, its records and how they differ from the other sites'.

    Training sites share out the records of the official part `train` among them. A held-out or shifted site has
    `records` records of `part` set aside for it; without `records` it has all of that part. `epsilon` is what a
    training site's cohort may ever spend, where that differs from the other sites'.
    """

    role: Role
    part: OfficialPart = "train"
    records: PositiveInt | None = None
    shift: Shift | None = None
    epsilon: PositiveFloat | None = None

    @model_validator(mode="after")
    def _keys_fit_role(self) -> "SiteSpec":
        if self.role != "train" and self.epsilon is not None:
            raise ValueError("epsilon is the budget of a training site: remove it here")
        if self.role == "train" and self.part != "train":
            raise ValueError(f"part {self.part!r} is for held_out and shifted sites: a training site uses 'train'")
        if self.role == "train" and self.records is not None:
            raise ValueError(
                "records is for held_out and shifted sites: the partition decides how many a training site holds"
            )
        return self
