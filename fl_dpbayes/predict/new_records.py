"""Records from outside a run, brought to the shape that its model takes."""

import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config import (
    BuiltIn,
    HuggingFace,
    ImageFolder,
    Radiographs,
    Table,
    Task,
    column_hint,
)
from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, image_pixels, labels_by_folder
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
# The path of records that came from Python.
IN_MEMORY = Path("given here")
FORMS = "give a .csv, .parquet or .npz file, or a folder of images"


@dataclass(frozen=True)
class NewRecords:
    """N records of a task.

    Attributes:
        features: Of shape (N, *task.input_shape).
        labels: Classes, (N,); None where they are not known or not asked for.
        names: What to call each record in the output, N of them.
        units: A table's column of privacy units; None where it has none.
        numbered: What numbers the records: `line` of a CSV, `row` of a Parquet file, or `record`.
        bad: Rows of a table that were left out, by number from 0 among all, and where each stands.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None
    names: list[str]
    units: pandas.Series | None = None
    numbered: str = "record"
    bad: dict[int, str] = field(default_factory=dict)


def read_new_records(
    data: NewData, task: Task, source: object, *, labelled: bool, skip_bad_rows: bool = False
) -> NewRecords:
    """Read records from a table, a NumPy archive or a folder of images.

    Tables (.csv, .parquet, a DataFrame) have the columns that the run's own table names, centred
    and scaled as there; without such names every column but `label`, in order, is one input.
    Archives (.npz) hold `features` (N, *input_shape) and, if known, `labels`. Folders hold images,
    in one folder per class where labels are known, in alphabetical order.

    Args:
        data: A path, or from Python a DataFrame, or an array (N, *input_shape), whose columns are
            those of the run's own table in their order.
        task: The run's task.
        source: The run's source.
        labelled: Whether labels are read, and must be there.
        skip_bad_rows: Whether a table's bad rows are left out; otherwise they are refused.

    Returns:
        The records, checked against the task.

    Raises:
        UserError: If the file is absent, unreadable, or does not fit the task, or a pixel lies
            outside [0, 1].
    """
    path = Path(data) if isinstance(data, Path | str) else IN_MEMORY
    records = _read(
        data, path, task, _table_source(source, path), labelled=labelled, skip=skip_bad_rows
    )
    if labelled and records.labels is None:
        raise UserError(
            f"{data} has no labels: give a column 'label', an array 'labels', or a folder "
            "for each class"
        )
    return _checked(records, task, source, path)


def _table_source(source: object, path: Path) -> Table | None:
    """Return a table at `path` with the run's own columns; None where its source names none."""
    if isinstance(source, Table):
        return source.model_copy(update={"path": path})
    if isinstance(source, HuggingFace) and source.columns:
        columns = source.model_dump(include={"label", "classes", "features", "centers", "scales"})
        return Table(path=path, **columns)
    return None


def _read(
    data: NewData, path: Path, task: Task, source: Table | None, *, labelled: bool, skip: bool
) -> NewRecords:
    if isinstance(data, pandas.DataFrame):
        table = data.reset_index(drop=True)
        return _table_records(table, path, task, source, labelled=labelled, skip=skip)
    if not isinstance(data, Path | str):
        array = np.asarray(data)
        if source is not None and array.shape[1:] == (len(source.feature_columns),):
            table = pandas.DataFrame(array, columns=list(source.feature_columns))
            return _table_records(table, path, task, source, labelled=labelled, skip=skip)
        names = [str(number) for number in range(len(array))]
        return NewRecords(features=array.astype(np.float32), labels=None, names=names)
    if not path.exists():
        raise UserError(f"{path} does not exist: {FORMS}")
    if path.is_dir():
        return _images(path, task, labelled=labelled)
    if path.suffix in (".csv", ".parquet"):
        table = read_table(path, () if source is None else source.text_columns)
        return _table_records(table, path, task, source, labelled=labelled, skip=skip)
    if path.suffix == ".npz":
        return _archive(path, labelled=labelled)
    raise UserError(f"{path}: {FORMS}")


def _table_records(
    table: pandas.DataFrame,
    path: Path,
    task: Task,
    source: Table | None,
    *,
    labelled: bool,
    skip: bool,
) -> NewRecords:
    table.columns = table.columns.map(str)
    where = "the frame" if path == IN_MEMORY else str(path)
    if labelled and source is not None and source.label not in table.columns:
        raise UserError(
            f"{where} has no column {source.label!r}, which holds the labels of this run: "
            f"add it; {column_hint(source.label, table.columns)}"
        )
    if source is None:
        columns = tuple(name for name in table.columns if name != LABEL) or ("",)
        source = Table(path=path, label=LABEL, features=columns, **task.outcome.source_keys)
    missing = [name for name in source.feature_columns if name not in table.columns]
    if missing:
        raise UserError(
            f"{where} has no column {missing[0]!r}: {column_hint(missing[0], table.columns)}"
        )
    labels = labels_of(table, source) if labelled and source.label in table.columns else None
    features, bad = _features(table, source, skip=skip)
    units = None
    if source.unit_column is not None and source.unit_column in table.columns:
        units = table[source.unit_column].astype(object)
    return NewRecords(
        features=features,
        labels=labels,
        names=[str(number) for number in table.index],
        units=units,
        numbered=table.index.name or "row",
        bad=bad,
    )


def _features(
    table: pandas.DataFrame, source: Table, *, skip: bool
) -> tuple[npt.NDArray[np.float32], dict[int, str]]:
    """Return the features of each row, 0 in bad ones, and where those stand."""
    good = np.arange(len(table))
    bad: dict[int, str] = {}
    while True:
        try:
            good_features = features_of(table.iloc[good], source)
        except BadRowsError as error:
            if not skip:
                remedy = "correct or remove such rows"
                if source.path != IN_MEMORY:
                    remedy += " (predict --skip-bad-rows gives them no prediction)"
                raise UserError(f"{error.problem}: {remedy}") from None
            for row in good[error.rows].tolist():
                bad[row] = f"{row_place(table, row)} ({error.column})"
            good = np.delete(good, error.rows)
        else:
            features = np.zeros((len(table), good_features.shape[1]), dtype=np.float32)
            features[good] = good_features
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
    names = [str(number) for number in range(len(features))]
    return NewRecords(features=features, labels=labels, names=names)


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
    labels = labels_by_folder(folder, files, task.outcome) if labelled else None
    pixels = [image_pixels(file, height=height, width=width, channels=channels) for file in files]
    names = [file.relative_to(folder).as_posix() for file in files]
    return NewRecords(features=np.stack(pixels), labels=labels, names=names)


def _checked(records: NewRecords, task: Task, source: object, path: Path) -> NewRecords:
    _check_features(records, task, path)
    _check_pixels(records.features, source, path)
    labels = records.labels
    if labels is not None:
        labels = _checked_labels(labels, records.names, task, path)
    features = records.features.reshape(-1, *task.input_shape)
    return replace(records, features=features, labels=labels)


def _check_features(records: NewRecords, task: Task, path: Path) -> None:
    features = records.features
    size = features[0].size if len(features) else 0
    inputs = int(np.prod(task.input_shape))
    if size != inputs:
        raise UserError(
            f"{path} has {len(features)} records of {size} values: the run's model takes "
            f"{inputs} values per record, of shape {task.input_shape}"
        )
    is_finite = np.isfinite(features.reshape(len(features), -1)).all(axis=1)
    if not is_finite.all():
        name = records.names[int(np.argmin(is_finite))]
        raise UserError(f"{path}: record {name} has a value that is missing or not a finite number")


def _check_pixels(features: npt.NDArray, source: object, path: Path) -> None:
    brightest = _brightest_pixel(source)
    low = float(features.min())
    high = float(features.max())
    if brightest is not None and (low < 0 or high > 1):
        raise UserError(
            f"{path} has pixels from {low:g} to {high:g}: the run's model was trained on "
            f"pixels in [0, 1], so divide grey levels by {brightest} first"
        )


def _checked_labels(
    labels: npt.NDArray, names: list[str], task: Task, path: Path
) -> npt.NDArray[np.int64]:
    allowed = f"labels must be {task.outcome.allowed}, one per record"
    if labels.shape != (len(names),):
        raise UserError(
            f"{path} has labels of shape {labels.shape} for {len(names)} records: {allowed}"
        )
    is_allowed = task.outcome.holds(labels)
    if not is_allowed.all():
        first = int(np.argmin(is_allowed))
        label = str(labels[first])[:60]
        raise UserError(f"{path}: the label of record {names[first]} is {label!r}: {allowed}")
    return labels.astype(task.outcome.target_type)


def _brightest_pixel(source: object) -> int | None:
    """Return the grey level that became 1 in training; None where records are no pixels."""
    match source:
        case BuiltIn(kind="digits"):
            return 16
        case (
            BuiltIn(kind="mnist" | "pneumonia" | "cifar10" | "sun397" | "food101")
            | ImageFolder()
            | HuggingFace(features=str())
            | Radiographs()
        ):
            return 255
    return None
