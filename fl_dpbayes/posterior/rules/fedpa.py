"""FedPA: the server moves along the sites' weighted deltas towards the global mean.

The weights are shrunken covariances. Convention B with the scaled likelihood p(w) p(D_k|w)^{N/n_k}
and site weights n_k/N (precisions average), or convention A with equal site weights: the fixed
point is the same mean. It consumes the released samples, the site weights and the prior's scale,
and gives a point: no width, hence no calibration of its own. Draws are brought to temperature 1.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.posterior.chains import (
    at_unit_temperature,
    chains,
    flatten_state,
    sample_shapes,
    state_of,
)
from fl_dpbayes.posterior.samples import AnySamples
from fl_dpbayes.protocol import Arrays

Array = npt.NDArray[np.float64]


def site_delta(
    start: Array, draws: Array, weights: Array, *, shrinkage: float, prior_scale: float
) -> Array:
    """Return a site's delta, D = (r I + (1 - r) S / s0^2)^{-1} (w - m), r = 1 / (1 + (l - 1) rho).

    Woodbury with the rows A = sqrt(l v_t) (w_t - m) / s0, l = 1 / sum_t v_t^2 (for equal weights
    the number of draws):

        D = [u - A^T (I / rho + A A^T)^{-1} A u] / r,    u = w - m

    Dividing by the prior's standard deviation s0 makes rho a pure number. Directions whose standard
    deviation is below s0 / sqrt((l - 1) rho) fall back to FedAvg's delta u, as all do at rho = 0: a
    posterior 50 times narrower than the prior needs rho far above 50^2 / (l - 1).

    Args:
        start: w, the state that the server steps from, shape (d,).
        draws: w_t at temperature 1, shape (M, d).
        weights: v_t, shape (M,), which sum to 1.
        shrinkage: rho >= 0, in prior deviations.
        prior_scale: s0 > 0.

    Returns:
        D, shape (d,).

    Source: Al-Shedivat et al. 2021, "Federated learning via posterior averaging".
    """
    size = float(1 / np.square(weights).sum())
    mean = weights @ draws
    move = start - mean
    if shrinkage == 0 or len(draws) < 2:
        return move
    rows = np.sqrt(size * weights)[:, np.newaxis] * (draws - mean) / prior_scale
    core = np.eye(len(rows)) / shrinkage + rows @ rows.T
    solved = cho_solve(cho_factor(core, lower=True), rows @ move)
    return (move - rows.T @ solved) * (1 + (size - 1) * shrinkage)


def server_step(
    start: Mapping[str, npt.NDArray],
    site_samples: Mapping[str, AnySamples],
    site_weights: Mapping[str, float],
    *,
    shrinkage: float,
    prior_scale: float,
    learning_rate: float,
) -> tuple[Arrays, tuple[RunWarning, ...]]:
    """Take one server step, w <- w - eta sum_k w_k D_k / sum_k w_k, D_k by `site_delta`.

    With rho = 0 and eta = 1 the step is FedAvg. Repeated steps need eta < 2 / (1 + (l - 1) rho),
    which bounds every eigenvalue of the inverse of a shrunken covariance.

    Args:
        start: The state w, arrays by name.
        site_samples: Site -> its samples of this round, at least 2 to differ from FedAvg.
        site_weights: Site -> w_k, equal under convention A, n_k/N under B; renormalised over the
            sites that sent samples.
        shrinkage: rho >= 0.
        prior_scale: s0 > 0.
        learning_rate: eta > 0.

    Returns:
        The new state, and warnings, each once.

    Raises:
        ValueError: If no site sent a sample, or the step is not finite.
    """
    shapes = sample_shapes(site_samples)
    state = flatten_state(start, shapes)
    weighted_delta = np.zeros_like(state)
    total_weight = 0.0
    warnings: list[RunWarning] = []
    for chain in map(at_unit_temperature, chains(site_samples)):
        delta = site_delta(
            start=state,
            draws=chain.draws,
            weights=chain.weights,
            shrinkage=shrinkage,
            prior_scale=prior_scale,
        )
        weight = site_weights[chain.site]
        weighted_delta = weighted_delta + weight * delta
        total_weight += weight
        warnings += chain.warnings
        if len(chain.weights) < 2:
            warnings.append(warning("one-sample-delta", chain.site))
    stepped = state - learning_rate * weighted_delta / total_weight
    if not (np.abs(stepped) <= np.finfo(np.float32).max).all():
        raise ValueError("the FedPA step is not finite: lower the learning rate or the shrinkage")
    return state_of(stepped, shapes), tuple(dict.fromkeys(warnings))
