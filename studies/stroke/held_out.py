"""Predictions of a model that never saw a country, for each of 200 patients and more: what the studies here start from.

A pooled logistic regression without privacy, on all features and almost without a prior, stands for
the federation's model: what is studied is what a new hospital's own patients can tell, whichever
model predicts.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from fl_dpbayes.config import BuiltIn
from fl_dpbayes.data.sources.stroke import load

Floats = npt.NDArray[np.float64]
LEAST_PATIENTS = 200
PENALTY = 1e-3  # of the slopes' squares: the features have sums of ones that are always 1


def stroke() -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray]:
    """Return the trial's features (N, D), outcomes (N,) and countries (N,)."""
    records = load(BuiltIn(kind="stroke"), "train")
    countries = np.array([hospital.rpartition("-")[0] for hospital in records.natural_site])
    return records.features.astype(np.float64), records.labels, countries


def large(countries: npt.NDArray) -> list[str]:
    """Return the countries of `LEAST_PATIENTS` patients and more, the largest first."""
    names, counts = np.unique(countries, return_counts=True)
    return [
        str(names[at]) for at in np.argsort(-counts, kind="stable") if counts[at] >= LEAST_PATIENTS
    ]


def fitted(features: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """Return the coefficients of a logistic regression, intercept first, (1 + D,)."""
    inputs, signs = (
        np.column_stack([np.ones(len(features)), features]),
        np.where(labels == 1, 1.0, -1.0),
    )

    def loss(w: Floats) -> tuple[float, Floats]:
        odds = signs * (inputs @ w)
        slope = -(inputs * (signs * expit(-odds))[:, None]).sum(axis=0) + 2 * PENALTY * w
        return float(-log_expit(odds).sum() + PENALTY * w @ w), slope

    return minimize(
        loss, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 2_000}
    ).x


def log_odds(coefficients: Floats, features: Floats) -> Floats:
    """Return the log odds of the outcome, (N,)."""
    return coefficients[0] + features @ coefficients[1:]


def negative_log_likelihood(odds: Floats, labels: npt.NDArray[np.int64]) -> float:
    """Return the mean over patients, in nats."""
    return float(-log_expit(np.where(labels == 1, odds, -odds)).mean())


def exact_level(odds: Floats, labels: npt.NDArray[np.int64]) -> float:
    """Return what must be added to the log odds so that they fit the outcomes best."""
    found = minimize(
        lambda shift: negative_log_likelihood(odds + shift[0], labels),
        np.zeros(1),
        method="Nelder-Mead",
    )
    return float(found.x[0])
