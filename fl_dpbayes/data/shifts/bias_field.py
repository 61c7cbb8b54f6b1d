"""Bias field: brightness that varies smoothly over the film, as by the anode's heel or an uneven detector."""

import numpy as np
import numpy.typing as npt

ORDER = 3


def bias_fields(
    count: int, height: int, width: int, size: float, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Draw smooth positive fields to multiply images by.

        f(u, v) = exp(size sum_{i + j <= 3} a_ij u^i v^j),  a_ij ~ U(-1, 1),  u, v in [-1, 1] over the image

    Args:
        count: how many fields, one per image.
        height: of a field in pixels.
        width: of a field in pixels.
        size: bound of the coefficients of log f, >= 0.
        generator: draws a_ij; they do not depend on `size`.

    Returns:
        (count, height, width), above 0.

    Source: polynomial field of van Leemput et al., IEEE TMI 18(10), 1999, as in TorchIO's RandomBiasField.
    """
    powers = [(i, j) for i in range(ORDER + 1) for j in range(ORDER + 1 - i)]
    u, v = np.linspace(-1, 1, width, dtype=np.float32), np.linspace(-1, 1, height, dtype=np.float32)
    terms = np.stack([np.outer(v**j, u**i).ravel() for i, j in powers])
    coefficients = generator.uniform(-1, 1, (count, len(powers))).astype(np.float32)
    return np.exp(np.float32(size) * (coefficients @ terms)).reshape(count, height, width)
