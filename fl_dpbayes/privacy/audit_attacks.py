"""What attacks say of a release: lower bounds on epsilon from canaries, and how well the loss betrays membership.

Canaries are records that were put in or left out by a coin; who was trained on has, on average, the smaller loss.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import beta, binom
from sklearn.metrics import roc_auc_score, roc_curve

from fl_dpbayes.privacy.gdp import gdp_epsilon

Array = npt.NDArray[np.float64]


def log_likelihood_ratios(projections: Array, *, signal: float, noise_std: Array, sampling_rate: float) -> Array:
    """Score canaries by the log-likelihood ratio of "was put in" against "was left out".

        LLR_i = sum_t log(1 - q + q exp((2 u_ti s - s^2) / (2 nu_t^2)))

    where u_ti ~ N(0, nu_t^2) if canary i was left out of the sum of step t, and N(s, nu_t^2) if it is in it.

    `projections`: u_ti, the noisy sum of each step along each canary's own direction, shape (T, m). `signal`: s >
    0, length of a canary's clipped gradient along its direction. `noise_std`: nu_t = sigma_t C, the claimed
    standard deviation, shape (T,), above zero. `sampling_rate`: q in (0, 1]. Returns scores, shape (m,); by the
    lemma of Neyman and Pearson no other score separates better.
    """
    exponents = (2 * projections * signal - signal**2) / (2 * np.square(noise_std)[:, None])
    absent = math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf
    return np.logaddexp(absent, math.log(sampling_rate) + exponents).sum(axis=0)


def gaussian_epsilon_bound(
    scores: Array, included: npt.NDArray[np.bool_], *, threshold: float, delta: float, confidence: float
) -> float:
    """Bound epsilon from below by the error rates of one threshold test, read on a Gaussian trade-off curve.

        mu >= Phi^{-1}(1 - FPR_high) - Phi^{-1}(FNR_high)

    with Clopper-Pearson upper limits of both error rates, each at (1 + confidence) / 2. Certified where the mechanism's
    trade-off curve is Gaussian (sampling rate 1) and the canaries do not touch each other; elsewhere a detector of
    faults: it extends the curve of one point to small delta as if it were Gaussian.

    Source:
        Nasr et al. (2023), Tight auditing of differentially private machine learning, section 4.

    `scores`: one per canary, higher where it seems to be in, shape (m,). `included`: which canaries were in, shape
    (m,). `delta`: in (0, 1). `confidence`: in (0, 1). Returns a value that the true epsilon exceeds with the stated
    confidence; 0 where the test is no better than chance.
    """
    guessed = scores > threshold
    tail = (1 - confidence) / 2
    false_positive = _upper_limit(int((guessed & ~included).sum()), int((~included).sum()), tail)
    false_negative = _upper_limit(int((~guessed & included).sum()), int(included.sum()), tail)
    mu = float(ndtri(1 - false_positive) - ndtri(false_negative))
    return gdp_epsilon(mu, delta) if mu > 0 else 0.0


def one_run_epsilon_bound(
    scores: Array, included: npt.NDArray[np.bool_], *, guesses: int, delta: float, confidence: float
) -> float:
    """Bound epsilon from below by how many of the boldest guesses of one run are right; valid for any mechanism.

    The `guesses / 2` highest scores are guessed to be in, as many lowest to be out, v of them rightly. Under (epsilon,
    delta) the chance of v or more is at most

        P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i,   W ~ Binomial(guesses, 1 / (1 + e^-epsilon))

    Source:
        Steinke, Nasr and Jagielski (2023), Privacy auditing with one (1) training run, theorem 3.1 and appendix D.

    `scores`: one per canary, shape (m,). `included`: which canaries were in, each by a fair coin of its own, shape
    (m,). `guesses`: r, chosen before the scores were seen, even, at most m. `delta`: in (0, 1). `confidence`: in
    (0, 1). Returns a value that the true epsilon exceeds with the stated confidence, 0 or more.
    """
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    right = int(included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum())

    def is_rejected(epsilon: float) -> bool:
        return _chance_of_right_guesses(right, 2 * half, len(scores), epsilon, delta) < 1 - confidence

    low, high = 0.0, 20.0
    if not is_rejected(low):
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low


def _upper_limit(errors: int, trials: int, tail: float) -> float:
    return float(beta.isf(tail, errors + 1, trials - errors)) if errors < trials else 1.0


def _chance_of_right_guesses(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    accuracy = 1 / (1 + math.exp(-epsilon))
    exceeded = float(binom.sf(right - 1, guesses, accuracy))
    if right == 0:
        return exceeded
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, accuracy))
    return min(1.0, exceeded + 2 * canaries * delta * float((below / np.arange(1, right + 1)).max()))


@dataclass(frozen=True)
class MembershipScore:
    """How well the loss tells members, units that were trained on, from others.

    `area`: probability that a member's loss lies below another's; 0.5 is chance. `advantage`: largest true-positive
    minus false-positive rate over all thresholds, in [0, 1]; chosen on the same losses, so biased upwards.
    `advantage_bound`: the largest that the claimed epsilon and delta allow.
    """

    members: int
    others: int
    area: float
    area_standard_error: float
    advantage: float
    advantage_bound: float


def loss_threshold_attack(
    member_losses: Array, other_losses: Array, *, epsilon: float, delta: float
) -> MembershipScore:
    """Score the attack "a unit was trained on if its loss lies below a threshold".

    Under (epsilon, delta) no attack has more advantage than (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).

    There is at least one unit of each kind, all of one population. The claimed epsilon may be infinite.

    Source:
        Yeom et al. (2018) for the attack; Kairouz, Oh and Viswanath (2015), theorem 2.1, for the bound; Hanley and
        McNeil (1982) for the standard error.
    """
    members, others = len(member_losses), len(other_losses)
    labels = np.concatenate([np.ones(members), np.zeros(others)])
    scores = -np.concatenate([member_losses, other_losses])
    false_positive, true_positive, _ = roc_curve(labels, scores)
    area = float(roc_auc_score(labels, scores))
    return MembershipScore(
        members=members,
        others=others,
        area=area,
        area_standard_error=_standard_error(area, members, others),
        advantage=float((true_positive - false_positive).max()),
        advantage_bound=min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0)))),
    )


def _standard_error(area: float, members: int, others: int) -> float:
    pair = area / (2 - area) - area**2
    mirrored = 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (members - 1) * pair + (others - 1) * mirrored
    return math.sqrt(max(0.0, variance) / (members * others))
