"""An institution's own folder of images, one sub-folder per class."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from fl_dpbayes.config import ImageFolder, OfficialPart, require_torchvision
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.table import site_names
from fl_dpbayes.errors import UserError

MAX_PICTURE_PIXELS = 2**26
# What a file that is no picture, or a huge one, ends in.
UNREADABLE = (OSError, ValueError, Image.DecompressionBombError)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".ppm", ".webp")


def load(source: ImageFolder, part: OfficialPart) -> Records:
    """Load a folder of images, each resized (bilinear, anti-aliased) and scaled to [0, 1].

    Returns one record per image in alphabetical order, label = position of its class folder; a
    privacy unit is a patient, or else one image, known by its path inside the folder. Raises
    UserError if it is of another form.
    """
    # torchvision takes a second to import, and predictions for single images need this module
    # without it.
    require_torchvision()
    from torchvision.datasets import ImageFolder as TorchvisionImageFolder

    task = source.task
    folder = TorchvisionImageFolder(str(source.path), allow_empty=True)
    if not folder.samples:
        raise UserError(f"image folder {source.path} has no images")
    size = {"height": source.height, "width": source.width, "channels": source.channels}
    paths = [Path(path) for path, _ in folder.samples]
    return Records(
        features=np.stack([image_pixels(path, **size) for path in paths]),
        labels=np.array([label for _, label in folder.samples], dtype=np.int64),
        units=np.array(
            found_names(source, paths, "patient_pattern")
            or [image_name(source, path) for path in paths]
        ),
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

    Nothing without one.

    Raises UserError if it finds nothing in one of them.
    """
    pattern, names = getattr(source, key), []
    for path in paths if pattern else []:
        found = re.search(pattern, image_name(source, path).partition("/")[2])
        if found is None or not found[1]:
            said = (
                f"image {path} names no {key.partition('_')[0]}: {key} {pattern!r} must find "
                "one in every path"
            )
            raise UserError(f"{said} in a class folder: correct it, or rename or remove the image")
        names.append(found[1])
    return names


def _sites(source: ImageFolder, paths: list[Path]) -> npt.NDArray | None:
    found = found_names(source, paths, "site_pattern")
    names = site_names(np.array(found), f"site_pattern of {source.path}") if found else {}
    return np.array([names[name] for name in found]) if found else None


def image_pixels(path: Path, *, height: int, width: int, channels: int) -> npt.NDArray[np.float32]:
    """Read one image as pixels in [0, 1], float32, (channels, height, width), as `grey_levels` does.

    Raises UserError if the image cannot be read.
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
    """Return an image of any size and mode as grey levels 0 to 255, resized (bilinear, anti-aliased).

    Uint8, (channels, height, width); `channels` is 1 (converted to grey) or 3. Raises ValueError
    for a huge one.
    """
    if (pixels := image.width * image.height) > MAX_PICTURE_PIXELS:
        raise ValueError(
            f"it has {pixels} pixels, allowed are {MAX_PICTURE_PIXELS}: make it smaller"
        )
    resized = image.convert("L" if channels == 1 else "RGB").resize(
        (width, height), Image.Resampling.BILINEAR
    )
    levels = np.asarray(resized)
    return levels[None] if channels == 1 else np.ascontiguousarray(levels.transpose(2, 0, 1))
