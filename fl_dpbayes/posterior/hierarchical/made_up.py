"""Made-up patients in place of the training records, which are not public.

Their covariates are normal numbers of the declared geometry, stretched along the model's slopes:
independent covariates understate how widely real patients' log odds spread, and levels then come
out too small. How much, and how states go with the slopes, is read from pooled scores.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats
from fl_dpbayes.posterior.hierarchical.effects import PooledRounds, ScoreCurve

# The stretch is log-normal around 1 before anything is read, and lies within these bounds.
_STRETCH_SD = 0.5
_STRETCHES = np.geomspace(0.6, 3.2, 53)
# Effects, in log odds, at which the score is computed; between them it is interpolated.
LARGEST_EFFECT = 4.0
_EFFECTS = np.linspace(-LARGEST_EFFECT, LARGEST_EFFECT, 33)
_SMALLEST_LENGTH = 1e-300


@dataclass(frozen=True)
class ClippedParts:
    """A record's clipped score (p - y) x min(1, C / |(p - y) x|) divided by x, by its outcome.

    Attributes:
        without_event: A0 = min(p, C / |x|), shape (N, ...).
        with_event: A1 = min(1 - p, C / |x|), which enters with a minus, shape (N, ...).
    """

    without_event: Floats
    with_event: Floats

    def mean_score(self, probability: Floats) -> Floats:
        """Return the expected score, divided by x, where the event has this probability."""
        return (1 - probability) * self.without_event - probability * self.with_event


def stretched(covariates: Floats, state: Floats, stretch: float) -> Floats:
    """Stretch covariates along a model's slopes, at the same total variance.

        x(k) = k (x'e) e + sqrt((D - k^2) / (D - 1)) (x - (x'e) e),   e = slopes / |slopes|

    Args:
        covariates: x, the first column 1, shape (N, 1 + D).
        state: Intercept and slopes, shape (1 + D,).
        stretch: k > 0.

    Returns:
        The covariates, the first column 1, shape (N, 1 + D).
    """
    direction = _direction(state)
    features = covariates[:, 1:]
    dimensions = features.shape[1]
    along = np.outer(features @ direction, direction)
    across = np.sqrt(max(0.0, dimensions - stretch**2) / max(1, dimensions - 1))
    return np.column_stack([covariates[:, 0], stretch * along + across * (features - along)])


def clipped_parts(covariates: Floats, states: Floats, clip_norm: float) -> ClippedParts:
    """Return the parts of records' clipped scores at states.

    Args:
        covariates: x, shape (N, 1 + D).
        states: w, shape (T, 1 + D).
        clip_norm: C > 0 of the log odds' score, infinite where nothing is clipped.

    Returns:
        The parts, of shape (N, T).
    """
    probability = expit(covariates @ states.T)
    length = np.linalg.norm(covariates, axis=1, keepdims=True)
    bound = clip_norm / np.maximum(length, _SMALLEST_LENGTH)
    return ClippedParts(
        without_event=np.minimum(probability, bound),
        with_event=np.minimum(1 - probability, bound),
    )


def correlated_states(state: Floats, rounds: PooledRounds) -> Floats:
    """Give states the slope along the model's that correlated covariates give them.

    Of normal covariates x'w_t is rho_t x'w and an independent rest, rho_t = w_t'v / w'v with
    v = Sigma w. Made-up covariates have v along w. Of real ones the first round's mean score D_0,
    taken at the state 0, is along v by Stein's lemma. Its part a across the slopes' direction e has
    d = D - 1 coordinates with noise of variance s^2, and counts as James and Stein's estimate; its
    part along e, by which it is divided, as ridge regression's:

        rho_t |w| = w_t'e + max(0, 1 - d s^2 / |a|^2) (w_t'a) (e'D_0) / ((e'D_0)^2 + s^2)

    Args:
        state: The averaged state w, intercept and slopes, shape (1 + D,).
        rounds: All rounds' pooled scores, burn-in included.

    Returns:
        w_t with rho_t |w| along e in place of w_t'e, shape (T, 1 + D).
    """
    direction = _direction(state)
    variance = np.square(rounds.noises[0]) + _SMALLEST_LENGTH
    first_score = rounds.scores[0, 1:]
    along = first_score @ direction
    across = first_score - along * direction
    noise_across = (len(direction) - 1) * variance
    share = max(0.0, 1 - noise_across / max(float(across @ across), noise_across, _SMALLEST_LENGTH))
    slopes = rounds.states[:, 1:]
    moved = share * (slopes @ across) * along / (np.square(along) + variance)
    return np.column_stack([rounds.states[:, 0], slopes + np.outer(moved, direction)])


def stretch_distribution(
    covariates: Floats, state: Floats, rounds: PooledRounds, clip_norm: float
) -> Distribution:
    """Read from the pooled scores how widely the model's log odds spread.

    Along the slopes' direction e the mean score of round t is, up to an offset b,

        e'D_t = b + M_t(k) + N(0, s_t^2),   M_t(k) = E[((1 - pi) A0_t - pi A1_t) x(k)'e]

    with pi the averaged state's probability: as w_t moves, M_t tells how widely x'e spreads.

    Args:
        covariates: Of the declared geometry, shape (N, 1 + D).
        state: The averaged state, shape (1 + D,).
        rounds: All rounds' pooled scores, burn-in included.
        clip_norm: C > 0 of the log odds' score, infinite where nothing is clipped.

    Returns:
        The posterior of k.
    """
    direction = _direction(state)
    scores = rounds.scores[:, 1:] @ direction
    states = correlated_states(state, rounds)
    weights = 1 / np.square(rounds.noises)
    log_likelihoods = []
    for stretch in _STRETCHES:
        patients = stretched(covariates, state, stretch)
        parts = clipped_parts(patients, states, clip_norm)
        probability = expit(patients @ state)[:, None]
        along = (patients[:, 1:] @ direction)[:, None]
        off = scores - (parts.mean_score(probability) * along).mean(axis=0)
        off = off - np.average(off, weights=weights)
        log_likelihoods.append(-(weights * np.square(off)).sum() / 2)
    prior = np.exp(-np.square(np.log(_STRETCHES) / _STRETCH_SD) / 2)
    return Distribution(_STRETCHES, prior / prior.sum()).given(np.array(log_likelihoods))


def score_curve(covariates: Floats, state: Floats, states: Floats, clip_norm: float) -> ScoreCurve:
    """Return the intercept's coordinate of the clipped score, taken at a hospital's effect u.

        P_u = sigmoid(x'w + u)
        M(u) = E[(1 - P_u) A0 - P_u A1]
        H(u) = E[P_u (1 - P_u) (A0 + A1)]
        Q(u) = E[(1 - P_u) A0^2 + P_u A1^2] - M(u)^2

    with A0 and A1 averaged over the states at which scores were taken, their intercepts moved by u.

    Args:
        covariates: x, shape (N, 1 + D).
        state: The averaged state w, shape (1 + D,).
        states: Those after burn-in, shape (T, 1 + D).
        clip_norm: C > 0 of the log odds' score, infinite where nothing is clipped.

    Returns:
        The curve.
    """
    mean = []
    slope = []
    variance = []
    for effect in _EFFECTS:
        moved = np.append(effect, np.zeros(len(state) - 1))
        parts = clipped_parts(covariates, states + moved, clip_norm)
        without_event = parts.without_event.mean(axis=1)
        with_event = parts.with_event.mean(axis=1)
        probability = expit(covariates @ (state + moved))
        score = (1 - probability) * without_event - probability * with_event
        square = (1 - probability) * np.square(without_event) + probability * np.square(with_event)
        mean.append(score.mean())
        slope.append((probability * (1 - probability) * (without_event + with_event)).mean())
        variance.append(square.mean() - np.square(score.mean()))
    return ScoreCurve(
        effects=_EFFECTS,
        mean=np.array(mean),
        slope=np.array(slope),
        variance=np.array(variance),
    )


def _direction(state: Floats) -> Floats:
    slopes = state[1:]
    return slopes / max(float(np.linalg.norm(slopes)), _SMALLEST_LENGTH)
