"""Lossy export of images."""

from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image


def compress_as_jpeg(images: npt.NDArray[np.float32], quality: int) -> npt.NDArray[np.float32]:
    """Write each image as JPEG with 256 levels and read it back.

    Args:
        images: (N, 1 or 3 channels, height, width), pixels in [0, 1].
        quality: of the Independent JPEG Group's scale, 1 to 95.

    Returns:
        Images of the same shape, pixels in [0, 1].

    Source: `jpeg_compression` of ImageNet-C, Hendrycks and Dietterich 2019, which uses Pillow too; torchvision's
    transform is deprecated since 0.29.
    """
    levels = np.round(images * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    # Pillow wants grey images without a channel axis.
    pictures = levels[..., 0] if levels.shape[-1] == 1 else levels
    compressed = np.stack([_round_trip(picture, quality) for picture in pictures])
    return compressed.reshape(levels.shape).transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)


def _round_trip(levels: npt.NDArray[np.uint8], quality: int) -> npt.NDArray[np.uint8]:
    file = BytesIO()
    Image.fromarray(levels).save(file, format="JPEG", quality=quality)
    return np.asarray(Image.open(file))
