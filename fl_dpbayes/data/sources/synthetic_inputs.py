"""Made-up inputs for a server that has no records: smooth noise, normal values or pen strokes."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.models.strokes import draw_strokes

# Standard deviations of the blur in pixels, from grains to one slope over the whole picture.
FINEST, COARSEST_SHARE = 0.5, 0.25


def synthetic_inputs(
    pattern: Literal["noise", "strokes"], count: int, input_shape: tuple[int, ...], generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Make inputs of a task without any record.

    `noise`, images: white noise blurred by a Gaussian of log-uniform width, stretched to [0, 1], each picture by
    itself; tables: N(0, 1). `strokes`: one to three connected pen strokes, see `draw_strokes`.

    Args:
        pattern: which.
        count: how many, >= 1.
        input_shape: of a record; (channels, height, width) for images.
        generator: of all choices.

    Returns:
        Float32, (count, *input_shape); images in [0, 1].

    Raises:
        UserError: if strokes are asked for and records are no square grey pictures.
    """
    if pattern == "strokes":
        if len(input_shape) != 3 or input_shape[0] != 1 or input_shape[1] != input_shape[2]:
            raise UserError(
                f"aggregation.public.pattern 'strokes' draws square grey pictures, not records of shape {input_shape}: "
                "choose pattern 'noise' or kind 'file'"
            )
        return draw_strokes(count, 1, input_shape[1], generator).reshape(count, *input_shape)
    if len(input_shape) != 3:
        return generator.normal(size=(count, *input_shape)).astype(np.float32)
    coarsest = max(FINEST, COARSEST_SHARE * min(input_shape[1:]))
    widths = np.exp(generator.uniform(np.log(FINEST), np.log(coarsest), count))
    return np.stack([_smooth_picture(input_shape, width, generator) for width in widths])


def _smooth_picture(shape: tuple[int, ...], width: float, generator: np.random.Generator) -> npt.NDArray[np.float32]:
    picture = gaussian_filter(generator.normal(size=shape), (0, width, width), mode="wrap")
    lowest, highest = picture.min(), picture.max()
    # A picture of one pixel has no range.
    return ((picture - lowest) / max(highest - lowest, 1e-12)).astype(np.float32)
