"""The statistical tests of an audit, and its verdicts: what was found, what is allowed, which fault would be missed.

Each test gives a probability that holds for a sound site. All are exact or conservative for Gaussian noise; what counts
of joining units add is matched by mean and variance. The derivations stand in docs/audit.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv
from scipy.stats import chi2, norm

Array = npt.NDArray[np.float64]

# A fault of the stated size is missed with at most this chance.
MISS = 1e-3
TAIL = 4.0


@dataclass(frozen=True)
class Effect:
    """The smallest fault that a test finds: its size, to compare tests of one kind, and in words."""

    size: float
    words: str


@dataclass(frozen=True)
class Finding:
    """One test: the probability that a sound site shows what was found, or more; where; and its effect.

    `effect` maps the level of the test to the smallest fault that it misses with at most `MISS`.
    """

    probability: float
    where: str
    effect: Callable[[float], Effect]


def variance_test(total: float, degrees: float, where: str, *, kurtosis: float = 0.0, slack: float = 0.0) -> Finding:
    """Test that a sum of squares has the variance that was claimed, two-sided.

        X = sum z^2 ~ c chi^2_nu,   c = (2 + k) / 2,   nu = degrees / c

    exact for Gaussian z (k = 0); for z of excess kurtosis k the law with the same mean and variance.

    `degrees`: number of squares, above zero. `kurtosis`: mean excess kurtosis of the z, 0 or more. Returns the
    finding; its effect is the largest ratio of standard deviations below 1 that is found: sqrt(q(level / 2) / q(1 -
    MISS)), q the quantiles of chi^2_nu.
    """
    scale = 1 + kurtosis / 2
    nu = degrees / scale
    below, above = (chi2.cdf(total / (1 - slack) / scale, nu), chi2.sf(total / (1 + slack) / scale, nu))

    def effect(level: float) -> Effect:
        ratio = math.sqrt((1 - slack) * chi2.ppf(level / 2, nu) / chi2.isf(MISS, nu))
        return Effect(1 - ratio if degrees else 1.0, f"a deviation of {min(ratio, 1):.2g} times the claim or less")

    probability = min(1.0, 2 * float(min(below, above)))
    return Finding(probability, f"{where}, {math.sqrt(max(total, 0) / degrees):.3g} times the claim", effect)


def count_kurtosis(count: float, rate: float) -> float:
    """Return the excess kurtosis of a binomial count, times 4, as `variance_test` needs it at a small level.

    The law that is matched by mean and variance has thinner tails than sums of squared counts: with the excess itself
    they alarm up to 40 times as often as promised at a level of 1e-6, with four times as much less than twice. It is
    4 max(0, 1 - 6 q (1 - q)) / (n q (1 - q)) for n units that join at rate q.
    """
    return TAIL * max(0.0, 1 - 6 * rate * (1 - rate)) / (count * rate * (1 - rate))


def mean_test(
    difference: float, deviation: float, where: str, *, unit: float, slack: float = 0.0, one_sided: bool = False
) -> Finding:
    """Test that a mean is what it should be.

        p = 2 P(N(0, 1) > (|difference| - slack) / deviation);   one-sided P(N(0, 1) > (difference - slack) / deviation)

    `deviation`: its standard deviation at a sound site, above zero. Returns the finding; it finds a difference of
    (z(level) + z(MISS)) deviation + 2 slack.
    """
    sides = 1 if one_sided else 2
    size = difference if one_sided else abs(difference)
    probability = min(1.0, sides * float(norm.sf((size - slack) / deviation)))

    def effect(level: float) -> Effect:
        found = ((norm.isf(level / sides) + norm.isf(MISS)) * deviation + 2 * slack) / unit
        return Effect(found, f"a difference of {found:.1%} or more")

    return Finding(probability, f"{where}, {difference / unit:+.3g} of what is expected away", effect)


def correlation_tests(vectors: Mapping[str, Array]) -> list[Finding]:
    """Test that no two vectors of noise have anything in common.

        r^2 = <z, z'>^2 / (|z|^2 |z'|^2) ~ Beta(1/2, (d - 1) / 2)

    `vectors`: label -> noise, all of one shape (d,), d >= 2; those without any are left to the test of the
    variance. Returns one finding for each pair; it finds a correlation of r(level) + z(MISS) / sqrt(d), at most 1:
    a repetition is always found.
    """
    labels = [label for label, vector in vectors.items() if vector.any()]
    if not labels or len(vectors[labels[0]]) < 2:
        return []
    rows = np.stack([vectors[label] / np.linalg.norm(vectors[label]) for label in labels])
    size, cosines = rows.shape[1], rows @ rows.T

    def effect(level: float) -> Effect:
        found = math.sqrt(1 - betaincinv((size - 1) / 2, 0.5, level)) + float(norm.isf(MISS)) / math.sqrt(size)
        return Effect(found, f"a correlation of {found:.2g} or more" if found < 1 else "a repetition")

    return [
        Finding(
            float(betainc((size - 1) / 2, 0.5, max(0.0, 1 - cosines[i, j] ** 2))),
            f"{labels[i]} and {labels[j]}, {cosines[i, j]:+.3g}",
            effect,
        )
        for i, j in combinations(range(len(labels)), 2)
    ]


@dataclass(frozen=True)
class Check:
    """One verdict of an audit: the part of the mechanism that was attacked, and what was checked, in words.

    `value`: what was found: a probability, or a bound. `limit`: what it must be at most or at least. `where`: what
    the value was found on, where it is the worst of several. `finds`: which fault it misses at most once in a
    thousand audits.
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
    """Decide questions (words -> tests), so that a sound site fails any with at most the stated probability.

    Each of Q questions has a share false_alarm / Q, and each of its m tests false_alarm / (Q m) (Bonferroni), whatever
    depends on what.
    """
    asked, checks = {what: findings for what, findings in questions.items() if findings}, []
    for what, findings in asked.items():
        level = false_alarm / len(asked) / len(findings)
        worst = min(findings, key=lambda finding: finding.probability)
        weakest = max((finding.effect(level) for finding in findings), key=lambda effect: effect.size)
        where = f"worst of {len(findings)}: {worst.where}" if len(findings) > 1 else worst.where
        checks.append(Check(part, what, worst.probability, level, "at least", where, weakest.words))
    return checks
