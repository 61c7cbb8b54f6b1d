"""DP temperature scaling on records that training never saw: the baseline that every private posterior is held to."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.recalibration.descent import private_fit
from fl_dpbayes.calibration.recalibration.maps import recalibrate
from fl_dpbayes.config.recalibration import RecalibrationMap, RecalibrationPlan
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.solve import solve_multiplier

# Few large steps: in log T a full batch allows them, and the noise of fewer steps is less.
STEPS, STEP_SIZE, CLIP_NORM = 20, 1.0, 5.0

Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recalibrated:
    """Predictions after DP temperature scaling.

    Attributes:
        probabilities: shape (N, classes), of every part.
        temperature: T, above 1 where the predictor was found overconfident.
        history: what training and recalibration, on disjoint records, cost together: that of the costlier of the two.
    """

    probabilities: tuple[Probabilities, ...]
    temperature: float
    history: History


def private_temperature(
    held_back: Probabilities,
    labels: npt.NDArray[np.int64],
    parts: tuple[Probabilities, ...],
    *,
    trained: History,
    epsilon: float,
    delta: float,
    generator: np.random.Generator,
) -> Recalibrated:
    """Fit a temperature within a budget of its own and apply it.

    Args:
        held_back: predictions for the n held-back records, each a privacy unit; shape (n, classes), n >= 1.
        labels: theirs, shape (n,).
        parts: predictions to be recalibrated, each of shape (N, classes).
        trained: what training did to the other records.
        epsilon: budget of the fit.
        delta: of both budgets.
        generator: draws the noise.

    Returns:
        Recalibrated predictions.

    Source: Zhang et al. 2022, A closer look at the calibration of differentially private learners, Algorithm 1 and
    Proposition A.1 (parallel composition).
    """
    plan = RecalibrationPlan(
        method="temperature", epsilon=epsilon, delta=delta, adjacency="add_or_remove_one", clip_norm=CLIP_NORM,
        steps=STEPS, rounds=1, step_size=STEP_SIZE,
    )  # fmt: skip
    fit = private_fit(
        held_back,
        labels,
        np.arange(len(labels)),
        plan=plan,
        noise_multiplier=solve_multiplier(epsilon, delta, 1.0, STEPS),
        units=len(labels),
        start=np.zeros(1),
        first_step=0,
        steps=STEPS,
        generator=generator,
    )
    mapping = RecalibrationMap(method="temperature", parameters=tuple(map(float, fit.parameters)))
    costlier = max(trained, fit.history, key=lambda history: pld_epsilon(history, delta))
    changed = tuple(recalibrate(part, mapping) for part in parts)
    return Recalibrated(changed, float(np.exp(fit.parameters[0])), costlier)
