"""A logistic regression of outcomes on predicted risks, from sums over fine bins."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, FINE_BINS, OUTCOME, Floats, coarsen
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR

NEWTON_STEPS = 20
STANDARD_ERRORS = 1e-5


@dataclass(frozen=True)
class GroupedRecords:
    """Records of two classes in the fine bins that hold some, (B,).

    Attributes:
        n: Records.
        y: Of which class 1.
        score: Logit of their mean p(y = 1).
    """

    n: Floats
    y: Floats
    score: Floats

    @property
    def overlap(self) -> bool:
        """Whether no threshold of the score separates the classes, and both have records."""
        positive = self.score[self.y > 0]
        negative = self.score[self.y < self.n]
        if not positive.size or not negative.size or np.ptp(self.score) == 0:
            return False
        return bool(positive.min() < negative.max() and negative.min() < positive.max())


def grouped_records(risk: Floats) -> GroupedRecords:
    """Group the records of a table of risks by fine bin."""
    table = coarsen(risk, FINE_BINS)
    filled = table[table[:, COUNT] > 0]
    mean = np.clip(
        filled[:, CONFIDENCE] / filled[:, COUNT], PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR
    )
    return GroupedRecords(n=filled[:, COUNT], y=filled[:, OUTCOME], score=logit(mean))


@dataclass(frozen=True)
class Covariances:
    """Two estimates of the covariance of a fit's k coefficients, (k, k).

    Attributes:
        usual: A^-1, A = sum_i x_i x_i' s_i (1 - s_i): as if the fitted line were the truth.
        robust: N / (N - k) A^-1 B A^-1, B = sum_i x_i x_i' (y_i - s_i)^2. Source: White 1980.
    """

    usual: Floats
    robust: Floats

    def variance(self, rows: Floats) -> Floats:
        """Return the larger of both variances of the fitted log odds at rows, shape (R, k)."""
        usual = np.einsum("ri,ij,rj->r", rows, self.usual, rows)
        robust = np.einsum("ri,ij,rj->r", rows, self.robust, rows)
        return np.maximum(usual, robust)


def covariances(records: GroupedRecords, design: Floats, index: Floats) -> Covariances:
    """Return the covariances of coefficients at which the log odds are `index`.

    Args:
        records: The records.
        design: Shape (B, k).
        index: Log odds, shape (B,).
    """
    n = records.n
    law = expit(index)
    usual = np.linalg.inv((design * (n * law * (1 - law))[:, None]).T @ design)
    residuals = records.y * (1 - law) ** 2 + (n - records.y) * law**2
    squares = (design * residuals[:, None]).T @ design
    correction = n.sum() / max(1.0, n.sum() - design.shape[1])
    return Covariances(usual=usual, robust=usual @ squares @ usual * correction)


@dataclass(frozen=True)
class LogisticFit:
    """The maximum-likelihood fit of logit P(y = 1) = x'b.

    Attributes:
        coefficients: b, shape (k,).
        covariances: Of b.
    """

    coefficients: Floats
    covariances: Covariances


def fit_logistic(records: GroupedRecords, design: Floats, start: Floats) -> LogisticFit | None:
    """Fit a logistic regression.

    Args:
        records: The records.
        design: Shape (B, k).
        start: Coefficients to begin with, shape (k,).

    Returns:
        The fit; None where no maximum was found, as where some threshold nearly separates the
        classes.
    """
    n = records.n
    y = records.y
    total = n.sum()

    def loss(line: Floats) -> float:
        index = design @ line
        return float(n @ np.logaddexp(0, index) - y @ index) / total

    def gradient(line: Floats) -> Floats:
        return (n * expit(design @ line) - y) @ design / total

    def information(line: Floats) -> Floats:
        law = expit(design @ line)
        return (design * (n * law * (1 - law))[:, None]).T @ design / total

    line = minimize(
        loss,
        start,
        method="trust-exact",
        jac=gradient,
        hess=information,
        options={"gtol": 1e-7},
    ).x
    try:
        # Where few of many records overlap, a small mean gradient is no sign of the maximum; a step
        # this small is.
        for _ in range(NEWTON_STEPS):
            descent = gradient(line)
            step = np.linalg.solve(information(line), descent)
            line = line - step
            if total * descent @ step < STANDARD_ERRORS**2:
                return LogisticFit(line, covariances(records, design, index=design @ line))
    except np.linalg.LinAlgError:
        pass
    return None
