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
# Keep divisions from one by 0.
SMALLEST_SLOPE = 1e-6
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
class PooledRounds:
    """All sites' clipped scores per record, averaged over sites, of T rounds.

    Attributes:
        states: w_t, where they were taken, in log odds, shape (T, 1 + D).
        scores: Their means, shape (T, 1 + D).
        noises: Standard deviation of the error in each coordinate of a mean, of noise and of who
            happened to be a patient, shape (T,).
    """

    states: Floats
    scores: Floats
    noises: Floats

    @property
    def arrays(self) -> dict[str, npt.NDArray]:
        """What is stored, by name."""
        return {"states": self.states, "scores": self.scores, "noises": self.noises}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, npt.NDArray]) -> "PooledRounds":
        """Read back what was stored."""
        return cls(
            states=arrays["states"].astype(np.float64),
            scores=arrays["scores"].astype(np.float64),
            noises=arrays["noises"].astype(np.float64),
        )


def pooled_round(means: Means, rounds: int) -> PooledRounds:
    """Average the sites' scores per record of one round by how precisely each is known.

        om_k ~ 1 / (v / n_k + s_k^2 / (T n_k^2) + b^2),   sum of om_k = 1

    with v about the variance of a record's score, b that of hospitals' mean scores, and s_k / T^.5
    the noise that is left after all rounds. Only the precision of what is read from the mean hangs
    on these weights, no bias.

    Args:
        means: Of the one round, in log odds.
        rounds: T, how many rounds are read together.

    Returns:
        One round.
    """
    units = means.units
    sampling = SCORE_VARIANCE / units
    noise = np.square(means.noise / units)
    weights = 1 / (sampling + noise / rounds + np.square(SCORE_BETWEEN_HOSPITALS))
    weights = weights / weights.sum()
    return PooledRounds(
        states=means.states.mean(axis=0, keepdims=True),
        scores=(weights @ (means.gradients / units[:, None]))[None],
        noises=np.sqrt([(np.square(weights) * (sampling + noise)).sum()]),
    )


def with_round(rounds: Mapping[str, npt.NDArray], pooled: PooledRounds) -> dict[str, npt.NDArray]:
    """Append a round to a run's pooled rounds as they are stored.

    Args:
        rounds: Those before, as returned; empty before the first.
        pooled: The round.

    Returns:
        The arrays of all.
    """
    if not rounds:
        return pooled.arrays
    return {name: np.concatenate([rounds[name], added]) for name, added in pooled.arrays.items()}


class Effects(NamedTuple):
    """Estimates of hospitals' effects.

    Attributes:
        estimates: u_k, in log odds, shape (K,).
        variances: V_k, shape (K,).
    """

    estimates: Floats
    variances: Floats


@dataclass(frozen=True)
class ScoreCurve:
    """The intercept's coordinate of a record's clipped score, taken at its hospital's effect.

    Attributes:
        effects: u, rising, shape (G,).
        mean: M(u), shape (G,).
        slope: H(u), minus the mean's derivative in the effect alone, shape (G,).
        variance: Q(u), of a record's score, shape (G,).
    """

    effects: Floats
    mean: Floats
    slope: Floats
    variance: Floats


def site_effects(means: Means, curve: ScoreCurve) -> Effects:
    """Estimate sites' effects by one step of Newton's method from where their scores were taken.

        th_k = (mean of site k's w_t)_0 - (averaged state)_0
        u_k = th_k - (G_k / n_k - M(th_k)) / H(th_k)
        V_k = (Q(th_k) / n_k + s_k^2 / n_k^2) / H(th_k)^2

    Scores were taken where all hospitals said that a site is, and not at its own noisy sum:
    inverting each site's sum would put noisy sites too far apart. Exact for a Gaussian head without
    clipping, of loss h (w - y)^2 / 2, with M = 0, H = h and Q = h: the states w_t cancel, so that
    no record is used twice.

    Args:
        means: Of K sites.
        curve: Of the score around the averaged state.

    Returns:
        u_k and V_k.
    """
    units = means.units
    taken_at = means.states[:, 0] - means.states[:, 0].mean()
    mean = np.interp(taken_at, curve.effects, curve.mean)
    slope = np.interp(taken_at, curve.effects, curve.slope)
    variance = np.interp(taken_at, curve.effects, curve.variance)
    # Where a chain has run away the score is flat, and nothing is said of any effect.
    slope = np.maximum(slope, SMALLEST_SLOPE)
    score_off = means.gradients[:, 0] / units - mean
    noise = np.square(means.noise / units) + _SMALLEST_NOISE
    return Effects(
        estimates=taken_at - score_off / slope,
        variances=np.minimum((variance / units + noise) / np.square(slope), UNKNOWN),
    )
