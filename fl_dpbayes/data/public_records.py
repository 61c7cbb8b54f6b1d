"""Inputs of a server, which has no patients: public records or synthetic ones.

Public records are bounded, and never unpickled.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from fl_dpbayes.config import Task
from fl_dpbayes.data.archive_size import check_unpacked_size
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import draw_strokes

# One gibibyte as float32.
MAX_VALUES = 2**28
# As many numbers of eight bytes, in an archive.
MOST_BYTES = 8 * MAX_VALUES
# Standard deviations of the blur in pixels, from grains to one slope over the whole picture.
FINEST = 0.5
COARSEST_SHARE = 0.25
NO_LABELS = "set aggregation.beta to a number, which needs no labels"


@dataclass(frozen=True)
class PublicRecords:
    """Records that their user declares public.

    Attributes:
        features: (N, *task.input_shape).
        labels: (N,), None where no labels were asked for.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None


def read_public_records(path: Path, task: Task, *, most: int, labelled: bool) -> PublicRecords:
    """Read public records of a task.

    Args:
        path: An archive (.npz) of `features`, (N, *input_shape) or (N, number of inputs), numbers,
            and `labels`, (N,); or a folder of images, which are resized to the task; with labels,
            one sub-folder per class in alphabetical order.
        task: The shape of a record and the number of classes.
        most: How many records to use at most, the first ones.
        labelled: Whether labels are needed.

    Raises:
        UserError: If the file is absent, too large, unreadable, would need pickle, or does not fit
            the task.
    """
    if path.is_dir():
        records = _images(path, task, most, labelled=labelled)
    elif not path.is_file():
        raise UserError(
            f"aggregation.public.path {path} does not exist: give a .npz file or a folder of images"
        )
    elif path.suffix == ".npz":
        records = _archive(path, task, most, labelled=labelled)
    else:
        raise UserError(f"aggregation.public.path {path}: give a .npz file or a folder of images")
    _check_values(records, task, path)
    return records


def _check_values(records: PublicRecords, task: Task, path: Path) -> None:
    features = records.features
    labels = records.labels
    if not np.isfinite(features).all():
        raise UserError(
            f"public records {path}: a value is missing or not a finite number: remove such records"
        )
    if len(task.input_shape) == 3 and (features.min() < 0 or features.max() > 1):
        raise UserError(
            f"public records {path} have pixels from {features.min():g} to {features.max():g}: "
            "the sites' are in [0, 1], divide by the largest grey level"
        )
    if labels is not None and not task.outcome.holds(labels).all():
        raise UserError(f"public records {path}: labels must be {task.outcome.allowed}")


def synthetic_inputs(
    pattern: Literal["noise", "strokes"],
    count: int,
    input_shape: tuple[int, ...],
    generator: np.random.Generator,
) -> npt.NDArray[np.float32]:
    """Make inputs of a task without any record: float32, (count, *input_shape).

    Args:
        pattern: `noise`, images: white noise blurred by a Gaussian of log-uniform width, stretched
            to [0, 1], each picture by itself; tables: N(0, 1). `strokes`: one to three connected
            pen strokes in [0, 1], see `draw_strokes`.
        count: The number of inputs.
        input_shape: The shape of one.
        generator: Draws them.

    Raises:
        UserError: If strokes are asked for and records are no square grey pictures.
    """
    is_image = len(input_shape) == 3
    if pattern == "strokes":
        if not is_image or input_shape[0] != 1 or input_shape[1] != input_shape[2]:
            raise UserError(
                "aggregation.public.pattern 'strokes' draws square grey pictures, not records of "
                f"shape {input_shape}: choose pattern 'noise' or kind 'file'"
            )
        return draw_strokes(count, 1, input_shape[1], generator).reshape(count, *input_shape)
    if not is_image:
        return generator.normal(size=(count, *input_shape)).astype(np.float32)
    coarsest = max(FINEST, COARSEST_SHARE * min(input_shape[1:]))
    widths = np.exp(generator.uniform(np.log(FINEST), np.log(coarsest), count))
    return np.stack([_smooth_picture(input_shape, width, generator) for width in widths])


def _archive(path: Path, task: Task, most: int, *, labelled: bool) -> PublicRecords:
    labels = None
    try:
        check_unpacked_size(path, MOST_BYTES)
        with np.load(path, allow_pickle=False) as archive:
            features = _array(archive, "features", path)
            if labelled:
                labels = _array(archive, "labels", path)
    except UserError:
        raise
    # What a crafted archive makes zipfile, its decompressors and NumPy raise is not documented.
    except Exception as error:
        raise UserError(
            f"public records {path} cannot be read as a .npz archive of plain arrays: {error}"
        ) from None
    _check_features(features, task, path)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = features[:most].astype(np.float32).reshape(-1, *task.input_shape)
    if labels is None:
        return PublicRecords(features=rows, labels=None)
    _check_labels(labels, len(features), path)
    return PublicRecords(features=rows, labels=labels[:most].astype(np.int64))


def _check_features(features: npt.NDArray, task: Task, path: Path) -> None:
    inputs = int(np.prod(task.input_shape))
    is_table = features.ndim > 1 and len(features) > 0
    if not is_table or features.size != len(features) * inputs or features.dtype.kind not in "fiu":
        raise UserError(
            f"public records {path}: 'features' has shape {features.shape} of type "
            f"{features.dtype}: give at least one row of {inputs} numbers"
        )


def _check_labels(labels: npt.NDArray, count: int, path: Path) -> None:
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise UserError(
            f"public records {path}: 'labels' has shape {labels.shape} of type {labels.dtype}: "
            f"give one whole number for each of {count} records"
        )


def _array(archive: NpzFile, name: str, path: Path) -> npt.NDArray:
    if name not in archive.files:
        present = ", ".join(archive.files[:10])
        remedy = f"add an array {name!r}"
        if name == "labels":
            remedy += f", or {NO_LABELS}"
        raise UserError(
            f"public records {path} have no array {name!r}: the archive has "
            f"{present or 'none'}: {remedy}"
        )
    # What is no array comes as bytes.
    return np.asarray(archive[name])


def _images(folder: Path, task: Task, most: int, *, labelled: bool) -> PublicRecords:
    if len(task.input_shape) != 3:
        raise UserError(
            f"public records {folder} are a folder, but the sites' are no images: give a .npz file"
        )
    # Pandas and SciPy's filters take half a second to import.
    from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, image_pixels, labels_by_folder

    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()
    )
    if not files:
        raise UserError(f"public records {folder} hold no image ({', '.join(IMAGE_SUFFIXES)})")
    channels, height, width = task.input_shape
    most = min(most, MAX_VALUES // (channels * height * width))
    # Labels are checked first: pictures take far longer to read.
    labels = labels_by_folder(folder, files, task.outcome) if labelled else None
    if labelled and labels is None:
        raise UserError(
            f"public records {folder}: for labels each image must lie in one of "
            f"{task.outcome.outputs} sub-folders, one per class; or {NO_LABELS}"
        )
    features = [
        image_pixels(file, height=height, width=width, channels=channels) for file in files[:most]
    ]
    return PublicRecords(
        features=np.stack(features), labels=None if labels is None else labels[:most]
    )


def _smooth_picture(
    shape: tuple[int, ...], width: float, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    from scipy.ndimage import gaussian_filter

    picture = gaussian_filter(generator.normal(size=shape), (0, width, width), mode="wrap")
    lowest, highest = picture.min(), picture.max()
    # A picture of one pixel has no range.
    return ((picture - lowest) / max(highest - lowest, 1e-12)).astype(np.float32)
