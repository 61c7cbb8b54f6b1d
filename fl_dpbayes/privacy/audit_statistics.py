"""The statistical tests of an audit, and its verdicts.

Each test gives a probability that holds for a sound site, and says which fault it would miss. All
are exact or conservative for Gaussian noise; what counts of joining units add is matched by mean
and variance. docs/proofs/audit.md has the derivations.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, ndtri
from scipy.stats import beta, binom, chi2, norm

from fl_dpbayes.privacy.gdp import gdp_epsilon

Array = npt.NDArray[np.float64]

# A fault of the stated size is missed with at most this chance.
MISS = 1e-3
TAIL = 4.0


class Effect(NamedTuple):
    """The smallest fault that a test finds: its size, to compare like tests, and in words."""

    size: float
    words: str


@dataclass(frozen=True)
class Finding:
    """The result of one test.

    Attributes:
        probability: How probable as much is at a sound site.
        where: Where it was found, in words.
        effect: Gives, for a level, the effect that the test misses with a chance of `MISS` at most.
    """

    probability: float
    where: str
    effect: Callable[[float], Effect]


@dataclass(frozen=True)
class Check:
    """One verdict of an audit.

    Attributes:
        part: Of the mechanism, which was attacked.
        what: What was checked, in words.
        value: The probability or bound that came out.
        limit: Of what is allowed.
        relation: Of value to limit, where the check passes.
        where: Which test it is, if it is the worst of several.
        finds: Which fault it misses at most once in a thousand audits.
    """

    part: str
    what: str
    value: float
    limit: float
    relation: Literal["at most", "at least"] = "at most"
    where: str = ""
    finds: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value is allowed; a value that is not a number never is."""
        return self.value <= self.limit if self.relation == "at most" else self.value >= self.limit


# What several tests of one kind decide together, in words, and the tests.
Questions = dict[str, list[Finding]]


def worst(
    probabilities: Array, where: Callable[[int], str], effect: Callable[[float], Effect]
) -> Finding:
    """Join m tests of one kind into one (Bonferroni): p = min(1, m min p_i).

    They need not be independent.

    Args:
        probabilities: p_i, shape (m,).
        where: Gives the place of a test by its number, in words.
        effect: Gives the effect of one test by its level.

    Returns:
        The joint finding.
    """
    count = len(probabilities)
    least = int(np.argmin(probabilities))
    return Finding(
        probability=min(1.0, count * float(probabilities[least])),
        where=where(least),
        effect=lambda level: effect(level / count),
    )


def two_sided(below: Array, above: Array) -> Array:
    """Return p = min(1, 2 min(P(X <= x), P(X >= x))).

    Args:
        below: Probabilities of as little.
        above: Probabilities of as much.

    Returns:
        Of the same shape.
    """
    return np.minimum(1.0, 2 * np.minimum(below, above))


def deviation_tests(
    squares: Array,
    degrees: float,
    where: Callable[[int], str],
    *,
    kurtosis: float = 0.0,
    slack: float = 0.0,
) -> Finding:
    """Test that sums of squares have the variance that was claimed, two-sided.

        X = sum z^2 ~ c chi^2_nu,   c = (2 + k) / 2,   nu = degrees / c

    It is exact for Gaussian z (k = 0); for z of mean excess kurtosis k it is the law with the same
    mean and variance. Its effect is the largest ratio of standard deviations below 1 that is found,
    sqrt(q(level / 2) / q(1 - MISS)), q the quantiles of chi^2_nu.

    Args:
        squares: X of each test, of z with unit variance as claimed.
        degrees: Number of squares in each, above zero.
        where: Gives the place of a sum by its number, in words.
        kurtosis: k.
        slack: Relative amount by which the variance may be off.

    Returns:
        The joint finding.
    """
    scale = 1 + kurtosis / 2
    nu = degrees / scale
    below = chi2.cdf(squares / (1 - slack) / scale, nu)
    above = chi2.sf(squares / (1 + slack) / scale, nu)

    def effect(level: float) -> Effect:
        ratio = math.sqrt((1 - slack) * chi2.ppf(level / 2, nu) / chi2.isf(MISS, nu))
        words = f"a deviation of {min(ratio, 1):.2g} times the claim or less"
        return Effect(size=1 - ratio, words=words)

    return worst(two_sided(below, above), where, effect)


def variance_test(
    total: float, degrees: float, where: str, *, kurtosis: float = 0.0, slack: float = 0.0
) -> Finding:
    """Test a single sum of squares as `deviation_tests` does.

    Args:
        total: X.
        degrees: Number of squares, above zero.
        where: What the numbers are, in words.
        kurtosis: As there.
        slack: As there.

    Returns:
        The finding.
    """
    place = f"{where}, {math.sqrt(max(total, 0) / degrees):.3g} times the claim"
    return deviation_tests(
        np.array([total]), degrees, lambda _: place, kurtosis=kurtosis, slack=slack
    )


def count_kurtosis(count: float, rate: float) -> float:
    """Return the excess kurtosis of a binomial count, times 4, for `variance_test`.

        4 max(0, 1 - 6 q (1 - q)) / (n q (1 - q))

    The law that is matched by mean and variance has thinner tails than sums of squared counts: with
    the excess itself they alarm up to 40 times as often as promised at a level of 1e-6, with four
    times as much less than twice.

    Args:
        count: n units.
        rate: q, at which each joins.

    Returns:
        A kurtosis >= 0.
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

        two-sided   p = 2 P(N(0, 1) > (|difference| - slack) / deviation)
        one-sided   p = P(N(0, 1) > (difference - slack) / deviation)

    It finds a difference of (z(level) + z(MISS)) deviation + 2 slack.

    Args:
        difference: Of the mean from what it should be.
        deviation: The mean's standard deviation at a sound site.
        where: What the numbers are, in words.
        unit: In which differences are told.
        slack: By which the mean may be off.
        one_sided: Whether only too large a mean is a fault.

    Returns:
        The finding.
    """
    sides = 1 if one_sided else 2
    size = difference if one_sided else abs(difference)

    def effect(level: float) -> Effect:
        least = ((norm.isf(level / sides) + norm.isf(MISS)) * deviation + 2 * slack) / unit
        return Effect(size=least, words=f"a difference of {least:.1%} or more")

    return Finding(
        probability=min(1.0, sides * float(norm.sf((size - slack) / deviation))),
        where=f"{where}, {difference / unit:+.3g} of what is expected away",
        effect=effect,
    )


def correlation_probability(cosines: Array, sizes: Array | int) -> Array:
    """Return how probable correlations are for independent Gaussian noise.

        r^2 = <z, z'>^2 / (|z|^2 |z'|^2) ~ Beta(1/2, (n - 1) / 2)

    Args:
        cosines: r, of any shape.
        sizes: n of the vectors (n,), n >= 2.

    Returns:
        Probabilities of as large a correlation, of the same shape.
    """
    probabilities: Array = betainc((sizes - 1) / 2, 0.5, np.maximum(0.0, 1 - np.square(cosines)))
    return probabilities


def cosines_of(vectors: Array) -> Array:
    """Return the cosines of every two vectors.

    Args:
        vectors: None of them zero, shape (m, n).

    Returns:
        Shape (m, m).
    """
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return rows @ rows.T


def correlation_tests(vectors: Mapping[str, Array]) -> list[Finding]:
    """Test that no two vectors of noise have anything in common.

    It finds a correlation of r(level) + z(MISS) / sqrt(d), at most 1: a repetition is always found.

    Args:
        vectors: Noise of shape (d,), d >= 2, by its label; vectors of zeros are left to the test of
            the variance.

    Returns:
        A finding for each pair.
    """
    labels = [label for label, vector in vectors.items() if vector.any()]
    if not labels or len(vectors[labels[0]]) < 2:
        return []
    cosines = cosines_of(np.stack([vectors[label] for label in labels]))
    size = len(vectors[labels[0]])
    probabilities = correlation_probability(cosines, size)
    return [
        Finding(
            probability=float(probabilities[i, j]),
            where=f"{labels[i]} and {labels[j]}, {cosines[i, j]:+.3g}",
            effect=lambda level: correlation_effect(level, size),
        )
        for i, j in combinations(range(len(labels)), 2)
    ]


def correlation_effect(level: float, size: int) -> Effect:
    """Return the correlation of two vectors that a test misses with a chance of `MISS` at most.

    Args:
        level: Of the test.
        size: Of the vectors.

    Returns:
        The correlation, and its words.
    """
    at_level = math.sqrt(1 - betaincinv((size - 1) / 2, 0.5, level))
    least = at_level + float(norm.isf(MISS)) / math.sqrt(size)
    words = f"a correlation of {least:.2g} or more" if least < 1 else "a repetition"
    return Effect(size=least, words=words)


def verdicts(part: str, questions: Questions, false_alarm: float) -> list[Check]:
    """Decide questions so that a sound site fails any with at most `false_alarm`.

    The chance is shared out evenly (Bonferroni).

    Args:
        part: Of the mechanism.
        questions: Tests by what they decide; those without a test are left out.
        false_alarm: In (0, 1).

    Returns:
        A check for each question.
    """
    answerable = {what: findings for what, findings in questions.items() if findings}
    checks = []
    for what, findings in answerable.items():
        level = false_alarm / len(answerable) / len(findings)
        worst = min(findings, key=lambda finding: finding.probability)
        effects = [finding.effect(level) for finding in findings]
        weakest = max(effects, key=lambda effect: effect.size)
        check = Check(
            part=part,
            what=what,
            value=worst.probability,
            limit=level,
            relation="at least",
            where=f"worst of {len(findings)}: {worst.where}" if len(findings) > 1 else worst.where,
            finds=weakest.words,
        )
        checks.append(check)
    return checks


def log_likelihood_ratios(
    projections: Array, *, signal: float, noise_std: Array, sampling_rate: float
) -> Array:
    """Score canaries by the log-likelihood ratio of "was put in" against "was left out".

        LLR_i = sum_t log(1 - q + q exp((2 u_ti s - s^2) / (2 nu_t^2)))

    where u_ti ~ N(0, nu_t^2) if canary i was left out of the sum of step t, and N(s, nu_t^2) if it
    is in it. By the lemma of Neyman and Pearson no other score separates better.

    Args:
        projections: u_ti, the noisy sum of each step along each canary's own direction, shape
            (T, m).
        signal: s > 0, length of a canary's clipped gradient along it.
        noise_std: nu_t = sigma_t C as claimed, shape (T,).
        sampling_rate: q in (0, 1].

    Returns:
        Scores, shape (m,).
    """
    exponents = (2 * projections * signal - signal**2) / (2 * np.square(noise_std)[:, None])
    log_absent = math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf
    return np.logaddexp(log_absent, math.log(sampling_rate) + exponents).sum(axis=0)


def gaussian_epsilon_bound(
    scores: Array,
    included: npt.NDArray[np.bool_],
    *,
    threshold: float,
    delta: float,
    confidence: float,
) -> float:
    """Bound epsilon from below by one threshold test, read on a Gaussian trade-off curve.

        mu >= Phi^{-1}(1 - FPR_high) - Phi^{-1}(FNR_high)

    with Clopper-Pearson upper limits of both error rates, each at (1 + confidence) / 2. Certified
    where the mechanism's trade-off curve is Gaussian (sampling rate 1) and the canaries do not
    touch each other; elsewhere a detector of faults: it extends the curve of one point to small
    delta as if it were Gaussian.

    Args:
        scores: One for each canary, higher where it seems to be in, shape (m,).
        included: Which canaries were in, shape (m,).
        threshold: Scores above it are taken for "in".
        delta: In (0, 1).
        confidence: In (0, 1).

    Returns:
        A value that the true epsilon exceeds with the stated confidence; 0 where the test is no
        better than chance.

    Source:
        Nasr et al. (2023), Tight auditing of differentially private machine learning, section 4.
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

    It is valid for any mechanism. The `guesses / 2` highest scores are guessed to be in, as many
    lowest to be out, v of them rightly. Under (epsilon, delta) the chance of v or more is at most

        P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i
        W ~ Binomial(guesses, 1 / (1 + e^-epsilon))

    Args:
        scores: One for each canary, higher where it seems to be in, shape (m,).
        included: Which canaries were in, each by a fair coin of its own, shape (m,).
        guesses: Chosen before the scores were seen, even, at most m.
        delta: In (0, 1).
        confidence: In (0, 1).

    Returns:
        A value that the true epsilon exceeds with the stated confidence; 0 where the guesses are no
        better than chance.

    Source:
        Steinke, Nasr and Jagielski (2023), Privacy auditing with one (1) training run, theorem 3.1
        and appendix D.
    """
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    guessed_in = included[order[len(order) - half :]]
    guessed_out = included[order[:half]]
    right = int(guessed_in.sum() + (~guessed_out).sum())

    def is_rejected(epsilon: float) -> bool:
        chance = _chance_of_right_guesses(
            right, guesses=2 * half, canaries=len(scores), epsilon=epsilon, delta=delta
        )
        return chance < 1 - confidence

    if not is_rejected(0.0):
        return 0.0
    low = 0.0
    high = 20.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if is_rejected(middle):
            low = middle
        else:
            high = middle
    return low


def _upper_limit(errors: int, trials: int, tail: float) -> float:
    """Return the Clopper-Pearson upper limit of an error rate."""
    return float(beta.isf(tail, errors + 1, trials - errors)) if errors < trials else 1.0


def _chance_of_right_guesses(
    right: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    accuracy = 1 / (1 + math.exp(-epsilon))
    exceeded = float(binom.sf(right - 1, guesses, accuracy))
    if right == 0:
        return exceeded
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, accuracy))
    largest = float((below / np.arange(1, right + 1)).max())
    return min(1.0, exceeded + 2 * canaries * delta * largest)
