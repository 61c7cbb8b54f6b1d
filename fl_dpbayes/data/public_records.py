"""Inputs of a server, which has no patients: public records, bounded and never unpickled, or synthetic ones."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from fl_dpbayes.config import Task
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import draw_strokes

# One gibibyte as float32.
MAX_VALUES = 2**28
# Standard deviations of the blur in pixels, from grains to one slope over the whole picture.
FINEST, COARSEST_SHARE = 0.5, 0.25
NO_LABELS = "set aggregation.beta to a number, which needs no labels"


@dataclass(frozen=True)
class PublicRecords:
    """Records that their user declares public: (N, *task.input_shape), and (N,) where labels were asked for."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None


def read_public_records(path: Path, task: Task, *, most: int, labelled: bool) -> PublicRecords:
    """Read public records of a task.

    Archives (.npz): `features` (N, *input_shape) or (N, number of inputs), numbers, and `labels`
    (N,). Folders: images, resized to the task; with labels, one sub-folder per class in
    alphabetical order. `most`: how many records to use at most, the first ones. Raises UserError if
    the file is absent, too large, unreadable, would need pickle, or does not fit the task.
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
    features, labels = records.features, records.labels
    if not np.isfinite(features).all():
        raise UserError(
            f"public records {path}: a value is missing or not a finite number: remove such records"
        )
    if len(task.input_shape) == 3 and (features.min() < 0 or features.max() > 1):
        found = f"pixels from {features.min():g} to {features.max():g}: the sites' are in [0, 1]"
        raise UserError(f"public records {path} have {found}, divide by the largest grey level")
    if labels is not None and not ((labels >= 0) & (labels < task.classes)).all():
        raise UserError(
            f"public records {path}: labels must be whole numbers from 0 to {task.classes - 1}"
        )
    return records


def synthetic_inputs(
    pattern: Literal["noise", "strokes"],
    count: int,
    input_shape: tuple[int, ...],
    generator: np.random.Generator,
) -> npt.NDArray[np.float32]:
    """Make inputs of a task without any record: float32, (count, *input_shape), images in [0, 1].

    `noise`, images: white noise blurred by a Gaussian of log-uniform width, stretched to [0, 1],
    each picture by itself; tables: N(0, 1). `strokes`: one to three connected pen strokes, see
    `draw_strokes`. Raises UserError if strokes are asked for and records are no square grey
    pictures.
    """
    if pattern == "strokes":
        if len(input_shape) != 3 or input_shape[0] != 1 or input_shape[1] != input_shape[2]:
            drawn = f"draws square grey pictures, not records of shape {input_shape}"
            raise UserError(
                f"aggregation.public.pattern 'strokes' {drawn}: choose pattern 'noise' "
                "or kind 'file'"
            )
        return draw_strokes(count, 1, input_shape[1], generator).reshape(count, *input_shape)
    if len(input_shape) != 3:
        return generator.normal(size=(count, *input_shape)).astype(np.float32)
    coarsest = max(FINEST, COARSEST_SHARE * min(input_shape[1:]))
    widths = np.exp(generator.uniform(np.log(FINEST), np.log(coarsest), count))
    return np.stack([_smooth_picture(input_shape, width, generator) for width in widths])


def _archive(path: Path, task: Task, most: int, *, labelled: bool) -> PublicRecords:
    inputs = int(np.prod(task.input_shape))
    try:
        with zipfile.ZipFile(path) as archive:
            features = _array(archive, "features", path)
            labels = _array(archive, "labels", path) if labelled else None
    except UserError:
        raise
    # What a crafted archive makes zipfile, its decompressors and the header's parser raise is not
    # documented.
    except Exception as error:
        raise UserError(
            f"public records {path} cannot be read as a .npz archive of plain arrays: {error}"
        ) from None
    fits = features.ndim > 1 and len(features) > 0 and features.size == len(features) * inputs
    if not fits or features.dtype.kind not in "fiu":
        found = f"'features' has shape {features.shape} of type {features.dtype}"
        raise UserError(
            f"public records {path}: {found}: give at least one row of {inputs} numbers"
        )
    if labels is not None and (labels.shape != (len(features),) or labels.dtype.kind not in "iu"):
        found = f"'labels' has shape {labels.shape} of type {labels.dtype}"
        raise UserError(
            f"public records {path}: {found}: give one whole number for each of "
            f"{len(features)} records"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        rows = features[:most].astype(np.float32).reshape(-1, *task.input_shape)
    return PublicRecords(rows, None if labels is None else labels[:most].astype(np.int64))


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> npt.NDArray:
    """Read one array of an archive after its header has said that it is small enough and holds no objects."""
    if f"{name}.npy" not in archive.namelist():
        found = ", ".join(member.removesuffix(".npy") for member in archive.namelist()[:10])
        remedy = f"add an array {name!r}" + (f", or {NO_LABELS}" if name == "labels" else "")
        raise UserError(
            f"public records {path} have no array {name!r}: the archive has "
            f"{found or 'none'}: {remedy}"
        )
    with archive.open(f"{name}.npy") as file:
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(
            npy.read_magic(file)
        )
        if read_header is None:
            raise ValueError(f"array {name!r} is of an unknown version of the format")
        shape, _, dtype = read_header(file)
    # Memory is taken for what a header claims before a byte of it is read.
    if (
        any(length < 0 for length in shape)
        or np.prod([float(length) for length in shape]) > MAX_VALUES
    ):
        claimed = f"array {name!r} has shape {shape}"
        raise UserError(
            f"public records {path}: {claimed}: at most {MAX_VALUES} numbers are read, "
            "so give fewer"
        )
    if dtype.hasobject or dtype.itemsize > 8:
        raise ValueError(f"array {name!r} is of type {dtype}, not of plain numbers")
    with archive.open(f"{name}.npy") as file:
        return npy.read_array(file, allow_pickle=False)


def _images(folder: Path, task: Task, most: int, *, labelled: bool) -> PublicRecords:
    if len(task.input_shape) != 3:
        raise UserError(
            f"public records {folder} are a folder, but the sites' are no images: give a .npz file"
        )
    # Pandas and SciPy's filters take half a second to import.
    from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, image_pixels

    channels, height, width = task.input_shape
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()
    )
    if not files:
        raise UserError(f"public records {folder} hold no image ({', '.join(IMAGE_SUFFIXES)})")
    labels = None
    if labelled:
        classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        if len(classes) != task.classes or any(file.parent.parent != folder for file in files):
            raise UserError(
                f"public records {folder} have {len(classes)} sub-folders: for labels each image "
                "must lie in one "
                f"of {task.classes}, one per class; or {NO_LABELS}"
            )
        labels = np.array([classes.index(file.parent.name) for file in files[:most]], np.int64)
    files = files[: min(most, MAX_VALUES // (channels * height * width))]
    features = np.stack(
        [image_pixels(file, height=height, width=width, channels=channels) for file in files]
    )
    return PublicRecords(features, None if labels is None else labels[: len(files)])


def _smooth_picture(
    shape: tuple[int, ...], width: float, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    from scipy.ndimage import gaussian_filter

    picture = gaussian_filter(generator.normal(size=shape), (0, width, width), mode="wrap")
    lowest, highest = picture.min(), picture.max()
    # A picture of one pixel has no range.
    return ((picture - lowest) / max(highest - lowest, 1e-12)).astype(np.float32)
