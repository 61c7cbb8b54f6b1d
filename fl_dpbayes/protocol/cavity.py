"""The cavity of partitioned variational inference: the diagonal Gaussian that a request gives a site as its prior.

It is a function of other sites' released samples and public constants, so it costs this site no privacy, whatever it
is: a prior stays outside the clip. Its bounds only keep the arithmetic in float32's range.
"""

from collections.abc import Mapping

import numpy.typing as npt

from fl_dpbayes.protocol.arrays import check_arrays, prefixed, without_prefix

CAVITY = "cavity"
LEAST_PRECISION, MOST_PRECISION = 1e-12, 1e12
MOST_MEAN = 1e6


def cavity_shapes(parameter_shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the arrays in which a cavity travels.

    Args:
        parameter_shapes: of the plain model.

    Returns:
        `mean/<parameter name>` and `precision/<parameter name>` -> shape.
    """
    return prefixed("mean", parameter_shapes) | prefixed("precision", parameter_shapes)


def check_cavity(arrays: Mapping[str, npt.NDArray], parameter_shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that arrays are a proper cavity: finite, means and precisions within the public bounds.

    Args:
        arrays: as in `cavity_shapes`.
        parameter_shapes: of the plain model.

    Raises:
        ValueError: at the first array that does not fit.
    """
    check_arrays(arrays, cavity_shapes(parameter_shapes))
    for name, precision in without_prefix("precision", arrays).items():
        if not ((precision >= LEAST_PRECISION) & (precision <= MOST_PRECISION)).all():
            raise ValueError(
                f"a precision of {name!r} lies outside [{LEAST_PRECISION:g}, {MOST_PRECISION:g}]: the cavity is no "
                "proper Gaussian"
            )
    for name, mean in without_prefix("mean", arrays).items():
        if not (abs(mean) <= MOST_MEAN).all():
            raise ValueError(f"a mean of {name!r} lies outside [-{MOST_MEAN:g}, {MOST_MEAN:g}]")
