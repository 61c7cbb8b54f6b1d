"""What each hospital's released states say of its clipped sums, and these of its effect.

    G_t = B [ (w_t - w_t') / a_t + (s/n) grad log p(w_t) ]

is the noisy sum of clipped gradients that a site's one step from the broadcast w_t to its state
w_t' took, exactly. Rounds after burn-in weigh as 1 / sigma_t^2. Post-processing costs no privacy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit

from fl_dpbayes.models import prior_gradient
from fl_dpbayes.posterior.hierarchical.distribution import Floats
from fl_dpbayes.schedules import PlannedChain

# The bank's names for the sums of all sites, and for the mean of all sites' sums in each round; no
# site can be called so.
HOSPITALS = "sums of hospitals"
POOLED_ROUNDS = "pooled sums of rounds"
FACTS = 4
# The variance of an estimate that says nothing: no log odds are as far apart as its root.
UNKNOWN = 1e4
# Beyond any state or sum that tells a level: what is added up over rounds then stays within
# float32's range.
LARGEST = 1e18
# Rough sizes of one coordinate of a record's score, and of its differences between hospitals.
SCORE_VARIANCE = 0.05
SCORE_BETWEEN_HOSPITALS = 0.02
# Keeps a division by a record's length, or by noise, from one by 0.
_SMALLEST_LENGTH = 1e-300
_SMALLEST_NOISE = 1e-30


def summed_round(chain: PlannedChain, step: int, broadcast: Floats, state: Floats) -> Floats:
    """Return what a round adds to its site's sums.

    omega_t = 1 / (sigma_t C)^2 is the round's weight.

    Args:
        chain: The site's plan.
        step: The round's number in the plan.
        broadcast: w_t, shape (d,).
        state: w_t', shape (d,). Both were float32, whose rounding is |w| 2^-24 B / a_t of G_t. A
            chain that has run away enters with values of at most LARGEST.

    Returns:
        n, 1, omega_t, (omega_t sigma_t C)^2, then omega_t G_t and omega_t w_t, shape (4 + 2 d,).
    """
    sd = float(chain.noise_multipliers[step]) * chain.plan.privacy.noise_unit
    weight = 1 / sd**2 if sd > 0 else 1.0
    prior_pull = prior_gradient(chain.plan.sampler.prior, torch.from_numpy(broadcast)).numpy()
    velocity = (broadcast - state) / chain.step_sizes[step]
    gradient = chain.scale.expected_batch_size * (
        velocity + chain.plan.prior_share / chain.units * prior_pull
    )
    values = weight * np.clip(np.concatenate([gradient, broadcast]), -LARGEST, LARGEST)
    return np.concatenate([(chain.units, 1, weight, (weight * sd) ** 2), values])


class Means(NamedTuple):
    """Weighted means over rounds, of K sites.

    Attributes:
        units: n_k, shape (K,).
        gradients: Of G_t, shape (K, d).
        states: Of w_t, shape (K, d).
        noise: Standard deviation of the noise in the first, shape (K,).
    """

    units: Floats
    gradients: Floats
    states: Floats
    noise: Floats


def site_means(rows: Mapping[str, npt.NDArray]) -> Means:
    """Divide the sums of one site or more by their weights.

    Args:
        rows: Site -> its rounds' sums as of `summed_round`, added up.

    Returns:
        The means, sites in alphabetical order.
    """
    table = np.stack([rows[site] for site in sorted(rows)])
    units, rounds, weights, squares = table[:, :FACTS].T
    gradients, states = np.split(table[:, FACTS:] / weights[:, None], 2, axis=1)
    return Means(
        units=units / rounds,
        gradients=gradients,
        states=states,
        noise=np.sqrt(squares) / weights,
    )


def log_odds_means(means: Means) -> Means:
    """Turn means of a softmax model of two classes into those of its log odds.

    The two rows of a record's gradient are opposite, so their half difference is the score of the
    log odds, clipped at C / sqrt(2), with noise of sigma C / sqrt(2).

    Args:
        means: Of flat parameters, weights (2, D) then biases (2).

    Returns:
        Means of shape (K, 1 + D), intercept first.
    """

    def contrast(values: Floats) -> Floats:
        width = (values.shape[1] - 2) // 2
        intercept = values[:, -1] - values[:, -2]
        slopes = values[:, width : 2 * width] - values[:, :width]
        return np.column_stack([intercept, slopes])

    return Means(
        units=means.units,
        gradients=contrast(means.gradients) / 2,
        states=contrast(means.states),
        noise=means.noise / np.sqrt(2),
    )


@dataclass(frozen=True)
class PooledRound:
    """All sites' clipped scores of one round, averaged.

    Attributes:
        state: w_t, where they were taken, in log odds, shape (1 + D,).
        score: Their mean per record, shape (1 + D,).
        noise: Standard deviation of the noise in each coordinate of it.
    """

    state: Floats
    score: Floats
    noise: float


def pooled_round(means: Means, rounds: int) -> PooledRound:
    """Average the sites' scores per record of one round by how precisely each is known.

        om_k ~ 1 / (v / n_k + s_k^2 / (T n_k^2) + b^2),   sum of om_k = 1

    with v about the variance of a record's score, b that of hospitals' mean scores, and s_k / T^.5
    the noise that is left after all rounds. Only the precision of what is read from the mean hangs
    on these weights, no bias.

    Args:
        means: Of the one round, in log odds.
        rounds: T, how many rounds are read together.

    Returns:
        The mean.
    """
    units = means.units
    noise = means.noise / units
    weights = 1 / (
        SCORE_VARIANCE / units + np.square(noise) / rounds + np.square(SCORE_BETWEEN_HOSPITALS)
    )
    weights = weights / weights.sum()
    return PooledRound(
        state=means.states.mean(axis=0),
        score=weights @ (means.gradients / units[:, None]),
        noise=float(np.sqrt(np.square(weights * noise).sum())),
    )


def with_round(rounds: Mapping[str, npt.NDArray], pooled: PooledRound) -> dict[str, Floats]:
    """Append a round to the pooled rounds of a run as they are stored.

    Args:
        rounds: Of those before, as returned; empty before the first.
        pooled: The round.

    Returns:
        `states` and `scores`, each of shape (T, 1 + D), and `noises`, of shape (T,).
    """
    added = {
        "states": pooled.state[None],
        "scores": pooled.score[None],
        "noises": np.array([pooled.noise]),
    }
    if not rounds:
        return added
    return {name: np.concatenate([rounds[name], values]) for name, values in added.items()}


class ClippedScore(NamedTuple):
    """Expectations of a clipped score, of d parameters.

    Attributes:
        bias: g, its mean where the state is right, shape (d,).
        slope: H, minus its derivative in the true log odds, shape (d, d).
        square: Q, its variance, shape (d, d).
    """

    bias: Floats
    slope: Floats
    square: Floats


def clipped_score(covariates: Floats, state: Floats, clip_norm: float) -> ClippedScore:
    """Average a clipped logistic score (p - y) x f over covariates at a state.

    With p = sigmoid(x'w), v = p (1 - p), f1 = min(1, C / ((1 - p) |x|)), f0 = min(1, C / (p |x|)):

        g = E[v (f0 - f1) x]
        H = E[v ((1 - p) f1 + p f0) x x']
        Q = E[v ((1 - p) f1^2 + p f0^2) x x']

    Args:
        covariates: x, the first column 1, shape (N, d).
        state: w, shape (d,).
        clip_norm: C > 0, infinite where nothing is clipped.

    Returns:
        g, H and Q.
    """
    p = expit(covariates @ state)
    length = np.linalg.norm(covariates, axis=1)
    f1 = np.minimum(1.0, clip_norm / np.maximum((1 - p) * length, _SMALLEST_LENGTH))
    f0 = np.minimum(1.0, clip_norm / np.maximum(p * length, _SMALLEST_LENGTH))
    v = p * (1 - p) / len(covariates)

    def outer(weights: Floats) -> Floats:
        return np.asarray((covariates * (v * weights)[:, None]).T @ covariates)

    return ClippedScore(
        bias=(v * (f0 - f1)) @ covariates,
        slope=outer((1 - p) * f1 + p * f0),
        square=outer((1 - p) * f1**2 + p * f0**2),
    )


class Effects(NamedTuple):
    """Estimates of hospitals' effects.

    Attributes:
        estimates: u_k, in log odds, shape (K,).
        variances: V_k, shape (K,).
    """

    estimates: Floats
    variances: Floats


def site_effects(means: Means, score: ClippedScore) -> Effects:
    """Estimate sites' effects on the first coordinate, the intercept.

    Generalised least squares on all coordinates. With D_k = G_k / n_k - g, R_k = Q / n_k + s_k^2 /
    n_k^2 I and h the intercept's column of H, all but D and the noise common to all sites
    (inverting each site's own curve would inflate their spread):

        u_k = (mean of w_t)_0 - (averaged state)_0 - h' R_k^-1 D_k / h' R_k^-1 h
        V_k = 1 / h' R_k^-1 h

    Exact for a Gaussian head without clipping, of loss h (w - y)^2 / 2 and `score` 0, h, h: the
    states w_t cancel, so that no record is used twice.

    Args:
        means: Of K sites.
        score: g, H and Q at the averaged state.

    Returns:
        u_k and V_k.
    """
    units = means.units[:, None]
    intercept_slope = score.slope[:, 0]
    noise_variance = np.square(means.noise[:, None] / units)[:, :, None] + _SMALLEST_NOISE
    noise = noise_variance * np.eye(len(score.bias))
    weights = np.linalg.solve(score.square / units[:, :, None] + noise, intercept_slope)
    # Where a chain has run away the score is flat, and nothing is said of any effect.
    variances = 1 / np.maximum(weights @ intercept_slope, 1 / UNKNOWN)
    off = variances * (weights * (means.gradients / units - score.bias)).sum(axis=1)
    estimates = means.states[:, 0] - means.states[:, 0].mean() - off
    return Effects(estimates, variances)
