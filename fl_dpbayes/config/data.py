"""What a scenario or a site file says about records: source, partition, shift."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.names import GroupText, Role, SiteName
from fl_dpbayes.config.prevalence import SitePrevalence, TrainedPrevalence
from fl_dpbayes.config.synthetic_sources import Logistic2D, Radiographs

Severity = Annotated[int, Field(ge=1, le=5)]
OfficialPart = Literal["train", "validation", "test"]
BuiltInSource = Literal["digits", "mnist", "pneumonia", "heart"]
ImageShift = Literal[
    "gamma", "gamma_dark", "contrast", "exposure", "detector_noise", "blur", "resolution", "jpeg", "inversion",
    "border", "marker", "bias_field", "rotation",
]  # fmt: skip
ShiftKind = Literal[
    ImageShift, "shortcut_marker", "prevalence", "tilt", "missing_features", "label_flip", "under_reporting",
    "boundary_flip",
]  # fmt: skip


class BuiltIn(Config):
    """One of the data sets that the project knows; `folder` is the data folder (unused for digits)."""

    kind: BuiltInSource
    folder: Path | None = None


class Table(Config):
    """A CSV or Parquet table with a label column and numeric features.

    A feature is (value - center) / scale, by constants that are public: known beforehand, not computed from the table.
    Without them values stay as they are. `unit_column` names the privacy unit, for example the patient;
    `group_columns` attributes such as sex by whose values calibration is measured too.
    """

    kind: Literal["table"] = "table"
    path: Path
    label: str
    classes: Annotated[int, Field(ge=2, le=1000)]
    features: Annotated[tuple[str, ...], Field(min_length=1)]
    centers: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    unit_column: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    group_columns: Annotated[tuple[GroupText, ...], Field(max_length=5)] = ()

    @model_validator(mode="after")
    def _constants_fit_features(self) -> "Table":
        for key in ("centers", "scales"):
            count = len(getattr(self, key))
            if count not in (0, len(self.features)):
                raise ValueError(f"{key} has {count} values for {len(self.features)} features: give one each, or none")
        if any(scale <= 0 for scale in self.scales):
            raise ValueError("a value of scales is not above 0")
        return self


class ImageFolder(Config):
    """A folder with one sub-folder of images per class, in alphabetical order of their names.

    `patient_pattern`: a regular expression whose one group finds the patient in an image's path inside its class
    folder, for example `^(P[0-9]+)_` or, with a folder for each patient, `^([^/]+)/`. All images of a patient, of
    whatever class, are one privacy unit; without it each image is one.
    """

    kind: Literal["images"] = "images"
    path: Path
    height: PositiveInt
    width: PositiveInt
    channels: Literal[1, 3] = 1
    patient_pattern: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @field_validator("patient_pattern")
    @classmethod
    def _pattern_has_one_group(cls, pattern: str | None) -> str | None:
        try:
            groups = 1 if pattern is None else re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        if groups != 1:
            raise ValueError(
                f"{pattern!r} has {groups} groups: put exactly one pair of parentheses, around what names the patient, "
                "such as '^(P[0-9]+)_'"
            )
        return pattern


ColumnName = Annotated[str, Field(min_length=1, max_length=100)]
SplitName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]


def _only_train() -> dict[OfficialPart, str]:
    return {"train": "train"}


class HuggingFace(Config):
    """A data set of the Hugging Face hub, or a local folder of Parquet files in its layout.

    Either `name` and `revision`, the commit whose files are read, so that every site and every later run reads the
    same, or `path`. `features` is one image column, resized to `height` x `width`, or a list of numeric ones, centred
    and scaled by public constants as in a table. `splits` says which split each official part is. `site_column` names
    who collected a record, for a natural partition, `unit_column` the privacy unit.
    """

    kind: Literal["huggingface"] = "huggingface"
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?$")] | None = None
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    path: Path | None = None
    config: ColumnName | None = None
    features: ColumnName | Annotated[tuple[ColumnName, ...], Field(min_length=1)]
    label: ColumnName
    classes: Annotated[int, Field(ge=2, le=1000)]
    height: PositiveInt | None = None
    width: PositiveInt | None = None
    channels: Literal[1, 3] = 1
    centers: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    splits: dict[OfficialPart, SplitName] = Field(default_factory=_only_train, min_length=1)
    site_column: ColumnName | None = None
    unit_column: ColumnName | None = None

    @property
    def image(self) -> str | None:
        """The column of images; None where records are rows of numbers."""
        return self.features if isinstance(self.features, str) else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The numeric columns; none where records are images."""
        return () if isinstance(self.features, str) else self.features

    @model_validator(mode="after")
    def _keys_fit(self) -> "HuggingFace":
        if (self.name is None) == (self.path is None):
            raise ValueError("give either name (and revision) or path, a local folder of Parquet files")
        if (self.name is None) != (self.revision is None):
            raise ValueError(
                "revision is the commit of the hub's data set (40 hexadecimal digits, on its page under 'Files and "
                "versions'): give it with name, and not with path"
            )
        sizes = (self.height is not None, self.width is not None)
        if sizes != (self.image is not None,) * 2:
            raise ValueError("height and width must be given exactly when features is one column of images")
        for key in ("centers", "scales"):
            if len(getattr(self, key)) not in (0, len(self.columns)):
                raise ValueError(f"{key} must have one value for each of {len(self.columns)} numeric features, or none")
        if any(scale <= 0 for scale in self.scales):
            raise ValueError("a value of scales is not above 0")
        return self


Source = Annotated[BuiltIn | Table | ImageFolder | HuggingFace | Logistic2D | Radiographs, Field(discriminator="kind")]


class IIDPartition(Config):
    """Records are dealt at random into equal shares."""

    kind: Literal["iid"] = "iid"


class DirichletPartition(Config):
    """Label skew: each class is divided over the sites by Dirichlet(alpha) proportions."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0)]
    min_records: PositiveInt = 20


class ClassesPartition(Config):
    """Each site holds records of `classes_per_site` classes only."""

    kind: Literal["classes"] = "classes"
    classes_per_site: PositiveInt


class QuantityPartition(Config):
    """Quantity skew: site sizes are proportional to Dirichlet(alpha) weights, labels are mixed."""

    kind: Literal["quantity"] = "quantity"
    alpha: Annotated[float, Field(gt=0)]
    min_records: PositiveInt = 20


class FeaturePartition(Config):
    """Feature skew: sites of equal size along one score of the records, blurred by noise.

        (1 - strictness) noise + strictness score, both of unit variance

    The score is an image's mean pixel, or the column `feature` of a table. At strictness 0 sites are alike, at 1 they
    hold the records in the order of their scores.
    """

    kind: Literal["feature"] = "feature"
    strictness: Annotated[float, Field(ge=0, le=1)]
    feature: Annotated[str, Field(min_length=1, max_length=60)] | None = None


class NaturalPartition(Config):
    """Each record stays with the site that collected it; site names are those of the data set."""

    kind: Literal["natural"] = "natural"


Partition = Annotated[
    IIDPartition | DirichletPartition | ClassesPartition | QuantityPartition | FeaturePartition | NaturalPartition,
    Field(discriminator="kind"),
]


class Shift(Config):
    """A change of acquisition, population or annotation at one site, of severity 1 to 5.

    `feature` names the column that a shift of kind `tilt` weighs records by; no other kind takes it. Privacy is that of
    the records as shifted: which ones a shift keeps or relabels may depend on the others, so it is for simulations.
    """

    kind: ShiftKind
    severity: Severity = 3
    feature: Annotated[str, Field(min_length=1, max_length=60)] | None = None

    @model_validator(mode="after")
    def _feature_fits_kind(self) -> "Shift":
        if self.kind == "tilt" and self.feature is None:
            raise ValueError("kind 'tilt' needs the key feature: name the column to tilt by, for example 'age'")
        if self.kind != "tilt" and self.feature is not None:
            raise ValueError(f"feature is for kind 'tilt': remove it for kind {self.kind!r}")
        return self


def _named_source(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class DataSpec(Config):
    """Where a scenario's records come from; `source = "digits"` is short for `source = {kind = "digits"}`.

    A relative path in a source starts at the working directory of the command that reads the scenario; the scenario
    that a run writes into its directory holds it as an absolute one.
    `test_fraction` is the share of each training site's units that is kept for testing. `records`: use only that many
    records of the part `train`, drawn by the scenario's seed in whole units. `prevalence` declares the shares of the
    classes among the training records, public by declaration, for sites that declare their own.
    """

    source: Annotated[Source, BeforeValidator(_named_source)]
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    records: PositiveInt | None = None
    prevalence: TrainedPrevalence | None = None


def with_absolute_path(data: DataSpec) -> DataSpec:
    """Resolve the path of a source against the working directory, so that it means the same from any other."""
    for key in ("path", "folder"):
        place = getattr(data.source, key, None)
        if place is not None:
            return data.model_copy(update={"source": data.source.model_copy(update={key: place.resolve()})})
    return data


class SiteSpec(Config):
    """One site of a scenario: its role, its records and how they differ from the other sites'.

    Training sites share out the records of the official part `train` among them. A held-out or shifted site has
    `records` records of `part` set aside for it; without `records` it has all of that part. With `records_of` it holds
    the records of the held-out or shifted site of that name and shares its draws, so that shifts can be compared in
    pairs on the same patients. `epsilon` is what a training site's cohort may ever spend, where that differs from the
    other sites'. `prevalence` declares the shares of the classes here, public by declaration, or lets the site estimate
    them; its predictions are then also measured corrected for them. A wrong declaration is the user's own: nothing
    checks it against records.
    """

    role: Role
    part: OfficialPart = "train"
    records: PositiveInt | None = None
    records_of: SiteName | None = None
    shift: Shift | None = None
    epsilon: PositiveFloat | None = None
    prevalence: SitePrevalence | None = None

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
        if self.role == "train" and self.records_of is not None:
            raise ValueError("records_of is for held_out and shifted sites: a training site's records are its own")
        if self.records_of is not None and (self.records is not None or self.part != "train"):
            raise ValueError(
                "records_of already says which records the site holds: remove records and part, or records_of"
            )
        return self
