"""Fits a recalibration map by noisy full-batch descent on a part of its own.

Every step uses every unit, so its cost is one Gaussian event (sigma, sampling rate 1, T steps). In
log T a full batch allows steps near 1; a clip norm much below 5 cuts the confident errors, which
are what recalibration is about.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fl_dpbayes.calibration.bins import Floats, in_fixed_pieces
from fl_dpbayes.calibration.recalibration.maps import method_code
from fl_dpbayes.calibration.recalibration.median_map import FEWEST_SITES, median_deviation
from fl_dpbayes.calibration.release import LARGEST_BOUND, NORM_ROUNDING, bounded_shares
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR
from fl_dpbayes.config import (
    PARAMETER_BOUND,
    DescentMethod,
    RecalibrationMap,
    RecalibrationPlan,
    RunWarning,
    warning,
)

Labels = npt.NDArray[np.int64]
LARGEST_ETA = 1e-3
# In log T: probabilities flatter or sharper by a factor of 1.6 by chance.
LARGEST_DEVIATION = 0.5


def log_probabilities(probabilities: Floats) -> Floats:
    """Return z = log max(p, PROBABILITY_FLOOR), so that every score lies in [-27.7, 0]."""
    # What is no number counts as the floor, and what is beyond 1 as that.
    return np.log(np.fmin(np.fmax(probabilities, PROBABILITY_FLOOR), 1.0))


def record_gradients(
    method: DescentMethod, parameters: Floats, logs: Floats, labels: Labels
) -> Floats:
    """Return the gradient of every record's -log g(p)_label by the P parameters.

    The method's file gives it from r = softmax(u) - onehot(label), u the scores of z.

    Args:
        method: Of the map.
        parameters: Shape (P,).
        logs: z, shape (N, C).
        labels: Shape (N,), 0 .. C - 1.

    Returns:
        Finite gradients, shape (N, P).
    """
    code = method_code(method)
    residual = softmax(code.scores(logs, parameters), axis=1)
    residual[np.arange(len(labels)), labels] -= 1.0
    return code.gradients(residual, logs, parameters)


@dataclass(frozen=True)
class Stretch:
    """Some steps of a planned descent.

    Attributes:
        plan: The fit.
        noise_multiplier: sigma; 0 is the fit without noise.
        units: n > 0, a public constant near the number of units; it scales the steps and nothing
            else.
        first_step: Number of the first step in the plan, from 0.
        steps: How many steps.
    """

    plan: RecalibrationPlan
    noise_multiplier: float
    units: float
    first_step: int
    steps: int


def private_fit(
    probabilities: Floats,
    labels: Labels,
    unit_index: npt.NDArray[np.int64],
    stretch: Stretch,
    start: npt.ArrayLike,
    generator: np.random.Generator,
) -> Floats:
    """Run a stretch of the planned descent.

        G_t         = sum over units of clip_C( sum of the unit's record gradients )
        theta_{t+1} = project( theta_t - a_t (G_t + sigma C xi_t) / n ),    xi_t ~ N(0, I)
        a_t         = a (1 - t / T)

    Args:
        probabilities: Shape (N, C); N may be 0.
        labels: Shape (N,), 0 .. C - 1.
        unit_index: Unit of each record, shape (N,).
        stretch: The steps.
        start: Parameters before the first of these steps, shape (P,).
        generator: Source of the noise.

    Returns:
        The parameters after the last step, each within +-PARAMETER_BOUND, shape (P,).

    Raises:
        ValueError: As of `share_bound`.

    Source: Zhang et al. 2022, A closer look at the calibration of differentially private learners,
    Algorithm 1 and appendix B.2.
    """
    plan = stretch.plan
    units = stretch.units
    bound = share_bound(plan, units)
    logs = in_fixed_pieces(log_probabilities, probabilities)
    parameters = np.asarray(start, np.float64)
    count = int(unit_index.max()) + 1 if len(unit_index) else 0
    for step in range(stretch.first_step, stretch.first_step + stretch.steps):
        gradients = np.zeros((count, len(parameters)))
        gradients_of_rows = partial(record_gradients, plan.method, parameters)
        np.add.at(gradients, unit_index, in_fixed_pieces(gradients_of_rows, logs, labels))
        clipped_sum = bounded_shares(gradients, bound).sum(axis=0)
        noise_std = stretch.noise_multiplier * plan.clip_norm
        noise = noise_std * generator.standard_normal(len(parameters))
        step_size = plan.step_size * (1 - step / plan.steps)
        move = step_size * (clipped_sum + noise) / units
        parameters = np.clip(parameters - move, -PARAMETER_BOUND, PARAMETER_BOUND)
    return parameters


def share_bound(plan: RecalibrationPlan, units: float) -> float:
    """Return the bound of a unit's gradient, so that with all rounding it moves a sum by at most C.

        C (1 - 2e-12) / (1 + eta)

    Args:
        plan: With the clip norm C.
        units: n > 0, as for a `Stretch`.

    Returns:
        The bound.

    Raises:
        ValueError: If rounding could move a sum of so many units by 0.001 of C, or C is beyond
            LARGEST_BOUND.
    """
    if plan.clip_norm > LARGEST_BOUND:
        raise ValueError(f"clip_norm is {plan.clip_norm:g}: it must be {LARGEST_BOUND:g} at most")
    return plan.clip_norm * (1 - 2 * NORM_ROUNDING) / (1 + _rounding_eta(units))


def bounded_map(plan: RecalibrationPlan, parameters: Floats) -> RecalibrationMap:
    """Return the map of combined parameters.

    A mean of bounded values may pass the bound by rounding.
    """
    bounded = np.clip(parameters, -PARAMETER_BOUND, PARAMETER_BOUND)
    return RecalibrationMap(method=plan.method, parameters=tuple(map(float, bounded)))


def noise_deviation(plan: RecalibrationPlan, noise_multiplier: float, units: float) -> float:
    """Return how far privacy noise alone moves a site's parameters.

    From a flat loss it makes theta a sum of a_t sigma C xi_t / n, of deviation (a sigma C / n)
    sqrt(sum_t (1 - t/T)^2).

    Args:
        plan: The fit.
        noise_multiplier: sigma >= 0.
        units: n > 0.

    Returns:
        A standard deviation, in the unit of the parameters.
    """
    decay = np.sqrt(np.square(1 - np.arange(plan.steps) / plan.steps).sum())
    return float(plan.step_size * noise_multiplier * plan.clip_norm * decay / units)


def noise_warning(
    plan: RecalibrationPlan, noise_multiplier: float, units: Mapping[str, int], *, together: bool
) -> RunWarning | None:
    """Say so where the privacy noise alone moves the parameters too far for the map to be of use.

    The median of K sites alike has 1/sqrt(K) of a site's deviation, and sqrt(pi/2) times that from
    three on. Sites of which one states few units are not alike: from three on the middle one (of
    two in the middle the smaller) stands for all, as how many it keeps is a site's own word.

    Args:
        plan: The fit.
        noise_multiplier: sigma.
        units: Site -> n; at least one site, of which the smallest stands for all, or the middle
            one.
        together: Whether the median of the sites is used, or each site's own map.

    Returns:
        A warning, or None.
    """
    rising = sorted(units, key=lambda name: units[name])
    middle = (len(rising) - 1) // 2
    site = rising[middle] if together and len(rising) >= FEWEST_SITES else rising[0]
    deviation = noise_deviation(plan=plan, noise_multiplier=noise_multiplier, units=units[site])
    if together:
        deviation *= median_deviation(len(units))
    if deviation <= LARGEST_DEVIATION:
        return None
    return warning(
        "map-noise",
        name=site,
        units=units[site],
        deviation=deviation,
        largest=LARGEST_DEVIATION,
    )


def _rounding_eta(units: float) -> float:
    """Return eta = 2 m^2 u, m = 2 n, u = 2^-53.

    Rounding moves a sum of m by at most eta times the bound of each.
    """
    eta = 2 * (2 * units) ** 2 * 2.0**-53
    if eta > LARGEST_ETA:
        raise ValueError(
            f"{units:.0f} units: rounding could move their sum by {eta:.1e} of the clip "
            "norm, above 0.001"
        )
    return eta
