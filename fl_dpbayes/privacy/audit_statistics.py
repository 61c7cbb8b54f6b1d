"""The statistical tests of an audit, and its verdicts: what was found, what is allowed, which fault would be missed.

Each test gives a probability that holds for a sound site. All are exact or conservative for
Gaussian noise; what counts of joining units add is matched by mean and variance. The derivations
stand in docs/audit.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, ndtri
from scipy.stats import beta, binom, chi2, norm

from fl_dpbayes.privacy.gdp import gdp_epsilon

Array = npt.NDArray[np.float64]

# A fault of the stated size is missed with at most this chance.
MISS = 1e-3
TAIL = 4.0


# The smallest fault that a test finds: its size, to compare tests of one kind, and in words.
Effect = tuple[float, str]


@dataclass(frozen=True)
class Finding:
    """One test: how probable as much is at a sound site; where.

    And level -> the effect that `MISS` at most miss.
    """

    probability: float
    where: str
    effect: Callable[[float], Effect]


def variance_test(
    total: float, degrees: float, where: str, *, kurtosis: float = 0.0, slack: float = 0.0
) -> Finding:
    """Test that a sum of squares has the variance that was claimed, two-sided.

        X = sum z^2 ~ c chi^2_nu,   c = (2 + k) / 2,   nu = degrees / c

    exact for Gaussian z (k = 0); for z of mean excess kurtosis k the law with the same mean and
    variance. `degrees`: number of squares, above zero. Its effect is the largest ratio of standard
    deviations below 1 that is found, sqrt(q(level / 2) / q(1 - MISS)), q the quantiles of chi^2_nu.
    """
    scale = 1 + kurtosis / 2
    nu = degrees / scale
    below, above = (
        chi2.cdf(total / (1 - slack) / scale, nu),
        chi2.sf(total / (1 + slack) / scale, nu),
    )

    def effect(level: float) -> Effect:
        ratio = math.sqrt((1 - slack) * chi2.ppf(level / 2, nu) / chi2.isf(MISS, nu))
        return (
            1 - ratio if degrees else 1.0,
            f"a deviation of {min(ratio, 1):.2g} times the claim or less",
        )

    probability = min(1.0, 2 * float(min(below, above)))
    return Finding(
        probability, f"{where}, {math.sqrt(max(total, 0) / degrees):.3g} times the claim", effect
    )


def count_kurtosis(count: float, rate: float) -> float:
    """Return the excess kurtosis of a binomial count, times 4, as `variance_test` needs it at a small level.

    The law that is matched by mean and variance has thinner tails than sums of squared counts: with
    the excess itself they alarm up to 40 times as often as promised at a level of 1e-6, with four
    times as much less than twice. It is 4 max(0, 1 - 6 q (1 - q)) / (n q (1 - q)) for n units that
    join at rate q.
    """
    return TAIL * max(0.0, 1 - 6 * rate * (1 - rate)) / (count * rate * (1 - rate))


def mean_test(
    difference: float,
    deviation: float,
    where: str,
    *,
    unit: float,
    slack: float = 0.0,
    one_sided: bool = False,
) -> Finding:
    """Test that a mean is what it should be.

        p = 2 P(N(0, 1) > (|difference| - slack) / deviation);   one-sided P(N(0, 1) > (difference - slack) / deviation)

    `deviation`: its standard deviation at a sound site. It finds a difference of (z(level) +
    z(MISS)) deviation + 2 slack.
    """
    sides = 1 if one_sided else 2
    size = difference if one_sided else abs(difference)
    probability = min(1.0, sides * float(norm.sf((size - slack) / deviation)))

    def effect(level: float) -> Effect:
        found = ((norm.isf(level / sides) + norm.isf(MISS)) * deviation + 2 * slack) / unit
        return found, f"a difference of {found:.1%} or more"

    return Finding(
        probability, f"{where}, {difference / unit:+.3g} of what is expected away", effect
    )


def correlation_tests(vectors: Mapping[str, Array]) -> list[Finding]:
    """Test that no two vectors of noise have anything in common.

        r^2 = <z, z'>^2 / (|z|^2 |z'|^2) ~ Beta(1/2, (d - 1) / 2)

    `vectors`: label -> noise (d,), d >= 2; those without any are left to the test of the variance.
    It finds a correlation of r(level) + z(MISS) / sqrt(d), at most 1: a repetition is always found.
    """
    labels = [label for label, vector in vectors.items() if vector.any()]
    if not labels or len(vectors[labels[0]]) < 2:
        return []
    rows = np.stack([vectors[label] / np.linalg.norm(vectors[label]) for label in labels])
    size, cosines = rows.shape[1], rows @ rows.T

    def effect(level: float) -> Effect:
        found = math.sqrt(1 - betaincinv((size - 1) / 2, 0.5, level)) + float(
            norm.isf(MISS)
        ) / math.sqrt(size)
        return found, f"a correlation of {found:.2g} or more" if found < 1 else "a repetition"

    def finding(i: int, j: int) -> Finding:
        probability = float(betainc((size - 1) / 2, 0.5, max(0.0, 1 - cosines[i, j] ** 2)))
        return Finding(probability, f"{labels[i]} and {labels[j]}, {cosines[i, j]:+.3g}", effect)

    return [finding(i, j) for i, j in combinations(range(len(labels)), 2)]


@dataclass(frozen=True)
class Check:
    """One verdict of an audit: the part of the mechanism that was attacked, and what was checked, in words.

    `value`: the probability or bound that was found, `where` if it is the worst of several.
    `finds`: which fault it misses at most once in a thousand audits.
    """

    part: str
    what: str
    value: float
    limit: float
    relation: Literal["at most", "at least"]
    where: str = ""
    finds: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value is allowed; a value that is not a number never is."""
        return self.value <= self.limit if self.relation == "at most" else self.value >= self.limit


# What several tests of one kind decide together, in words, and the tests.
Questions = dict[str, list[Finding]]


def verdicts(part: str, questions: Questions, false_alarm: float) -> list[Check]:
    """Decide questions so that a sound site fails any with at most `false_alarm`, shared out evenly (Bonferroni)."""
    asked, checks = {what: findings for what, findings in questions.items() if findings}, []
    for what, findings in asked.items():
        level = false_alarm / len(asked) / len(findings)
        worst = min(findings, key=lambda finding: finding.probability)
        weakest = max((finding.effect(level) for finding in findings), key=lambda effect: effect[0])
        where = f"worst of {len(findings)}: {worst.where}" if len(findings) > 1 else worst.where
        checks.append(Check(part, what, worst.probability, level, "at least", where, weakest[1]))
    return checks


def log_likelihood_ratios(
    projections: Array, *, signal: float, noise_std: Array, sampling_rate: float
) -> Array:
    """Score canaries by the log-likelihood ratio of "was put in" against "was left out".

        LLR_i = sum_t log(1 - q + q exp((2 u_ti s - s^2) / (2 nu_t^2)))

    where u_ti ~ N(0, nu_t^2) if canary i was left out of the sum of step t, and N(s, nu_t^2) if it
    is in it.

    `projections`: u_ti, (T, m), the noisy sum of each step along each canary's own direction.
    `signal`: s > 0, length of a canary's clipped gradient along it. `noise_std`: nu_t = sigma_t C,
    (T,), as claimed. `sampling_rate`: q in (0, 1]. Returns scores (m,); by the lemma of Neyman and
    Pearson no other separates better.
    """
    exponents = (2 * projections * signal - signal**2) / (2 * np.square(noise_std)[:, None])
    absent = math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf
    return np.logaddexp(absent, math.log(sampling_rate) + exponents).sum(axis=0)


def gaussian_epsilon_bound(
    scores: Array,
    included: npt.NDArray[np.bool_],
    *,
    threshold: float,
    delta: float,
    confidence: float,
) -> float:
    """Bound epsilon from below by the error rates of one threshold test, read on a Gaussian trade-off curve.

        mu >= Phi^{-1}(1 - FPR_high) - Phi^{-1}(FNR_high)

    with Clopper-Pearson upper limits of both error rates, each at (1 + confidence) / 2. Certified
    where the mechanism's trade-off curve is Gaussian (sampling rate 1) and the canaries do not
    touch each other; elsewhere a detector of faults: it extends the curve of one point to small
    delta as if it were Gaussian. Source: Nasr et al. (2023), Tight auditing of differentially
    private machine learning, section 4.

    `scores`: one per canary, (m,), higher where it seems to be in. `included`: which canaries were
    in, (m,). Returns a value that the true epsilon exceeds with the stated confidence; 0 where the
    test is no better than chance.
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
    """Bound epsilon from below by how many of the boldest guesses of one run are right.

    Valid for any mechanism.

    The `guesses / 2` highest scores are guessed to be in, as many lowest to be out, v of them
    rightly. Under (epsilon, delta) the chance of v or more is at most

        P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i,   W ~ Binomial(guesses, 1 / (1 + e^-epsilon))

    Source: Steinke, Nasr and Jagielski (2023), Privacy auditing with one (1) training run, theorem
    3.1 and appendix D.

    `scores`, `included`, result: as of `gaussian_epsilon_bound`, each canary in by a fair coin of
    its own. `guesses`: r, chosen before the scores were seen, even, at most m.
    """
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    right = int(included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum())

    def is_rejected(epsilon: float) -> bool:
        return (
            _chance_of_right_guesses(right, 2 * half, len(scores), epsilon, delta) < 1 - confidence
        )

    low, high = 0.0, 20.0 if is_rejected(0.0) else 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low


def _upper_limit(errors: int, trials: int, tail: float) -> float:
    return float(beta.isf(tail, errors + 1, trials - errors)) if errors < trials else 1.0


def _chance_of_right_guesses(
    right: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    accuracy = 1 / (1 + math.exp(-epsilon))
    exceeded = float(binom.sf(right - 1, guesses, accuracy))
    if right == 0:
        return exceeded
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, accuracy))
    return min(
        1.0, exceeded + 2 * canaries * delta * float((below / np.arange(1, right + 1)).max())
    )
