"""What a rule returns: the global posterior as samples, and which of the rule's assumptions do not hold."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.warning import RunWarning
from fl_dpbayes.posterior.rules.chains import unflatten
from fl_dpbayes.posterior.samples import PosteriorSamples


@dataclass(frozen=True)
class Aggregate:
    """A global posterior.

    Attributes:
        samples: equally weighted samples; a rule that gives a point returns one, at temperature 0.
        warnings: one for each assumption that does not hold, each once, in the order of the sites' names.
    """

    samples: PosteriorSamples
    warnings: tuple[RunWarning, ...]


def posterior_aggregate(
    draws: npt.NDArray[np.float64], shapes: Mapping[str, tuple[int, ...]], warnings: Iterable[RunWarning]
) -> Aggregate:
    """Wrap draws of a posterior at temperature 1.

    Args:
        draws: shape (M, d).
        shapes: parameter name -> shape, in the order of the flat vector.
        warnings: repeated ones are kept once.

    Returns:
        M samples of weight 1 and temperature 1.

    Raises:
        ValueError: if a draw leaves the range of float32.
    """
    _check_range(draws)
    samples = PosteriorSamples(unflatten(draws, shapes), np.ones(len(draws)), np.ones(len(draws)))
    return Aggregate(samples, tuple(dict.fromkeys(warnings)))


def point_aggregate(
    points: npt.NDArray[np.float64], shapes: Mapping[str, tuple[int, ...]], warnings: Iterable[RunWarning]
) -> Aggregate:
    """Wrap points that claim no posterior width.

    Args:
        points: shape (M, d).
        shapes: parameter name -> shape, in the order of the flat vector.
        warnings: repeated ones are kept once.

    Returns:
        M samples of weight 1 and temperature 0.

    Raises:
        ValueError: if a point leaves the range of float32.
    """
    _check_range(points)
    samples = PosteriorSamples(unflatten(points, shapes), np.ones(len(points)), np.zeros(len(points)))
    return Aggregate(samples, tuple(dict.fromkeys(warnings)))


def _check_range(values: npt.NDArray[np.float64]) -> None:
    if not (np.abs(values) <= np.finfo(np.float32).max).all():
        raise ValueError(
            "the combined parameters leave the range of float32: a site's samples are out of all proportion"
        )
