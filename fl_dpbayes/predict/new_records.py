"""Records from outside a run, brought to the shape that its model takes."""

import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config import BuiltIn, HuggingFace, ImageFolder, Radiographs, Table, Task
from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, image_pixels
from fl_dpbayes.data.sources.table import (
    BadRowsError,
    features_of,
    labels_of,
    read_table,
    row_place,
)
from fl_dpbayes.errors import UserError

NewData: TypeAlias = Path | str | pandas.DataFrame | npt.NDArray
LABEL = "label"
FORMS = "give a .csv, .parquet or .npz file, or a folder of images"


@dataclass(frozen=True)
class NewRecords:
    """Records of a task, `features` (N, *task.input_shape), with `labels` (N,) where the file has them.

    `names`: what to call each record in the output, (N,), by what they are numbered: `line` of a
    CSV, `row` of a Parquet file, else `record`. `units`: the name and values of a table's column of
    privacy units. `bad`: which rows of a table were left out, by their numbers from 0 among all,
    and where each stands.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None
    names: list[str]
    units: tuple[str, npt.NDArray] | None = None
    numbered: str = "record"
    bad: dict[int, str] = field(default_factory=dict)


def read_new_records(
    data: NewData, task: Task, source: object, *, labelled: bool, skip_bad_rows: bool = False
) -> NewRecords:
    """Read records from a table, a NumPy archive or a folder of images.

    A table's bad rows end it, or are left out.

    Tables (.csv, .parquet): the columns that the run's own table names, centred and scaled as
    there; else every column but `label`, in order, one per input. Archives (.npz): `features` (N,
    *input_shape) and, if known, `labels`. Folders: images, in one folder per class where labels are
    known (alphabetical order). From Python also a DataFrame, as a table, or an array (N,
    *input_shape), whose columns are those of the run's own table in their order. Raises UserError
    if the file is absent, unreadable, or does not fit the task; or if a pixel lies outside [0, 1].
    """
    path = Path(data) if isinstance(data, Path | str) else Path("given here")
    named = source.model_copy(update={"path": path}) if isinstance(source, Table) else None
    if isinstance(source, HuggingFace) and source.columns:
        named = Table(
            path=path,
            **source.model_dump(include={"label", "classes", "features", "centers", "scales"}),
        )
    table: pandas.DataFrame | None = None
    if isinstance(data, pandas.DataFrame):
        table = data.reset_index(drop=True)
    elif not isinstance(data, Path | str):
        data = np.asarray(data)
        records = NewRecords(data.astype(np.float32), None, list(map(str, range(len(data)))))
        if named is not None and data.shape[1:] == (len(named.feature_columns),):
            table = pandas.DataFrame(data, columns=list(named.feature_columns))
    elif not path.exists():
        raise UserError(f"{path} does not exist: {FORMS}")
    elif path.is_dir():
        records = _images(path, task, labelled=labelled)
    elif path.suffix in (".csv", ".parquet"):
        table = read_table(path, () if named is None else named.text_columns)
    elif path.suffix == ".npz":
        records = _archive(path, labelled=labelled)
    else:
        raise UserError(f"{path}: {FORMS}")
    if table is not None:
        records = _framed(table, path, task, named, labelled=labelled, skip_bad_rows=skip_bad_rows)
    if labelled and records.labels is None:
        raise UserError(
            f"{data} has no labels: give a column 'label', an array 'labels', or a folder "
            "for each class"
        )
    return _checked(records, task, source, path)


def _framed(
    table: pandas.DataFrame,
    path: Path,
    task: Task,
    source: Table | None,
    *,
    labelled: bool,
    skip_bad_rows: bool,
) -> NewRecords:
    table.columns = table.columns.map(str)
    columns = tuple(name for name in table.columns if name != LABEL) or ("",)
    named = source or Table(path=path, label=LABEL, classes=task.classes, features=columns)
    if missing := [name for name in named.feature_columns if name not in table.columns]:
        raise UserError(
            f"{path} has no column {missing[0]!r}: its columns are {', '.join(table.columns)}"
        )
    labels = labels_of(table, named) if labelled and named.label in table.columns else None
    features, bad = _features(table, named, skip=skip_bad_rows)
    unit = named.unit_column
    units = (
        (unit, table[unit].to_numpy(dtype=object))
        if unit is not None and unit in table.columns
        else None
    )
    return NewRecords(
        features, labels, [*map(str, table.index)], units, table.index.name or "row", bad
    )


def _features(
    table: pandas.DataFrame, source: Table, *, skip: bool
) -> tuple[npt.NDArray[np.float32], dict[int, str]]:
    """Return the features of each row, 0 in bad ones, and where those stand."""
    good = np.arange(len(table))
    bad: dict[int, str] = {}
    while True:
        try:
            found = features_of(table.iloc[good], source)
        except BadRowsError as error:
            if not skip:
                remedy = (
                    "correct or remove such rows (predict --skip-bad-rows gives them no prediction)"
                )
                raise UserError(f"{error.problem}: {remedy}") from None
            bad |= {
                row: f"{row_place(table, row)} ({error.column})"
                for row in good[error.rows].tolist()
            }
            good = np.delete(good, error.rows)
        else:
            features = np.zeros((len(table), found.shape[1]), dtype=np.float32)
            features[good] = found
            return features, bad


def _archive(path: Path, *, labelled: bool) -> NewRecords:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "features" not in archive:
                raise UserError(
                    f"{path} has no array 'features': it has {', '.join(archive.files)}"
                )
            features = np.asarray(archive["features"], dtype=np.float32)
            labels = archive.get("labels") if labelled else None
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} cannot be read as a .npz archive of plain arrays: {error}"
        ) from None
    if features.ndim < 2:
        raise UserError(f"{path}: 'features' has shape {features.shape}: give one row per record")
    return NewRecords(features, labels, [str(number) for number in range(len(features))])


def _images(folder: Path, task: Task, *, labelled: bool) -> NewRecords:
    if len(task.input_shape) != 3:
        raise UserError(
            f"{folder} is a folder, but the run's records are no images: their shape is "
            f"{task.input_shape}"
        )
    channels, height, width = task.input_shape
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise UserError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    known = (
        labelled
        and len(classes) == task.classes
        and all(file.parent.parent == folder for file in files)
    )
    labels = np.array([classes.index(file.parent.name) for file in files]) if known else None
    features = np.stack(
        [image_pixels(file, height=height, width=width, channels=channels) for file in files]
    )
    return NewRecords(features, labels, [file.relative_to(folder).as_posix() for file in files])


def _checked(records: NewRecords, task: Task, source: object, path: Path) -> NewRecords:
    features, labels = records.features, records.labels
    size = features[0].size if len(features) else 0
    if size != (inputs := int(np.prod(task.input_shape))):
        takes = f"the run's model takes {inputs} values per record, of shape {task.input_shape}"
        raise UserError(f"{path} has {len(features)} records of {size} values: {takes}")
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))[0])
        raise UserError(
            f"{path}: record {records.names[row]} has a value that is missing or not a "
            "finite number"
        )
    brightest = _brightest_pixel(source)
    low, high = float(features.min()), float(features.max())
    if brightest is not None and (low < 0 or high > 1):
        said = (
            f"{path} has pixels from {low:g} to {high:g}: the run's model was trained on "
            "pixels in [0, 1]"
        )
        raise UserError(f"{said}, so divide grey levels by {brightest} first")
    if labels is not None:
        allowed = f"labels must be whole numbers from 0 to {task.classes - 1}, one per record"
        if labels.shape != (len(features),):
            raise UserError(
                f"{path} has labels of shape {labels.shape} for {len(features)} records: {allowed}"
            )
        if not (good := np.isin(labels, np.arange(task.classes))).all():
            name, label = records.names[np.argmin(good)], str(labels[np.argmin(good)])
            raise UserError(f"{path}: the label of record {name} is {label[:60]!r}: {allowed}")
        labels = labels.astype(np.int64)
    return replace(records, features=features.reshape(-1, *task.input_shape), labels=labels)


def _brightest_pixel(source: object) -> int | None:
    """Return the grey level that became 1 in training; None where records are no pixels."""
    match source:
        case BuiltIn(kind="digits"):
            return 16
        case (
            BuiltIn(kind="mnist" | "pneumonia")
            | ImageFolder()
            | HuggingFace(features=str())
            | Radiographs()
        ):
            return 255
    return None
