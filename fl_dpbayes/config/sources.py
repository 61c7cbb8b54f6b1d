"""What a scenario or a site file says of its source of records.

It says where the source is, what it holds and whose it is. The code of a kind is the module of its
name in `fl_dpbayes.data.sources`.
"""

import re
from abc import abstractmethod
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import AfterValidator, Field, PositiveInt

from fl_dpbayes.config.data_folder import known_folder
from fl_dpbayes.config.names import MAX_GROUP_ATTRIBUTES, GroupText
from fl_dpbayes.config.outcome import Classification
from fl_dpbayes.config.registry import SOURCE_GROUP, Choice, Registry
from fl_dpbayes.config.task import Task
from fl_dpbayes.errors import UserError

OfficialPart = Literal["train", "validation", "test"]
ColumnName = Annotated[str, Field(min_length=1, max_length=100)]
Coefficient = Annotated[float, Field(ge=-100, le=100)]
# A part of this many pixels takes half a gibibyte as grey levels, two as float32.
MAX_PIXELS = 2**29
# A key that came later: where it is empty, digests are as before it came.
LATER_TABLE: Any = Field(default_factory=dict, exclude_if=lambda value: not value)
SplitName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
SplitNames: TypeAlias = dict[OfficialPart, SplitName]


class SourceConfig(Choice):
    """What every source says of itself, beside its keys, without loading a record.

    Attributes:
        implemented_by: The module with `load`, in a package that registers the source.
        kind: The name that a file chooses it by.
    """

    kind: str

    @property
    @abstractmethod
    def task(self) -> Task:
        """Shape of a record, and the outcome."""

    @property
    def parts(self) -> tuple[OfficialPart, ...]:
        """The parts as the data set's authors split it.

        Only `train`, which is all of it, where they did not.
        """
        return ("train",)

    @property
    def unit(self) -> str:
        """What a privacy unit is called, such as patient, image or record."""
        return "record"

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """The names of the classes, in their order; none where they are only numbers."""
        return ()

    @property
    def origin(self) -> str:
        """What the records are and under which licence, as far as the source says."""
        return f"{self.kind}; its licence is not known to the run"

    @property
    def looked_at(self) -> bool:
        """Whether constants of the preparation were taken from the records.

        That costs privacy which nobody counts.
        """
        return False

    @property
    def places(self) -> tuple[Path, ...]:
        """The files and folders that records are read from.

        None for what is made up, shipped or pinned.
        """
        return ()

    def with_place(self, change: Callable[[Path], Path]) -> Self:
        """Change the path or folder where the source lies, if it has one."""
        return self

    def located(self, data_dir: Path | None) -> Self:
        """Resolve where the source lies; `data_dir` is where built-in ones do."""
        return self.with_place(Path.resolve)

    def without_folder(self) -> Self:
        """Return the source as if its files lay at hand: wherever they lie, they are the same."""
        return self.with_place(lambda place: Path(place.name))


SOURCES = Registry(SourceConfig, SOURCE_GROUP)
register_source = SOURCES.register
Source = Annotated[SourceConfig, SOURCES]


class FileSource(SourceConfig):
    """A source that lies in a file or a folder, or in several files."""

    path: Path | tuple[Path, ...] | None

    @property
    def origin(self) -> str:
        """The file's name."""
        return f"{Path(str(self.path or self.kind)).name}; its licence is not known to the run"

    @property
    def places(self) -> tuple[Path, ...]:
        """The files and folders."""
        if self.path is None:
            return ()
        return self.path if isinstance(self.path, tuple) else (self.path,)

    def with_place(self, change: Callable[[Path], Path]) -> Self:
        """Change where each file lies."""
        if self.path is None:
            return self
        places = tuple(map(change, self.places))
        path = places if isinstance(self.path, tuple) else places[0]
        return self.model_copy(update={"path": path})


class _DataSet(NamedTuple):
    """A data set that the project knows."""

    task: Task
    parts: tuple[OfficialPart, ...]
    origin: str
    unit: str = "record"
    class_names: tuple[str, ...] = ()
    place: str = ""


def _task(*shape: int, classes: int = 2) -> Task:
    return Task(input_shape=shape, outcome=Classification(classes=classes))


_DATA_SETS = {
    "digits": _DataSet(
        task=_task(1, 8, 8, classes=10),
        parts=("train",),
        origin="handwritten digits of scikit-learn (Alpaydin and Kaynak, UCI 1998)",
    ),
    "mnist": _DataSet(
        task=_task(1, 28, 28, classes=10),
        parts=("train", "test"),
        origin="MNIST digits (LeCun et al. 1998), CC BY-SA 3.0",
        place="MNIST/raw",
    ),
    "pneumonia": _DataSet(
        task=_task(1, 28, 28),
        parts=("train", "validation", "test"),
        origin="PneumoniaMNIST, chest radiographs of children (Kermany et al. 2018; Yang et al. "
        "2023), CC BY 4.0",
        class_names=("normal", "pneumonia"),
        place="pneumoniamnist.npz",
    ),
    "heart": _DataSet(
        task=_task(15),
        parts=("train",),
        origin="UCI heart disease of four hospitals (Detrano et al. 1989), CC BY 4.0",
        unit="patient",
        class_names=("no heart disease", "heart disease"),
        place="heart-disease",
    ),
    "stroke": _DataSet(
        task=_task(25),
        parts=("train",),
        origin="International Stroke Trial (Sandercock et al., Trials 12:101, 2011), ODC-By 1.0",
        unit="patient",
        class_names=("independent", "dead or dependent"),
    ),
    "cifar10": _DataSet(
        task=_task(3, 32, 32, classes=10),
        parts=("train", "test"),
        origin="CIFAR-10, small photographs (Krizhevsky 2009); its licence is not known to the run",
        unit="image",
        place="cifar10",
    ),
    "sun397": _DataSet(
        task=_task(3, 64, 64, classes=397),
        parts=("train", "test"),
        origin="SUN397, photographs of scenes (Xiao et al. 2010); its licence is not known to the "
        "run",
        unit="image",
        place="sun397",
    ),
    "food101": _DataSet(
        task=_task(3, 64, 64, classes=101),
        parts=("train", "test"),
        origin="Food-101, photographs of dishes (Bossard et al. 2014); its licence is not known to "
        "the run",
        unit="image",
        place="food101",
    ),
}


@register_source
class BuiltIn(SourceConfig):
    """One of the data sets that the project knows.

    `folder` is the data folder (unused for what is shipped). `cifar10`, `sun397` and `food101` are
    folders in it, of that name, with the Parquet files of the Hugging Face hub.
    """

    kind: Literal["digits", "mnist", "pneumonia", "heart", "stroke", "cifar10", "sun397", "food101"]
    folder: Path | None = None

    @property
    def task(self) -> Task:
        """Shape of a record, and the outcome."""
        return _DATA_SETS[self.kind].task

    @property
    def parts(self) -> tuple[OfficialPart, ...]:
        """The parts as the data set's authors split it."""
        return _DATA_SETS[self.kind].parts

    @property
    def origin(self) -> str:
        """What the records are and under which licence."""
        return _DATA_SETS[self.kind].origin

    @property
    def unit(self) -> str:
        """What a privacy unit is called."""
        return _DATA_SETS[self.kind].unit

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """The names of the classes, in their order; none where they are only numbers."""
        return _DATA_SETS[self.kind].class_names

    @property
    def places(self) -> tuple[Path, ...]:
        """Where it lies in the data folder; none for what is shipped."""
        folder = known_folder(self.folder)
        place = _DATA_SETS[self.kind].place
        return (folder / place,) if folder is not None and place else ()

    def with_place(self, change: Callable[[Path], Path]) -> Self:
        """Change the data folder."""
        return self if self.folder is None else self._in_folder(change(self.folder))

    def located(self, data_dir: Path | None) -> Self:
        """Find it in `data_dir`, else in its own folder or the environment's."""
        folder = known_folder(data_dir or self.folder)
        return self._in_folder(None if folder is None else folder.resolve())

    def without_folder(self) -> Self:
        """Return the data set, wherever its folder is."""
        return self._in_folder(None)

    def _in_folder(self, folder: Path | None) -> Self:
        return self.model_copy(update={"folder": folder})


def _check_constants(features: int, centers: tuple[float, ...], scales: tuple[float, ...]) -> None:
    for key, values in (("centers", centers), ("scales", scales)):
        if len(values) not in (0, features):
            raise ValueError(
                f"{key} has {len(values)} values for {features} numeric features: give one "
                "each, or none"
            )
    if any(scale <= 0 for scale in scales):
        raise ValueError("a value of scales is not above 0")


@register_source
class Table(FileSource):
    """A CSV or Parquet table, or several of the same columns.

    It has a label column, numeric features and categories. A feature is (value - center) / scale,
    by constants that are public: known beforehand, not computed from the table. Without them values
    stay as they are. `constants` says "from_records" where they were proposed after a look at the
    records: a simulation says so, a hospital's site refuses. `missing` gives a feature the constant
    that stands in where a value is missing, and one more feature that is 1 there. `categories`
    gives a column of text one feature per declared value, which is 1 where a row has it. `others`
    gives such a column one more value, by its name, that all values are which are not declared;
    without it they are refused. `days_since` names the columns of `features` that hold dates
    (2020-12-31 or 31.12.2020), each with its day 0: the value is the number of days since then.
    `class_names`: the labels as the table writes them, in the order of the classes; else labels are
    the numbers 0 to classes - 1. `site_column` names the hospital, for a natural partition ("file",
    of several files, is each one's name). `unit_column` names the privacy unit, for example the
    patient, `group_columns` attributes such as sex, by whose values calibration is measured too.
    """

    kind: Literal["table"] = "table"
    path: Path | Annotated[tuple[Path, ...], Field(min_length=1)]
    label: str
    classes: Annotated[int, Field(ge=2, le=1000)]
    class_names: tuple[GroupText, ...] = ()
    features: tuple[str, ...] = ()
    centers: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    constants: Literal["public", "from_records"] = "public"
    missing: dict[ColumnName, Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=dict
    )
    categories: dict[ColumnName, Annotated[tuple[GroupText, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    others: dict[ColumnName, GroupText] = LATER_TABLE
    days_since: dict[ColumnName, date] = LATER_TABLE
    site_column: ColumnName | None = None
    unit_column: ColumnName | None = None
    group_columns: Annotated[tuple[GroupText, ...], Field(max_length=MAX_GROUP_ATTRIBUTES)] = ()

    @property
    def unit(self) -> str:
        """The column of units."""
        return self.unit_column or super().unit

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """As stated."""
        return self.class_names

    @property
    def looked_at(self) -> bool:
        """Where `constants` says so."""
        return self.constants == "from_records"

    @property
    def place(self) -> str:
        """What errors call it."""
        return ", ".join(map(str, self.path)) if isinstance(self.path, tuple) else str(self.path)

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """The columns that features are made of."""
        return (*self.features, *self.categories)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that are read as text: a patient 007 is not a patient 7."""
        columns = [*self.group_columns, *self.categories]
        if self.site_column is not None:
            columns.append(self.site_column)
        if self.unit_column is not None:
            columns.append(self.unit_column)
        if self.class_names:
            columns.append(self.label)
        return tuple(columns)

    def values_of(self, category: str) -> tuple[str, ...]:
        """Return what a column of text may be, `others` last."""
        values = self.categories[category]
        return (*values, self.others[category]) if category in self.others else values

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Numeric features, then where they are missing, then each value of each category."""
        names = [*self.features]
        names += [f"{name} missing" for name in self.missing]
        for name in self.categories:
            names += [f"{name}={value}" for value in self.values_of(name)]
        return tuple(names)

    @property
    def task(self) -> Task:
        """One number for each feature."""
        return _task(len(self.feature_names), classes=self.classes)

    def _check_keys(self) -> None:
        _check_constants(len(self.features), self.centers, self.scales)
        if not self.feature_names:
            raise ValueError("features and categories are both empty: name at least one column")
        names = len(set(self.class_names))
        if names not in (0, self.classes):
            raise ValueError(
                f"class_names has {names} names for {self.classes} classes: give one each"
            )
        unknown = [name for name in self.missing if name not in self.features]
        if unknown:
            raise ValueError(
                f"missing names {unknown[0]!r}, which is none of features: add it there or "
                "remove it here"
            )
        for name in self.days_since:
            if name not in self.features:
                raise ValueError(
                    f"days_since names {name!r}, which is none of features: add it there, with a "
                    "center and a scale in days"
                )
        for name, other in self.others.items():
            if name not in self.categories:
                raise ValueError(
                    f"others names {name!r}, which is none of categories: add it there or remove "
                    "it here"
                )
            if other in self.categories[name]:
                raise ValueError(
                    f"others of {name!r} is {other!r}, which categories names too: remove it there"
                )


def _one_group(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if groups != 1:
        raise ValueError(
            f"{pattern!r} has {groups} groups: give one, around the name, as in '^(P[0-9]+)_'"
        )
    return pattern


PathPattern = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_group)]


@register_source
class ImageFolder(FileSource):
    """A folder with one sub-folder of images per class, in alphabetical order of their names.

    `patient_pattern`: a regular expression whose one group finds the patient in an image's path
    inside its class folder, for example `^(P[0-9]+)_` or, with a folder for each patient,
    `^([^/]+)/`. All images of a patient are one privacy unit; without it each image is one.
    `site_pattern` finds the hospital in the same way.
    """

    kind: Literal["images"] = "images"
    path: Path
    height: PositiveInt
    width: PositiveInt
    channels: Literal[1, 3] = 1
    patient_pattern: PathPattern | None = None
    site_pattern: PathPattern | None = None

    @property
    def task(self) -> Task:
        """The stated size, and one class per sub-folder, of which an empty one counts.

        Raises:
            UserError: The folder is absent or has fewer than two sub-folders.
        """
        if not self.path.is_dir():
            raise UserError(f"image folder {self.path} does not exist")
        classes = len(self.names_of_classes)
        if classes < 2:
            raise UserError(
                f"image folder {self.path} has {classes} sub-folders: make one per class, "
                "at least two"
            )
        return _task(self.channels, self.height, self.width, classes=classes)

    @property
    def unit(self) -> str:
        """A patient where paths name them."""
        return "patient" if self.patient_pattern else "image"

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """The names of the sub-folders, in the order of the classes.

        None where the folder is not here.
        """
        if not self.path.is_dir():
            return ()
        return tuple(sorted(entry.name for entry in self.path.iterdir() if entry.is_dir()))


@register_source
class HuggingFace(FileSource):
    """A data set of the Hugging Face hub, or a local folder of Parquet files in its layout.

    Either `name` and `revision`, the commit whose files are read, so that every site and every
    later run reads the same, or `path`. `features` is one image column, resized to `height` x
    `width`, or a list of numeric ones, centred and scaled by public constants as in a table.
    `splits` says which split each official part is. `site_column` names who collected a record, for
    a natural partition, `unit_column` the privacy unit.
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
    splits: SplitNames = Field(default={"train": "train"}, min_length=1)
    site_column: ColumnName | None = None
    unit_column: ColumnName | None = None

    @property
    def task(self) -> Task:
        """Sizes of images, or the numeric columns."""
        if self.height is not None and self.width is not None:
            return _task(self.channels, self.height, self.width, classes=self.classes)
        return _task(len(self.columns), classes=self.classes)

    @property
    def parts(self) -> tuple[OfficialPart, ...]:
        """Those that `splits` names."""
        return tuple(self.splits)

    @property
    def unit(self) -> str:
        """The column of units, or what a record is."""
        return self.unit_column or ("image" if self.image else super().unit)

    @property
    def image(self) -> str | None:
        """The column of images; None where records are rows of numbers."""
        return self.features if isinstance(self.features, str) else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The numeric columns; none where records are images."""
        return () if isinstance(self.features, str) else self.features

    def _check_keys(self) -> None:
        if (self.name is None) == (self.path is None):
            raise ValueError(
                "give either name (and revision) or path, a local folder of Parquet files"
            )
        if (self.name is None) != (self.revision is None):
            raise ValueError(
                "revision is the commit of the hub's data set: give it with name, and not with path"
            )
        if {self.height is not None, self.width is not None} != {self.image is not None}:
            raise ValueError(
                "height and width must be given exactly when features is one column of images"
            )
        _check_constants(len(self.columns), self.centers, self.scales)


@register_source
class Arrays(FileSource):
    """A NumPy archive of `features` (N, *input_shape) and `labels` (N,) from 0.

    It also holds `sites` and `units` (N,) where they are known. Whole numbers of one byte are grey
    levels, which become 0 to 1. `class_names` are what predictions call the classes.
    """

    kind: Literal["arrays"] = "arrays"
    path: Path
    input_shape: Annotated[
        tuple[Annotated[int, Field(gt=0, le=4096)], ...], Field(min_length=1, max_length=3)
    ]
    classes: Annotated[int, Field(ge=2, le=1000)]
    class_names: tuple[GroupText, ...] = ()

    @property
    def task(self) -> Task:
        """As stated."""
        return _task(*self.input_shape, classes=self.classes)

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """As stated."""
        return self.class_names


class SyntheticSites(SourceConfig):
    """Records of natural sites `site-1`, `site-2`, ..., of equal size, with known p(y | x) at each.

    `records` and `test_records` are how many the parts `train` and `test` hold, over all sites.
    `heterogeneity` is how much the sites differ, in what they record and in how they label it; at 0
    they are alike. The same `seed` gives the same hospitals and patients, whatever the scenario's
    own seed is.
    """

    records: Annotated[int, Field(ge=2, le=1_000_000)] = 6000
    test_records: Annotated[int, Field(ge=2, le=1_000_000)] = 2000
    sites: Annotated[int, Field(ge=1, le=10_000)] = 6
    heterogeneity: Annotated[float, Field(ge=0, le=3)] = 0.5
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def parts(self) -> tuple[OfficialPart, ...]:
        """Both are drawn."""
        return ("train", "test")

    def _check_keys(self) -> None:
        for key, count in (("records", self.records), ("test_records", self.test_records)):
            if count < self.sites:
                raise ValueError(
                    f"{key} is {count} for {self.sites} sites: give each site at least one record"
                )


@register_source
class Logistic2D(SyntheticSites):
    """Points in the plane and a label by logistic regression, see `logistic_2d.py`.

    `intercept` and `slopes` are those of the average site.
    """

    kind: Literal["logistic-2d"] = "logistic-2d"
    intercept: Coefficient = 0.0
    slopes: tuple[Coefficient, Coefficient] = (1.5, -1.0)

    @property
    def task(self) -> Task:
        """Points in the plane."""
        return _task(2)


Point = tuple[Coefficient, Coefficient]


@register_source
class GaussianClasses(SyntheticSites):
    """Points in the plane of two equally frequent classes, see `gaussian_classes.py`.

    `means`: where the points of label 0 and of label 1 lie at the average site; around them they
    are standard normal.
    """

    kind: Literal["gaussian-classes"] = "gaussian-classes"
    means: tuple[Point, Point] = ((0.0, 1.5), (1.5, 0.0))

    @property
    def task(self) -> Task:
        """Points in the plane."""
        return _task(2)


@register_source
class Radiographs(SyntheticSites):
    """Chest-like grey pictures with an opacity, whose contrast decides on the label.

    `side`: pixels per row and column. `threshold`: the contrast (0 to 1) at which both labels are
    equally likely at the average site. See `radiographs.py`.
    """

    kind: Literal["radiographs"] = "radiographs"
    side: Annotated[int, Field(ge=8, le=224)] = 28
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5

    @property
    def task(self) -> Task:
        """Square grey pictures."""
        return _task(1, self.side, self.side)

    def _check_keys(self) -> None:
        super()._check_keys()
        most = MAX_PIXELS // self.side**2
        for key, count in (("records", self.records), ("test_records", self.test_records)):
            if count > most:
                raise ValueError(f"{key} is {count}: at side {self.side} at most {most} are made")
