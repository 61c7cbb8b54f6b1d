"""What arrays from outside may hold."""

import numpy as np
import numpy.typing as npt

LARGEST_VALUE = float(np.finfo(np.float32).max)


def check_values(name: str, values: npt.NDArray) -> None:
    """Check that an array holds plain numbers, which float64 computations cannot make infinite.

    Args:
        name: Of the array, for the error.
        values: The array.

    Raises:
        ValueError: If it is neither float32 nor float64, or a value is NaN, infinite or beyond
            float32's range.
    """
    if values.dtype not in (np.float32, np.float64):
        raise ValueError(f"array {name!r} is {values.dtype}: it must be float32 or float64")
    # A comparison with NaN is false.
    if not (np.abs(values) <= LARGEST_VALUE).all():
        raise ValueError(
            f"array {name!r} has a value that is not finite, or beyond float32's range "
            f"({LARGEST_VALUE:.2g})"
        )
