"""From a site's mean clipped sum to a noisy estimate of its effect on the level: Gaussian and logistic heads.

The first coordinate is the intercept's. Estimates are relative to the averaged state, in its units.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.posterior.hierarchical.distribution import Floats
from fl_dpbayes.posterior.hierarchical.levels import Effects
from fl_dpbayes.posterior.hierarchical.sums import HospitalMeans

Groups = npt.NDArray[np.int64] | None


def gaussian_effects(means: HospitalMeans, precision: float, groups: Groups = None) -> Effects:
    """Return the effects of sites whose record has the loss h (w - y)^2 / 2, h = `precision`; exact without clipping.

    u_k = mean of w_t - G_t / (n h),  V_k = 1 / (n h) + sum omega^2 sigma^2 C^2 / (n h)^2. The states w_t cancel, so no
    record is used twice. d = 1.
    """
    scale = means.units * precision
    estimates = means.states[:, 0] - means.gradients[:, 0] / scale
    return Effects(estimates, 1 / scale + np.square(means.noise / scale), groups)


def clipped_score(covariates: Floats, state: Floats, clip_norm: float) -> tuple[Floats, Floats, Floats]:
    """Average a clipped logistic score (p - y) x f over covariates (N, d), whose first column is 1, at a state (d,).

    With p = sigmoid(x'w), v = p (1 - p), f1 = min(1, C / ((1 - p) |x|)), f0 = min(1, C / (p |x|)):

        g = E[v (f0 - f1) x],  H = E[v ((1 - p) f1 + p f0) x x'],  Q = E[v ((1 - p) f1^2 + p f0^2) x x']

    are its mean where the state is right, minus its derivative in the true log odds, and its variance. `clip_norm`:
    C > 0, infinite where nothing is clipped.
    """
    p, length = expit(covariates @ state), np.linalg.norm(covariates, axis=1)
    f1, f0 = (np.minimum(1.0, clip_norm / np.maximum(miss * length, 1e-300)) for miss in (1 - p, p))
    v = p * (1 - p) / len(covariates)
    slope, variance = ((1 - p) * f1**power + p * f0**power for power in (1, 2))
    outer = ((covariates * (v * weight)[:, None]).T @ covariates for weight in (slope, variance))
    return (v * (f0 - f1)) @ covariates, *outer


def logistic_effects(means: HospitalMeans, score: tuple[Floats, Floats, Floats], groups: Groups = None) -> Effects:
    """Return the effects of logistic sites by generalised least squares on all coordinates of the clipped score.

    With D_k = G_k / n_k - g, R_k = Q / n_k + s_k^2 / n_k^2 I and h the intercept's column of H, both common to all
    sites (inverting each site's own curve would inflate their spread):

        u_k = (mean of w_t)_0 - (averaged state)_0 - h' R_k^-1 D_k / h' R_k^-1 h,   V_k = 1 / h' R_k^-1 h.
    """
    (bias, slope, square), units = score, means.units[:, None]
    noise = np.square(means.noise[:, None] / units)[:, :, None] * np.eye(len(bias))
    weights = np.linalg.solve(square / units[:, :, None] + noise, slope[:, 0])
    variances = 1 / (weights @ slope[:, 0])
    off = variances * (weights * (means.gradients / units - bias)).sum(axis=1)
    return Effects(means.states[:, 0] - means.centre[0] - off, variances, groups)


def log_odds_means(means: HospitalMeans) -> HospitalMeans:
    """Turn means of a softmax model of two classes, its weights (2, D) then biases (2), into those of the log odds.

    The two rows of a record's gradient are opposite, so their half difference is the score of the log odds, clipped at
    C / sqrt(2), with noise of sigma C / sqrt(2). Intercept first: (K, 1 + D).
    """

    def contrast(values: Floats) -> Floats:
        width = (values.shape[1] - 2) // 2
        return np.column_stack([values[:, -1] - values[:, -2], values[:, width : 2 * width] - values[:, :width]])

    gradients, states = contrast(means.gradients) / 2, contrast(means.states)
    return replace(means, gradients=gradients, states=states, noise=means.noise / np.sqrt(2))
