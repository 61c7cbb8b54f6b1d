"""What each hospital's released states say of its clipped sums, and these of its effect on the level.

    G_t = B [ (w_t - w_t') / a_t + (s/n) grad log p(w_t) ]

is the noisy sum of clipped gradients that a site's one step from the broadcast w_t to its state
w_t' took, exactly. Rounds after burn-in weigh as 1 / sigma_t^2. Post-processing: nothing here costs
privacy.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit

from fl_dpbayes.models import prior_gradient
from fl_dpbayes.posterior.hierarchical.distribution import Floats
from fl_dpbayes.schedules import PlannedChain

# The bank's name for the sums of all sites; no site can be called so.
HOSPITALS = "sums of hospitals"
FACTS = 4
# The variance of an estimate that says nothing: no log odds are as far apart as its root.
UNKNOWN = 1e4
# Beyond any state or sum that tells a level: what is added up over rounds then stays within
# float32's range.
LARGEST = 1e18


def summed_round(chain: PlannedChain, step: int, broadcast: Floats, state: Floats) -> Floats:
    """Return what a round adds to its site's sums, omega_t = 1 / (sigma_t C)^2 being its weight.

    (4 + 2 d,).

    That is n, 1, omega_t, (omega_t sigma_t C)^2, then omega_t G_t and omega_t w_t. `step`: its
    number in the plan. `broadcast`, `state`: w_t and w_t', (d,); both were float32, whose rounding
    is |w| 2^-24 B / a_t of G_t. A chain that has run away enters with values of at most LARGEST.
    """
    sd = float(chain.noise_multipliers[step]) * chain.plan.privacy.noise_unit
    weight = 1 / sd**2 if sd > 0 else 1.0
    pull = prior_gradient(chain.plan.sampler.prior, torch.from_numpy(broadcast)).numpy()
    moved = (broadcast - state) / chain.step_sizes[step]
    gradient = chain.scale.expected_batch_size * (
        moved + chain.plan.prior_share / chain.units * pull
    )
    values = weight * np.clip(np.concatenate([gradient, broadcast]), -LARGEST, LARGEST)
    return np.concatenate([(chain.units, 1, weight, (weight * sd) ** 2), values])


class Means(NamedTuple):
    """Of K sites: units n_k; means of G_t and w_t over rounds, (K, d).

    The noise's sd in the first, (K,).
    """

    units: Floats
    gradients: Floats
    states: Floats
    noise: Floats


def site_means(rows: Mapping[str, npt.NDArray]) -> Means:
    """Divide the sums of one site or more, added up over rounds, by their weights.

    Sites in alphabetical order.
    """
    table = np.stack([rows[site] for site in sorted(rows)])
    units, rounds, weights, squares = table[:, :FACTS].T
    gradients, states = np.split(table[:, FACTS:] / weights[:, None], 2, axis=1)
    return Means(units / rounds, gradients, states, np.sqrt(squares) / weights)


def log_odds_means(means: Means) -> Means:
    """Turn means of a softmax model of two classes, its weights (2, D) then biases (2), into those of the log odds.

    The two rows of a record's gradient are opposite, so their half difference is the score of the
    log odds, clipped at C / sqrt(2), with noise of sigma C / sqrt(2). Intercept first: (K, 1 + D).
    """

    def contrast(values: Floats) -> Floats:
        width = (values.shape[1] - 2) // 2
        return np.column_stack(
            [values[:, -1] - values[:, -2], values[:, width : 2 * width] - values[:, :width]]
        )

    return Means(
        means.units, contrast(means.gradients) / 2, contrast(means.states), means.noise / np.sqrt(2)
    )


def clipped_score(
    covariates: Floats, state: Floats, clip_norm: float
) -> tuple[Floats, Floats, Floats]:
    """Average a clipped logistic score (p - y) x f over covariates (N, d), whose first column is 1, at a state (d,).

    With p = sigmoid(x'w), v = p (1 - p), f1 = min(1, C / ((1 - p) |x|)), f0 = min(1, C / (p |x|)):

        g = E[v (f0 - f1) x],  H = E[v ((1 - p) f1 + p f0) x x'],  Q = E[v ((1 - p) f1^2 + p f0^2) x x']

    are its mean where the state is right, minus its derivative in the true log odds, and its
    variance. `clip_norm`: C > 0, infinite where nothing is clipped.
    """
    p, length = expit(covariates @ state), np.linalg.norm(covariates, axis=1)
    f1, f0 = (np.minimum(1.0, clip_norm / np.maximum(miss * length, 1e-300)) for miss in (1 - p, p))
    v = p * (1 - p) / len(covariates)
    slope, variance = ((1 - p) * f1**power + p * f0**power for power in (1, 2))
    outer = ((covariates * (v * weight)[:, None]).T @ covariates for weight in (slope, variance))
    return (v * (f0 - f1)) @ covariates, *outer


def site_effects(means: Means, score: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats]:
    """Estimate sites' effects u_k on the first coordinate, the intercept, by generalised least squares on all of them.

    With D_k = G_k / n_k - g, R_k = Q / n_k + s_k^2 / n_k^2 I and h the intercept's column of H, all
    but D and the noise common to all sites (inverting each site's own curve would inflate their
    spread):

        u_k = (mean of w_t)_0 - (averaged state)_0 - h' R_k^-1 D_k / h' R_k^-1 h,   V_k = 1 / h' R_k^-1 h.

    Exact for a Gaussian head without clipping, of loss h (w - y)^2 / 2 and `score` 0, h, h: the
    states w_t cancel, so that no record is used twice. Returns u_k and their variances V_k, (K,).
    """
    (bias, slope, square), units = score, means.units[:, None]
    noise = (np.square(means.noise[:, None] / units)[:, :, None] + 1e-30) * np.eye(len(bias))
    weights = np.linalg.solve(square / units[:, :, None] + noise, slope[:, 0])
    # Where a chain has run away the score is flat, and nothing is said of any effect.
    variances = 1 / np.maximum(weights @ slope[:, 0], 1 / UNKNOWN)
    off = variances * (weights * (means.gradients / units - bias)).sum(axis=1)
    return means.states[:, 0] - means.states[:, 0].mean() - off, variances
