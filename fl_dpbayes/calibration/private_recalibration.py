"""Fits a recalibration map with differential privacy: full-batch noisy gradient descent on a part of its own.

    G_t         = sum over units of clip_C( sum of the unit's record gradients )
    theta_{t+1} = project( theta_t - a_t (G_t + sigma C xi_t) / n ),    xi_t ~ N(0, I),   a_t = a (1 - t / T)

Every step uses every unit, so the cost is one Gaussian event (sigma, sampling rate 1, T steps). Source: Zhang et al.
2022, A closer look at the calibration of differentially private learners, Algorithm 1 and appendix B.2 (start at
temperature 1, linear decay, step size 0.1, clip norm 10, 100 epochs). In log T a full batch allows steps near 1, and
few of them. A clip norm much below 5 cuts the confident errors, which are what recalibration is about: at 1, a
quarter of what a twice overconfident model could gain is lost, at 2 a twentieth.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import in_fixed_pieces
from fl_dpbayes.calibration.recalibration import Floats, log_probabilities, record_gradients
from fl_dpbayes.config.recalibration import PARAMETER_BOUND, RecalibrationPlan
from fl_dpbayes.privacy.events import GaussianEvent, History

# More than the rounding of a norm over a few thousand parameters.
NORM_ROUNDING = 1e-12
LARGEST_ETA = 1e-3


@dataclass(frozen=True)
class PrivateFit:
    """Where a stretch of private descent ended.

    Attributes:
        parameters: of the map, shape (P,).
        history: what was done to the units, for accounting.
    """

    parameters: Floats
    history: History


def private_fit(
    probabilities: Floats,
    labels: npt.NDArray[np.int64],
    unit_index: npt.NDArray[np.int64],
    *,
    plan: RecalibrationPlan,
    noise_multiplier: float,
    units: float,
    start: npt.ArrayLike,
    first_step: int,
    steps: int,
    generator: np.random.Generator,
) -> PrivateFit:
    """Run a stretch of the planned descent.

    Args:
        probabilities: predictions for the part's records, shape (N, C); N may be 0.
        labels: shape (N,), 0 .. C - 1.
        unit_index: unit of each record, shape (N,), >= 0.
        plan: method, clip norm, step size and number of steps of the whole fit.
        noise_multiplier: sigma >= 0; 0 is the fit without noise.
        units: n > 0, a public constant near the number of units; it scales the steps and nothing else.
        start: parameters before the first of these steps, shape (P,).
        first_step: number of that step in the plan, from 0.
        steps: how many.
        generator: draws the noise.

    Returns:
        Parameters after the last step, each within +-PARAMETER_BOUND, and the history of this stretch.

    Raises:
        ValueError: if the stretch leaves the plan, the noise multiplier is negative, or there are so many units that
            rounding could move a sum by more than 0.001 of the clip norm.
    """
    if first_step < 0 or steps < 1 or first_step + steps > plan.steps:
        raise ValueError(f"steps {first_step} + {steps} must lie within the plan's {plan.steps} steps")
    logs = in_fixed_pieces(log_probabilities, probabilities)
    bound = plan.clip_norm * (1 - NORM_ROUNDING) / (1 + rounding_eta(units))
    parameters = np.asarray(start, np.float64)
    count = int(unit_index.max()) + 1 if len(unit_index) else 0
    for step in range(first_step, first_step + steps):
        gradients = np.zeros((count, len(parameters)))
        of_rows = partial(record_gradients, plan.method, parameters)
        np.add.at(gradients, unit_index, in_fixed_pieces(of_rows, logs, labels))
        noise = noise_multiplier * plan.clip_norm * generator.standard_normal(len(parameters))
        move = plan.step_size * (1 - step / plan.steps) * (_clipped_sum(gradients, bound) + noise) / units
        parameters = np.clip(parameters - move, -PARAMETER_BOUND, PARAMETER_BOUND)
    return PrivateFit(parameters, (GaussianEvent(noise_multiplier, 1.0, steps),))


def rounding_eta(units: float) -> float:
    """Return eta: rounding moves a sum of m contributions by at most eta times the bound of each.

        eta = 2 m^2 u,    u = 2^-53,    m = 2 n

    Args:
        units: n, a public constant near the number of units.

    Returns:
        eta.

    Raises:
        ValueError: if it exceeds 0.001: n is above a million.
    """
    eta = 2 * (2 * units) ** 2 * 2.0**-53
    if eta > LARGEST_ETA:
        raise ValueError(f"{units:.0f} units: rounding could move their sum by {eta:.1e} of the clip norm, above 0.001")
    return eta


def _clipped_sum(gradients: Floats, clip_norm: float) -> Floats:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients / np.maximum(1.0, norms / clip_norm)).sum(axis=0)
