"""Annotation shift: a share of the labels is wrong, at random or where cases could be called either way."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FLIP_RATES = (0.02, 0.05, 0.10, 0.20, 0.30)


def flip_labels(labels: Labels, classes: int, severity: int, generator: np.random.Generator) -> Labels:
    """Replace each label with probability `rate` by one of the other classes, all equally likely.

    Labels flipped at one severity are flipped to the same class at every higher one.

    Source: symmetric label noise at the rates of JMIR Med. Inform. 2020;8:e18089.
    """
    scores = generator.random(len(labels))
    steps = generator.integers(1, classes, size=len(labels))
    return np.where(scores < FLIP_RATES[severity - 1], (labels + steps) % classes, labels)


def symmetric_flips(classes: int, rate: float) -> Floats:
    """Return P(recorded c' | right c) under `flip_labels`, (C, C): 1 - rate, and rate / (C - 1) off the diagonal."""
    matrix = np.full((classes, classes), rate / (classes - 1))
    np.fill_diagonal(matrix, 1 - rate)
    return matrix


def under_report(labels: Labels, severity: int, generator: np.random.Generator) -> Labels:
    """Record positives (any class above 0) as class 0 with probability `rate`; negatives stay.

    Positives missed at one severity are missed at every higher one.

    Source: one-sided label noise; Oakden-Rayner 2019 on what radiology reports leave out.
    """
    return np.where(generator.random(len(labels)) < FLIP_RATES[severity - 1], 0, labels)


def under_reporting_flips(classes: int, rate: float) -> Floats:
    """Return P(recorded c' | right c) under `under_report`, (C, C)."""
    matrix = (1 - rate) * np.eye(classes)
    matrix[:, 0] += rate
    return matrix


def flipped_truth(truth: Floats, flip_matrix: Floats) -> Floats:
    """Return the probabilities of the recorded labels, (N, C), given those of the right ones.

        t'(c') = sum_c t(c) M(c, c'),  M(c, c') = P(recorded c' | right c)

    M is (C, C), or (N, C, C) where rates differ from record to record. It holds where the flip of a record depends on
    its features and its right label alone.

    Source: class-conditional noise of Natarajan et al., NeurIPS 2013; transition matrix of Patrini et al., CVPR 2017.
    """
    return np.matmul(truth[:, None, :], flip_matrix)[:, 0, :]


@dataclass(frozen=True)
class BoundaryFlips:
    """How likely each record is taken for the other of the two classes that it is nearest to, all (N,)."""

    rates: Floats
    nearest: Labels
    second: Labels

    def flip(self, labels: Labels, generator: np.random.Generator) -> Labels:
        """Draw wrong labels: the nearest class instead of any other, the second instead of the nearest.

        One draw per record, so that those flipped at one severity are flipped at every higher one.
        """
        wrong = np.where(labels == self.nearest, self.second, self.nearest)
        return np.where(generator.random(len(labels)) < self.rates, wrong, labels)

    def matrices(self, classes: int) -> Floats:
        """Return P(recorded c' | right c) of each record, (N, classes, classes)."""
        rows = np.arange(len(self.rates))
        matrices = (1 - self.rates)[:, None, None] * np.eye(classes)
        matrices[rows, :, self.nearest] += self.rates[:, None]
        matrices[rows, self.nearest, self.nearest] -= self.rates
        matrices[rows, self.nearest, self.second] += self.rates
        return matrices


def boundary_flips(closeness: Floats, severity: int) -> BoundaryFlips:
    """Make flips likelier for records near the boundary between their two nearest classes.

        rate_i = 2 rate (1 - F_i),  F_i = share of the records that are no farther from the boundary than record i

    The mean is `rate`, whatever the scale of `closeness`; no rate is above .6.

    Source: instance-dependent label noise; Menon, van Rooyen and Natarajan, Machine Learning 107, 2018
    (boundary-consistent noise).

    `closeness`: (N, C), higher for a nearer class: known probabilities, or `centroid_closeness`. `severity`: 1 to
    5, a mean rate of .02, .05, .10, .20 or .30.
    """
    order = np.argsort(-closeness, axis=1, kind="stable")[:, :2]
    highest = np.take_along_axis(closeness, order, axis=1)
    ranks = rankdata(highest[:, 0] - highest[:, 1])
    rates = 2 * FLIP_RATES[severity - 1] * (1 - (ranks - 0.5) / len(ranks))
    return BoundaryFlips(rates, order[:, 0], order[:, 1])


def centroid_closeness(features: npt.NDArray[np.float32], labels: Labels, classes: int) -> Floats:
    """Return minus each record's distance to the mean record of each class, (N, C); -inf for a class without records.

    The means are the site's own and stay there.
    """
    flat = features.reshape(len(features), -1)
    closeness = np.full((len(flat), classes), -np.inf)
    for label in np.unique(labels):
        centroid = flat[labels == label].mean(axis=0, dtype=np.float64).astype(np.float32)
        closeness[:, label] = -np.linalg.norm(flat - centroid, axis=1)
    return closeness
