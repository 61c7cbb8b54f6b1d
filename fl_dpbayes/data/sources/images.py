"""An institution's own folder of images, one sub-folder per class."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from fl_dpbayes.config import AnyOutcome, ImageFolder, OfficialPart, require_torchvision
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.table import site_names
from fl_dpbayes.errors import UserError

MAX_PICTURE_PIXELS = 2**26
# What a file that is no picture, or a huge one, ends in.
UNREADABLE = (OSError, ValueError, Image.DecompressionBombError)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".ppm", ".webp")


def load(source: ImageFolder, part: OfficialPart) -> Records:
    """Load a folder of images, each resized (bilinear, anti-aliased) and scaled to [0, 1].

    Args:
        source: Names the folder, the size and the patterns of patients and sites.
        part: The official part; a folder has one only.

    Returns:
        One record per image in alphabetical order, label = position of its class folder. A privacy
        unit is a patient, or else one image, known by its path inside the folder.

    Raises:
        UserError: If the folder is of another form.
    """
    # torchvision takes a second to import, and predictions for single images need this module
    # without it.
    require_torchvision()
    from torchvision.datasets import ImageFolder as TorchvisionImageFolder

    task = source.task
    folder = TorchvisionImageFolder(str(source.path), allow_empty=True)
    if not folder.samples:
        raise UserError(f"image folder {source.path} has no images")
    paths = [Path(path) for path, _ in folder.samples]
    features = [
        image_pixels(path, height=source.height, width=source.width, channels=source.channels)
        for path in paths
    ]
    patients = found_names(source, paths, "patient_pattern")
    return Records(
        features=np.stack(features),
        labels=np.array([label for _, label in folder.samples], dtype=np.int64),
        units=np.array(patients or [image_name(source, path) for path in paths]),
        natural_site=_sites(source, paths),
        task=task,
        unit=source.unit,
    )


def image_name(source: ImageFolder, path: Path) -> str:
    """Name an image by its path inside the source, whose first part is its class."""
    return path.relative_to(source.path).as_posix()


def found_names(
    source: ImageFolder, paths: list[Path], key: Literal["patient_pattern", "site_pattern"]
) -> list[str]:
    """Return what a pattern of the source finds in the path of each image inside its class.

    Args:
        source: Names the folder and the patterns.
        paths: The images.
        key: Which of the patterns.

    Returns:
        A name for each image, none without the pattern.

    Raises:
        UserError: If the pattern finds nothing in one of the paths.
    """
    pattern = source.patient_pattern if key == "patient_pattern" else source.site_pattern
    if not pattern:
        return []
    names = []
    for path in paths:
        path_in_class = image_name(source, path).partition("/")[2]
        match = re.search(pattern, path_in_class)
        if match is None or not match[1]:
            raise UserError(
                f"image {path} names no {key.removesuffix('_pattern')}: {key} {pattern!r} must "
                "find one in every path in a class folder: correct it, or rename or remove the "
                "image"
            )
        names.append(match[1])
    return names


def _sites(source: ImageFolder, paths: list[Path]) -> npt.NDArray | None:
    values = found_names(source, paths, "site_pattern")
    if not values:
        return None
    names = site_names(np.array(values), f"site_pattern of {source.path}")
    return np.array([names[value] for value in values])


def labels_by_folder(
    folder: Path, files: list[Path], outcome: AnyOutcome
) -> npt.NDArray[np.int64] | None:
    """Return each image's class: the place of its sub-folder in alphabetical order.

    Args:
        folder: Holds the sub-folders.
        files: The images, N of them.
        outcome: Says how many classes there are.

    Returns:
        Shape (N,); None where sub-folders are not as many, or an image lies elsewhere.
    """
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if len(names) != outcome.outputs or any(file.parent.parent != folder for file in files):
        return None
    return np.array([names.index(file.parent.name) for file in files], np.int64)


def image_pixels(path: Path, *, height: int, width: int, channels: int) -> npt.NDArray[np.float32]:
    """Read one image as pixels in [0, 1], float32, (channels, height, width).

    Args:
        path: The image's file.
        height: Of the result, in pixels.
        width: Of the result, in pixels.
        channels: 1 (converted to grey) or 3.

    Raises:
        UserError: If the image cannot be read.
    """
    try:
        with Image.open(path) as image:
            levels = grey_levels(image, height=height, width=width, channels=channels)
    except UNREADABLE as error:
        raise UserError(f"image {path} cannot be read: {error}") from None
    return levels.astype(np.float32) / np.float32(255)


def grey_levels(
    image: Image.Image, *, height: int, width: int, channels: int
) -> npt.NDArray[np.uint8]:
    """Return an image as grey levels 0 to 255, resized (bilinear, anti-aliased).

    Args:
        image: Of any size and mode.
        height: Of the result, in pixels.
        width: Of the result, in pixels.
        channels: 1 (converted to grey) or 3.

    Returns:
        uint8, (channels, height, width).

    Raises:
        ValueError: If the image is huge.
    """
    pixels = image.width * image.height
    if pixels > MAX_PICTURE_PIXELS:
        raise ValueError(
            f"it has {pixels} pixels, allowed are {MAX_PICTURE_PIXELS}: make it smaller"
        )
    converted = image.convert("L" if channels == 1 else "RGB")
    levels = np.asarray(converted.resize((width, height), Image.Resampling.BILINEAR))
    return levels[None] if channels == 1 else np.ascontiguousarray(levels.transpose(2, 0, 1))
