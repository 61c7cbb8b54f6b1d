"""Laterality markers: the bright letter L or R that radiographers place in a corner of a film."""

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.float32]

LETTERS = {
    "L": ("100", "100", "100", "100", "111"),
    "R": ("110", "101", "110", "101", "101"),
}
# A stroke is one pixel wide at 28 pixels, so that the letter covers the same share of a film at 224.
PIXELS_PER_STROKE = 28


def add_markers(images: Images, opacity: npt.NDArray[np.float32], generator: np.random.Generator) -> Images:
    """Draw a letter into an upper corner of each image: L on the right or R on the left, by a fair coin.

        x' = x + opacity (1 - x) on the letter's strokes, x elsewhere

    Args:
        images: (N, channels, height, width), pixels in [0, 1].
        opacity: (N,), in [0, 1]; 0 leaves an image as it is.
        generator: draws which letter each image gets; draws as much whatever the opacity.

    Returns:
        Images of the same shape, pixels in [0, 1].

    Source: markers as a confounder, Zech et al., PLOS Medicine 2018, 10.1371/journal.pmed.1002683.
    """
    height, width = images.shape[-2:]
    left = generator.random(len(images)) < 0.5
    strokes = np.where(left[:, None, None], _strokes("L", height, width), _strokes("R", height, width))
    return images + (opacity[:, None, None] * strokes)[:, None] * (1 - images)


def _strokes(letter: str, height: int, width: int) -> npt.NDArray[np.float32]:
    stroke = max(1, min(height, width) // PIXELS_PER_STROKE)
    bitmap = np.array([[int(pixel) for pixel in row] for row in LETTERS[letter]], dtype=np.float32)
    # One stroke of margin; what does not fit into a small image is cut off.
    bitmap = np.pad(np.kron(bitmap, np.ones((stroke, stroke), dtype=np.float32)), stroke)[:height, :width]
    canvas = np.zeros((height, width), dtype=np.float32)
    if letter == "L":
        canvas[: bitmap.shape[0], width - bitmap.shape[1] :] = bitmap
    else:
        canvas[: bitmap.shape[0], : bitmap.shape[1]] = bitmap
    return canvas
