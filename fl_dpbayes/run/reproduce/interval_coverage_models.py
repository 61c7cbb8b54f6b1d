"""Simulated models whose calibration error is known: confidences, and how often they are right."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from fl_dpbayes.calibration.bins import Floats, bin_index

Draw = Callable[[np.random.Generator, int], Floats]


def _mostly_sure(generator: np.random.Generator, count: int) -> Floats:
    sure = generator.random(count) < 0.95
    return np.where(sure, generator.uniform(0.95, 1, count), generator.uniform(0.5, 0.95, count))


def _certain(generator: np.random.Generator, count: int) -> Floats:
    return np.where(generator.random(count) < 0.8, 1.0, generator.uniform(0.6, 1, count))


CONFIDENCES: Mapping[str, Draw] = {
    "Beta(.6, .6)": lambda generator, count: generator.beta(0.6, 0.6, count),
    "top of 2, uniform": lambda generator, count: generator.uniform(0.5, 1, count),
    "top of 10, Dirichlet(.3)": lambda generator, count: generator.dirichlet(np.full(10, 0.3), count).max(axis=1),
    "Beta(8, 1)": lambda generator, count: generator.beta(8, 1, count),
    "95 % above .95": _mostly_sure,
    "80 % at 1": _certain,
}


def _steepened(slope: float) -> Callable[[Floats], Floats]:
    return lambda p: expit(slope * logit(np.clip(p, 1e-12, 1 - 1e-12)))


FREQUENCIES: Mapping[str, Callable[[Floats], Floats]] = {
    "calibrated": lambda p: p,
    "logit x .8": _steepened(0.8),
    "logit x .6": _steepened(0.6),
    "logit x 1.5": _steepened(1.5),
    "wrong above .97": lambda p: np.where(p > 0.97, 0.9, p),
    "all .05 too high": lambda p: np.clip(p - 0.05, 0, 1),
    "bump at .6 to .73": lambda p: np.where((p > 0.6) & (p < 0.73), p - 0.2, p),
}
SITES = "three sites, opposite errors"
SITE_SHARES = ((0.6, 0.5), (0.3, 2.0), (0.1, 1.0))  # share of the records, slope of the logit
DISTORTIONS = (*FREQUENCIES, SITES)


def frequency(distortion: str, confidence: Floats, generator: np.random.Generator) -> Floats:
    """Return the probability that each answer is right.

    Args:
        distortion: one of DISTORTIONS.
        confidence: p, shape (N,), in [0, 1].
        generator: deals the records to sites of unequal size where the distortion is SITES.

    Returns:
        Probabilities, shape (N,).
    """
    if distortion != SITES:
        return FREQUENCIES[distortion](confidence)
    shares, slopes = zip(*SITE_SHARES, strict=True)
    return _steepened(generator.choice(slopes, confidence.size, p=shares))(confidence)  # type: ignore[arg-type]


class Replicates(NamedTuple):
    """Independent test sets of one model.

    Attributes:
        confidence: shape (R, n).
        frequency: true probability of being right, shape (R, n).
        right: whether each answer is, shape (R, n).
    """

    confidence: Floats
    frequency: Floats
    right: npt.NDArray[np.bool_]


def draw_replicates(
    confidences: str, distortion: str, count: int, replicates: int, generator: np.random.Generator
) -> Replicates:
    """Draw test sets.

    Args:
        confidences: one of CONFIDENCES.
        distortion: one of DISTORTIONS.
        count: records n of each.
        replicates: R.
        generator: source of the draws.

    Returns:
        The sets.
    """
    p = CONFIDENCES[confidences](generator, replicates * count)
    q = frequency(distortion, p, generator)
    right = generator.random(p.size) < q
    shape = (replicates, count)
    return Replicates(p.reshape(shape), q.reshape(shape), right.reshape(shape))


def binned(drawn: Replicates, bins: int) -> Floats:
    """Return sums of 1, p, outcome and true probability per equal-width bin, shape (R, bins, 4)."""
    replicates, count = drawn.confidence.shape
    place = bin_index(drawn.confidence, bins) + bins * np.arange(replicates)[:, None]
    weights = (np.ones((replicates, count)), drawn.confidence, drawn.right, drawn.frequency)
    sums = [np.bincount(place.ravel(), np.ravel(weight), bins * replicates) for weight in weights]
    return np.stack(sums, axis=1).astype(np.float64).reshape(replicates, bins, 4)
