"""Tests of a matrix of noise: its law, its deviation in each direction, what its numbers share.

A sound row is a draw of N(0, I). Every law below is exact or conservative for it. docs/audit.md
says which faults each test finds.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, chi2, kstest, kstwo, norm

from fl_dpbayes.privacy.audit_statistics import (
    MISS,
    Effect,
    Finding,
    correlation_effect,
    correlation_probability,
    cosines_of,
    deviation_tests,
    two_sided,
    worst,
)

Array = npt.NDArray[np.float64]

# Normal scores farther out say no more: their probability is below 1e-36.
FARTHEST_SCORE = 12.5
# Collisions that are expected by chance.
EXPECTED_COLLISIONS = 256
# Beyond as many vectors every pair of them is not worth its time: so many are taken.
MOST_VECTORS = 800
# Leading directions that half of the rows choose and the other half is tested on.
MOST_LEADING = 12


class VectorPair(NamedTuple):
    """Two vectors of noise, shape (n,), of which no number is in both, and their name."""

    name: str
    first: Array
    second: Array


def mean_tests(means: Array, where: Callable[[int], str], rows: int, slack: float = 0.0) -> Finding:
    """Test that no mean of draws of N(0, 1) differs from 0: p = 2 P(N > (|m| - slack) sqrt(rows)).

    Args:
        means: m, each over the same number of draws.
        where: Gives the place of a mean by its number, in words.
        rows: Number of draws.
        slack: By which a mean may be off.

    Returns:
        The joint finding.
    """
    scores = (np.abs(means) - slack) * math.sqrt(rows)

    def effect(level: float) -> Effect:
        offset = float(norm.isf(level / 2) + norm.isf(MISS)) / math.sqrt(rows) + 2 * slack
        return Effect(size=offset, words=f"an offset of {offset:.2g} deviations or more")

    return worst(np.minimum(1.0, 2 * norm.sf(scores)), where, effect)


def spread_test(squares: Array, degrees: float, where: str) -> Finding:
    """Test that independent sums of squares differ as much among themselves as chi^2 lets them.

        s_i = Phi^{-1}(F(X_i)) ~ N(0, 1),   sum s_i^2 ~ chi^2_m

    F the distribution function of chi^2, m their number. It finds noise whose size follows from
    something that changes, such as the batch that was drawn: shared variances of relative deviation
    v give s_i the variance 1 + degrees v^2/2.

    Args:
        squares: X_i, shape (m,).
        degrees: Of each.
        where: What they are, in words.

    Returns:
        The finding, two-sided.
    """
    scores = _normal_scores(chi2.cdf(squares, degrees), chi2.sf(squares, degrees))
    total = float(scores @ scores)
    count = len(scores)

    def effect(level: float) -> Effect:
        ratio = float(chi2.isf(level / 2, count) / chi2.isf(1 - MISS, count))
        varied = math.sqrt(2 * (ratio - 1) / degrees)
        return Effect(size=varied, words=f"variances that vary by {varied:.1%} or more")

    return Finding(
        probability=float(two_sided(chi2.cdf(total, count), chi2.sf(total, count))),
        where=f"{where}: {math.sqrt(total / count):.3g} of what is expected",
        effect=effect,
    )


def excess_test(total: float, degrees: int, where: str) -> Finding:
    """Test that a sum of squares is no larger than chi^2 of so many degrees, one-sided.

    Args:
        total: The sum.
        degrees: Number of squares.
        where: What they are, in words.

    Returns:
        The finding.
    """

    def effect(level: float) -> Effect:
        ratio = math.sqrt(chi2.isf(level, degrees) / chi2.isf(1 - MISS, degrees))
        words = f"{ratio:.2g} times what is expected by chance, or more"
        return Effect(size=ratio, words=words)

    return Finding(
        probability=float(chi2.sf(total, degrees)),
        where=f"{where}: {math.sqrt(total / degrees):.3g} of what is expected",
        effect=effect,
    )


def size_scores(noise: Array) -> Array:
    """Return what |z| says, as numbers that are N(0, 1) for z ~ N(0, 1).

        Phi^{-1}(P(|N| <= |z|))

    Args:
        noise: z, of any shape.

    Returns:
        Scores of the same shape.
    """
    sizes = np.abs(noise)
    above = 2 * norm.sf(sizes)
    return _normal_scores(1 - above, above)


def distance_test(noise: Array, where: str) -> Finding:
    """Test that numbers are independent draws of N(0, 1), by Kolmogorov and Smirnov's distance.

    Args:
        noise: n numbers, of any shape.
        where: What they are, in words.

    Returns:
        The finding; its law is exact.

    Source:
        Simard and L'Ecuyer (2011).
    """
    count = noise.size

    def effect(level: float) -> Effect:
        least = float(kstwo.isf(level, count)) + float(norm.isf(MISS)) / (2 * math.sqrt(count))
        words = f"a distribution function that is {least:.2g} off, or more"
        return Effect(size=least, words=words)

    probability = float(kstest(noise.ravel(), "norm", method="exact").pvalue)
    return Finding(probability=probability, where=f"{where}, all numbers", effect=effect)


def tail_test(noise: Array, where: str) -> Finding:
    """Test that noise is neither cut off or rounded coarsely, nor of heavier or lighter tails.

    The numbers beyond c_k, P(|N| > c_k) = 2^-k, are Binomial(n, 2^-k): k from 1 to where one in
    1,000 audits has any.

    Args:
        noise: n numbers, of any shape.
        where: What they are, in words.

    Returns:
        The joint finding.
    """
    count = noise.size
    powers = np.arange(1, math.ceil(math.log2(count)) + 11)
    shares = 0.5**powers
    ends = norm.isf(shares / 2)
    beyond = count - np.searchsorted(np.sort(np.abs(noise), axis=None), ends, side="right")
    below_or_equal = binom.cdf(beyond, count, shares)
    above_or_equal = binom.sf(beyond - 1, count, shares)

    def effect(level: float) -> Effect:
        # Where nothing at all is beyond: the least share at which that is a fault.
        share = 1 - math.exp(math.log(level / 2) / count)
        words = f"noise cut at {norm.isf(share / 2):.2g} deviations or less"
        return Effect(size=share, words=words)

    def place(number: int) -> str:
        expected = count * shares[number]
        return f"{where}, {beyond[number]} beyond {ends[number]:.3g}, not {expected:.3g}"

    return worst(two_sided(below_or_equal, above_or_equal), place, effect)


def collision_test(noise: Array, where: str) -> Finding:
    """Test that no size |z| comes again.

    It finds copies, a coarse grid, and a short table that numbers are taken from. n sizes fall into
    M cells of equal probability, of which n^2 / (2 M) share one by chance. Given those before, a
    size falls into a cell that is taken with probability (i - 1) / M at most, so the number that do
    is at most as probable as under Binomial(n, (n - 1) / (2 M)).

    Args:
        noise: Continuous, as resolution by float32 is dithered away beforehand; of any shape.
        where: What it is, in words.

    Returns:
        The finding.

    Source:
        Knuth, The art of computer programming 2, 3.3.2 I; Hoeffding (1956).
    """
    sizes = np.abs(noise.ravel())
    count = len(sizes)
    cells = max(2, count**2 // (2 * EXPECTED_COLLISIONS))
    chance = min(1.0, (count - 1) / (2 * cells))
    expected = count * chance
    cell_of_size = np.floor(2 * norm.sf(sizes) * cells).astype(np.int64)
    collisions = count - len(np.unique(cell_of_size))
    probability = 1.0
    if collisions > expected + 1:
        probability = float(binom.sf(collisions - 1, count, chance))

    def effect(level: float) -> Effect:
        at_level = float(binom.isf(level, count, chance))
        least = at_level + float(norm.isf(MISS)) * math.sqrt(expected)
        words = f"{least - expected:.0f} of {count} numbers that come again, or more"
        return Effect(size=least / count, words=words)

    return Finding(
        probability=probability,
        where=f"{where}, {collisions} numbers come again, not {expected:.0f}",
        effect=effect,
    )


def direction_tests(
    noise: Array,
    directions: Mapping[str, Array],
    where: str,
    *,
    slack: float = 0.0,
) -> list[Finding]:
    """Test deviation and mean of the noise along directions that were chosen without it.

        <u, z_t> ~ N(0, 1) for |u| = 1,   sum_t <u, z_t>^2 ~ chi^2_T,   mean of variance 1 / T

    Args:
        noise: z_t, shape (T, d).
        directions: Of any length, shape (d,), by name; those of zeros are left out.
        where: What the noise is, in words.
        slack: How far a mean may be off.

    Returns:
        A finding of the deviations and one of the means.
    """
    names = [name for name, direction in directions.items() if direction.any()]
    along = np.stack([directions[name] / np.linalg.norm(directions[name]) for name in names])
    projected = noise @ along.T
    rows = len(noise)
    deviations = np.sqrt(np.square(projected).mean(axis=0))

    def place(number: int) -> str:
        return f"{where}, {names[number]}: {deviations[number]:.3g} times the claim"

    squares = np.square(projected).sum(axis=0)
    offset = mean_tests(
        projected.mean(axis=0), lambda number: f"{where}, mean along {names[number]}", rows, slack
    )
    return [deviation_tests(squares, rows, place), offset]


def leading_test(noise: Array, where: str) -> Finding:
    """Test the noise along the directions in which other noise of the same code is extreme.

    Half of the rows choose the directions in which they are largest and least, the other half is
    tested, and the other way round: sum of squares ~ chi^2_{T k} for k directions. The least are
    tried where half of the rows span all directions. It finds noise of fewer dimensions.

    Args:
        noise: Shape (T, d).
        where: What it is, in words.

    Returns:
        The joint finding.
    """
    totals = []
    degrees = []
    half = len(noise) // 2
    first_half = noise[:half]
    second_half = noise[half : 2 * half]
    for choosing, tested in ((first_half, second_half), (second_half, first_half)):
        _, _, directions = np.linalg.svd(choosing, full_matrices=False)
        count = min(MOST_LEADING, max(1, len(directions) // 4))
        groups = [directions[:count]]
        if half >= 2 * noise.shape[1]:
            groups.append(directions[-1:])
        for group in groups:
            totals.append(float(np.square(tested @ group.T).sum()))
            degrees.append(len(group) * half)
    sizes = np.array(degrees)
    probabilities = two_sided(chi2.cdf(totals, sizes), chi2.sf(totals, sizes))
    most_degrees = int(sizes.max())
    ratios = np.sqrt(np.array(totals) / sizes)

    def effect(level: float) -> Effect:
        ratio = math.sqrt(chi2.isf(level / 2, most_degrees) / chi2.isf(1 - MISS, most_degrees))
        words = f"a deviation of {ratio:.2g} times the claim or more along some directions"
        return Effect(size=ratio - 1, words=words)

    def place(number: int) -> str:
        return f"{where}, {ratios[number]:.3g} times the claim"

    return worst(probabilities, place, effect)


def correlation_test(pairs: Iterable[VectorPair], where: str) -> Finding:
    """Test that disjoint parts of the noise have nothing in common.

        r^2 ~ Beta(1/2, (n - 1) / 2) for vectors (n,)

    Args:
        pairs: One or more, of which one is in memory at a time.
        where: What the noise is, in words.

    Returns:
        The joint finding.
    """
    names = []
    measured = []
    lengths = []
    for pair in pairs:
        names.append(pair.name)
        measured.append(_cosine(pair.first, pair.second))
        lengths.append(pair.first.size)
    cosines = np.array(measured)
    sizes = np.array(lengths)
    probabilities = correlation_probability(cosines, sizes)
    shortest = int(sizes.min())

    def place(number: int) -> str:
        return f"{where}, {names[number]}: correlation {cosines[number]:+.3g}"

    return worst(probabilities, place, lambda level: correlation_effect(level, shortest))


def lagged(noise: Array, lag: int, name: str) -> Iterator[VectorPair]:
    """Pair numbers of each row with those `lag` behind.

    Args:
        noise: Shape (T, d).
        lag: How far behind.
        name: Of the numbers.

    Yields:
        Two pairings at most, in each of which a number is used once.
    """
    for shift in (0, lag):
        usable = (noise.shape[1] - shift) // (2 * lag) * (2 * lag)
        if usable:
            blocks = noise[:, shift : shift + usable].reshape(len(noise), -1, 2, lag)
            yield VectorPair(
                name=f"{name} {lag} apart",
                first=blocks[:, :, 0].ravel(),
                second=blocks[:, :, 1].ravel(),
            )


def mirrored(noise: Array, name: str) -> list[VectorPair]:
    """Pair one half of each row with the other, in order and in reverse.

    Args:
        noise: Shape (T, d), d >= 2.
        name: Of the numbers.

    Returns:
        The two pairs.
    """
    half = noise.shape[1] // 2
    first = noise[:, :half].ravel()
    second = noise[:, half : 2 * half].ravel()
    backwards = noise[:, ::-1][:, :half].ravel()
    return [
        VectorPair(f"halves of {name}", first, second),
        VectorPair(f"halves of {name}, one reversed", first, backwards),
    ]


def pair_test(vectors: Array, where: str) -> Finding:
    """Test that no two of independent vectors correlate: r^2 ~ Beta(1/2, (n - 1) / 2).

    Args:
        vectors: Shape (m, n), n >= 3.
        where: What they are, in words.

    Returns:
        The joint finding.
    """
    nonzero = vectors[vectors.any(axis=1)]
    count, size = nonzero.shape
    cosines = np.abs(cosines_of(nonzero))
    np.fill_diagonal(cosines, 0.0)
    largest = float(cosines.max(initial=0.0))
    first, second = np.unravel_index(int(cosines.argmax()), cosines.shape)
    pairs = max(1, count * (count - 1) // 2)
    probability = float(correlation_probability(np.array(largest), size))
    return Finding(
        probability=min(1.0, pairs * probability),
        where=f"{where} {first + 1} and {second + 1}, correlation {largest:.3g}",
        effect=lambda level: correlation_effect(level / pairs, size),
    )


def bit_tests(counts: Array, trials: Array, where: Callable[[int], str]) -> Finding:
    """Test that bits are fair coins: each count of ones is Binomial(trials, 1/2), two-sided.

    Args:
        counts: Of ones.
        trials: Number of bits of each count.
        where: Gives the place of a count by its number, in words.

    Returns:
        The joint finding.
    """
    below_or_equal = binom.cdf(counts, trials, 0.5)
    above_or_equal = binom.sf(counts - 1, trials, 0.5)
    fewest = int(trials.min())

    def effect(level: float) -> Effect:
        excess = float(norm.isf(level / 2) + norm.isf(MISS)) / math.sqrt(4 * fewest)
        if excess < 0.5:
            return Effect(size=excess, words=f"a share of ones of {0.5 + excess:.3f} or more")
        alike = max(fewest, 1 - math.floor(math.log2(level)))
        return Effect(size=1.0, words=f"bits that are always alike among {alike} or more")

    return worst(two_sided(below_or_equal, above_or_equal), where, effect)


def _normal_scores(below: Array, above: Array) -> Array:
    """Turn probabilities of less and of more into N(0, 1) scores, precise in both tails."""
    scores = np.where(below < above, norm.ppf(below), norm.isf(above))
    return np.clip(scores, -FARTHEST_SCORE, FARTHEST_SCORE)


def _cosine(first: Array, second: Array) -> float:
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths > 0 else 0.0
