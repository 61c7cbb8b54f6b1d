"""Annotation shift where it is likeliest: cases that readers could call either way."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from fl_dpbayes.data.shifts.annotation import FLIP_RATES


@dataclass(frozen=True)
class BoundaryFlips:
    """How likely each record is taken for the other of the two classes that it is nearest to.

    Attributes:
        rates: (N,), probability of a wrong label.
        nearest: (N,), the nearest class.
        second: (N,), the next one.
    """

    rates: npt.NDArray[np.float64]
    nearest: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]

    def flip(self, labels: npt.NDArray[np.int64], generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Draw wrong labels: the nearest class instead of any other, the second instead of the nearest.

        Args:
            labels: (N,).
            generator: one draw per record, so that those flipped at one severity are flipped at every higher one.

        Returns:
            The new labels, (N,).
        """
        wrong = np.where(labels == self.nearest, self.second, self.nearest)
        return np.where(generator.random(len(labels)) < self.rates, wrong, labels)

    def matrices(self, classes: int) -> npt.NDArray[np.float64]:
        """Return P(recorded c' | right c) of each record, (N, classes, classes)."""
        rows = np.arange(len(self.rates))
        matrices = (1 - self.rates)[:, None, None] * np.eye(classes)
        matrices[rows, :, self.nearest] += self.rates[:, None]
        matrices[rows, self.nearest, self.nearest] -= self.rates
        matrices[rows, self.nearest, self.second] += self.rates
        return matrices


def boundary_flips(closeness: npt.NDArray[np.float64], severity: int) -> BoundaryFlips:
    """Make flips likelier for records near the boundary between their two nearest classes.

        rate_i = 2 rate (1 - F_i),  F_i = share of the records that are no farther from the boundary than record i

    The mean is `rate`, whatever the scale of `closeness`; no rate is above .6.

    Args:
        closeness: (N, C), higher for a nearer class: known probabilities, or `centroid_closeness`.
        severity: 1 to 5, a mean rate of .02, .05, .10, .20 or .30.

    Returns:
        Rates and nearest classes.

    Source: instance-dependent label noise; Menon, van Rooyen and Natarajan, Machine Learning 107, 2018
    (boundary-consistent noise).
    """
    order = np.argsort(-closeness, axis=1, kind="stable")[:, :2]
    highest = np.take_along_axis(closeness, order, axis=1)
    ranks = rankdata(highest[:, 0] - highest[:, 1])
    rates = 2 * FLIP_RATES[severity - 1] * (1 - (ranks - 0.5) / len(ranks))
    return BoundaryFlips(rates, order[:, 0], order[:, 1])


def centroid_closeness(
    features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], classes: int
) -> npt.NDArray[np.float64]:
    """Return minus each record's distance to the mean record of each class; minus infinity for a class without records.

    The means are the site's own and stay there.

    Args:
        features: (N, ...).
        labels: (N,), of at least two classes.
        classes: number of classes C.

    Returns:
        (N, C).
    """
    flat = features.reshape(len(features), -1)
    closeness = np.full((len(flat), classes), -np.inf)
    for label in np.unique(labels):
        centroid = flat[labels == label].mean(axis=0, dtype=np.float64).astype(np.float32)
        closeness[:, label] = -np.linalg.norm(flat - centroid, axis=1)
    return closeness
