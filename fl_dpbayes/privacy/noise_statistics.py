"""Tests of a matrix of noise: its law, its deviation in each direction, and what its numbers have in common.

A sound row is a draw of N(0, I). Every law below is exact or conservative for it. docs/audit.md
says which faults each test finds.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv
from scipy.stats import binom, chi2, kstwo, norm

from fl_dpbayes.privacy.audit_statistics import MISS, Effect, Finding

Array = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]

# Normal scores farther out say no more: their probability is below 1e-36.
FARTHEST_SCORE = 12.5
# Collisions that are expected by chance.
EXPECTED_COLLISIONS = 256
# Beyond as many vectors every pair of them is not worth its time: so many are taken.
MOST_VECTORS = 800
# Leading directions that half of the rows choose and the other half is tested on.
MOST_LEADING = 12


def worst(
    probabilities: Array, where: Callable[[int], str], effect: Callable[[float], Effect]
) -> Finding:
    """Join tests of one kind into one (Bonferroni): p = min(1, m min p_i) for m of them, independent or not.

    `where`: number of a test -> its place, in words. `effect`: of one of them, by its level.
    """
    count = len(probabilities)
    least = int(np.argmin(probabilities))
    probability = min(1.0, count * float(probabilities[least]))
    return Finding(probability, where(least), lambda level: effect(level / count))


def mean_tests(means: Array, where: Callable[[int], str], rows: int, slack: float = 0.0) -> Finding:
    """Test that no mean differs from 0, each over `rows` numbers of N(0, 1): p = 2 P(N > (|m| - slack) sqrt(rows))."""
    scores = (np.abs(means) - slack) * math.sqrt(rows)

    def effect(level: float) -> Effect:
        offset = float(norm.isf(level / 2) + norm.isf(MISS)) / math.sqrt(rows) + 2 * slack
        return offset, f"an offset of {offset:.2g} deviations or more"

    return worst(np.minimum(1.0, 2 * norm.sf(scores)), where, effect)


def deviation_tests(squares: Array, degrees: float, where: Callable[[int], str]) -> Finding:
    """Test that each sum of squares has the law chi^2 of so many degrees, two-sided."""
    tails = np.minimum(chi2.cdf(squares, degrees), chi2.sf(squares, degrees))

    def effect(level: float) -> Effect:
        ratio = math.sqrt(chi2.ppf(level / 2, degrees) / chi2.isf(MISS, degrees))
        return 1 - ratio, f"a deviation of {min(ratio, 1):.2g} times the claim or less"

    return worst(np.minimum(1.0, 2 * tails), where, effect)


def spread_test(squares: Array, degrees: float, where: str) -> Finding:
    """Test that independent sums of squares differ among themselves as chi^2 of so many degrees, and no more or less.

        s_i = Phi^{-1}(F(X_i)) ~ N(0, 1),   sum s_i^2 ~ chi^2_m

    F the distribution function of chi^2, m their number. It finds noise whose size follows from
    something that changes, such as the batch that was drawn: shared variances of relative deviation
    v give s_i the variance 1 + degrees v^2/2.
    """
    scores = _normal_scores(chi2.cdf(squares, degrees), chi2.sf(squares, degrees))
    total = float(scores @ scores)
    count = len(scores)
    tail = min(float(chi2.cdf(total, count)), float(chi2.sf(total, count)))

    def effect(level: float) -> Effect:
        ratio = float(chi2.isf(level / 2, count) / chi2.isf(1 - MISS, count))
        varied = math.sqrt(2 * (ratio - 1) / degrees)
        return varied, f"variances that vary by {varied:.1%} or more"

    return Finding(
        min(1.0, 2 * tail), f"{where}: {math.sqrt(total / count):.3g} of what is expected", effect
    )


def excess_test(total: float, degrees: int, where: str) -> Finding:
    """Test that a sum of squares is no larger than chi^2 of so many degrees, one-sided."""
    probability = float(chi2.sf(total, degrees))

    def effect(level: float) -> Effect:
        ratio = math.sqrt(chi2.isf(level, degrees) / chi2.isf(1 - MISS, degrees))
        return ratio, f"{ratio:.2g} times what is expected by chance, or more"

    return Finding(
        probability, f"{where}: {math.sqrt(total / degrees):.3g} of what is expected", effect
    )


def size_scores(noise: Array) -> Array:
    """Return what |z| says, as numbers that are N(0, 1) for z ~ N(0, 1): Phi^{-1}(P(|N| <= |z|)), of the same shape."""
    sizes = np.abs(noise)
    above = 2 * norm.sf(sizes)
    return _normal_scores(1 - above, above)


def law_tests(noise: Array, where: str) -> list[Finding]:
    """Test that numbers, of any shape, are independent draws of N(0, 1).

    Kolmogorov and Smirnov's distance, of exact law; and the numbers beyond c_k, P(|N| > c_k) =
    2^-k, which are Binomial(n, 2^-k): k from 1 to where one in 1,000 audits has any. It finds what
    is cut off or rounded coarsely, and tails that are heavier or lighter. Source: Simard and
    L'Ecuyer (2011) for the distance.
    """
    ordered = np.sort(noise, axis=None)
    count = len(ordered)
    reached = norm.cdf(ordered)
    ranks = np.arange(count)
    distance = float(max((reached - ranks / count).max(), ((ranks + 1) / count - reached).max()))

    def effect_of_distance(level: float) -> Effect:
        least = float(kstwo.isf(level, count)) + float(norm.isf(MISS)) / (2 * math.sqrt(count))
        return least, f"a distribution function that is {least:.2g} off, or more"

    findings = [
        Finding(float(kstwo.sf(distance, count)), f"{where}, all numbers", effect_of_distance)
    ]
    powers = np.arange(1, math.ceil(math.log2(count)) + 11)
    shares = 0.5**powers
    beyond = count - np.searchsorted(
        np.sort(np.abs(noise), axis=None), norm.isf(shares / 2), side="right"
    )
    below_or_equal = binom.cdf(beyond, count, shares)
    above_or_equal = binom.sf(beyond - 1, count, shares)

    def effect_of_tail(level: float) -> Effect:
        # Where nothing at all is beyond: the least share at which that is a fault.
        share = 1 - math.exp(math.log(level / 2) / count)
        return share, f"noise cut at {norm.isf(share / 2):.2g} deviations or less"

    def place(number: int) -> str:
        expected = count * shares[number]
        return (
            f"{where}, {beyond[number]} beyond {norm.isf(shares[number] / 2):.3g}, not "
            f"{expected:.3g}"
        )

    tails = np.minimum(1.0, 2 * np.minimum(below_or_equal, above_or_equal))
    return [*findings, worst(tails, place, effect_of_tail)]


def collision_test(noise: Array, where: str) -> Finding:
    """Test that no size |z| comes again: no copies, no coarse grid, no short table that numbers are taken from.

    n sizes fall into M cells of equal probability, of which n^2 / (2 M) share one by chance. Given
    those before, a size falls into a cell that is taken with probability (i - 1) / M at most, so
    the number that do is at most as probable as under Binomial(n, (n - 1) / (2 M)). Source: Knuth,
    The art of computer programming 2, 3.3.2 I; Hoeffding (1956).

    `noise`: continuous, as resolution by float32 is dithered away beforehand.
    """
    sizes = noise.ravel()
    count = len(sizes)
    cells = max(2, count**2 // (2 * EXPECTED_COLLISIONS))
    chance = min(1.0, (count - 1) / (2 * cells))
    place = np.floor(2 * norm.sf(np.abs(sizes)) * cells).astype(np.int64)
    collisions = count - len(np.unique(place))
    probability = 1.0
    if collisions > count * chance + 1:
        probability = float(binom.sf(collisions - 1, count, chance))

    def effect(level: float) -> Effect:
        least = float(binom.isf(level, count, chance)) + float(norm.isf(MISS)) * math.sqrt(
            count * chance
        )
        return (
            least / count,
            f"{least - count * chance:.0f} of {count} numbers that come again, or more",
        )

    return Finding(
        probability, f"{where}, {collisions} numbers come again, not {count * chance:.0f}", effect
    )


def direction_tests(
    noise: Array,
    directions: Mapping[str, Array],
    where: str,
    *,
    slack: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Test deviation and mean of the noise along directions that were chosen without it.

        <u, z_t> ~ N(0, 1) for |u| = 1,   sum_t <u, z_t>^2 ~ chi^2_T,   mean of variance 1 / T

    `noise`: (T, d). `directions`: name -> (d,), scaled here. `slack`: name -> how far a mean may be
    off.
    """
    names = [name for name, direction in directions.items() if direction.any()]
    along = np.stack([directions[name] / np.linalg.norm(directions[name]) for name in names])
    projected = noise @ along.T
    rows = len(noise)
    allowed = np.array([(slack or {}).get(name, 0.0) for name in names])
    deviations = np.sqrt(np.square(projected).mean(axis=0))

    def place(number: int) -> str:
        return f"{where}, {names[number]}: {deviations[number]:.3g} times the claim"

    squares = np.square(projected).sum(axis=0)
    means = np.maximum(0.0, np.abs(projected.mean(axis=0)) - allowed)
    offset = mean_tests(means, lambda number: f"{where}, mean along {names[number]}", rows)
    return [deviation_tests(squares, rows, place), offset]


def leading_test(noise: Array, where: str) -> Finding:
    """Test the noise along the directions in which other noise of the same code is largest and least.

    Half of the rows choose them, the other half is tested, and the other way round: sum of squares
    ~ chi^2_{T k} for k directions. The least are tried where half of the rows span all directions.
    It finds noise of fewer dimensions.
    """
    totals = []
    degrees = []
    half = len(noise) // 2
    for chosen, tested in (
        (noise[:half], noise[half : 2 * half]),
        (noise[half : 2 * half], noise[:half]),
    ):
        _, _, directions = np.linalg.svd(chosen, full_matrices=False)
        count = min(MOST_LEADING, max(1, len(directions) // 4))
        groups = [directions[:count]]
        if half >= 2 * noise.shape[1]:
            groups.append(directions[-1:])
        for group in groups:
            totals.append(float(np.square(tested @ group.T).sum()))
            degrees.append(len(group) * half)
    sizes = np.array(degrees)
    tails = np.minimum(chi2.cdf(totals, sizes), chi2.sf(totals, sizes))

    def effect(level: float) -> Effect:
        most = int(sizes.max())
        ratio = math.sqrt(chi2.isf(level / 2, most) / chi2.isf(1 - MISS, most))
        return (
            ratio - 1,
            f"a deviation of {ratio:.2g} times the claim or more along some directions",
        )

    ratios = np.sqrt(np.array(totals) / sizes)
    return worst(
        np.minimum(1.0, 2 * tails),
        lambda number: f"{where}, {ratios[number]:.3g} times the claim",
        effect,
    )


def correlation_test(pairs: Sequence[tuple[str, Array, Array]], where: str) -> Finding:
    """Test that two disjoint parts of the noise have nothing in common: r^2 ~ Beta(1/2, (n - 1)/2), each pair's n.

    `pairs`: name, and two vectors (n,) of which no number is in both.
    """
    cosines = np.array([float(_cosine(first, second)) for _, first, second in pairs])
    sizes = np.array([first.size for _, first, _ in pairs])
    probabilities = betainc((sizes - 1) / 2, 0.5, np.maximum(0.0, 1 - np.square(cosines)))
    shortest = int(sizes.min())

    def place(number: int) -> str:
        return f"{where}, {pairs[number][0]}: correlation {cosines[number]:+.3g}"

    return worst(probabilities, place, lambda level: correlation_effect(level, shortest))


def lagged(noise: Array, lag: int, name: str) -> list[tuple[str, Array, Array]]:
    """Pair numbers of each row with those `lag` behind, (T, d): twice, so that each pairing uses every number once."""
    pairs = []
    for shift in (0, lag):
        usable = (noise.shape[1] - shift) // (2 * lag) * (2 * lag)
        if usable:
            blocks = noise[:, shift : shift + usable].reshape(len(noise), -1, 2, lag)
            pairs.append((f"{name} {lag} apart", blocks[:, :, 0].ravel(), blocks[:, :, 1].ravel()))
    return pairs


def mirrored(noise: Array, name: str) -> list[tuple[str, Array, Array]]:
    """Pair each half of the rows (T, d) with the other, in order and in reverse, d >= 2."""
    half = noise.shape[1] // 2
    first = noise[:, :half]
    second = noise[:, half : 2 * half]
    backwards = noise[:, ::-1][:, :half]
    return [
        (f"halves of {name}", first.ravel(), second.ravel()),
        (f"halves of {name}, one reversed", first.ravel(), backwards.ravel()),
    ]


def pair_test(vectors: Array, where: str) -> Finding:
    """Test that no two of independent vectors (m, n) correlate, n >= 3: r^2 ~ Beta(1/2, (n - 1) / 2)."""
    lengths = np.linalg.norm(vectors, axis=1)
    rows = vectors[lengths > 0] / lengths[lengths > 0, None]
    count = len(rows)
    size = vectors.shape[1]
    cosines = np.abs(rows @ rows.T)
    np.fill_diagonal(cosines, 0.0)
    largest = float(cosines.max(initial=0.0))
    first, second = np.unravel_index(int(cosines.argmax()), cosines.shape)
    pairs = max(1, count * (count - 1) // 2)
    probability = min(1.0, pairs * float(betainc((size - 1) / 2, 0.5, max(0.0, 1 - largest**2))))

    def effect(level: float) -> Effect:
        return correlation_effect(level / pairs, size)

    return Finding(
        probability, f"{where} {first + 1} and {second + 1}, correlation {largest:.3g}", effect
    )


def correlation_effect(level: float, size: int) -> Effect:
    """Return the correlation of two vectors (size,) that a test at a level finds but for `MISS`, and its words."""
    least = math.sqrt(1 - betaincinv((size - 1) / 2, 0.5, level)) + float(
        norm.isf(MISS)
    ) / math.sqrt(size)
    return least, f"a correlation of {least:.2g} or more" if least < 1 else "a repetition"


def bit_tests(counts: Array, trials: Array, where: Callable[[int], str]) -> Finding:
    """Test that bits are fair coins: each count of ones is Binomial(trials, 1/2), two-sided."""
    below_or_equal = binom.cdf(counts, trials, 0.5)
    above_or_equal = binom.sf(counts - 1, trials, 0.5)
    fewest = int(trials.min())

    def effect(level: float) -> Effect:
        excess = float(norm.isf(level / 2) + norm.isf(MISS)) / math.sqrt(4 * fewest)
        if excess >= 0.5:
            return (
                1.0,
                (
                    "bits that are always alike among "
                    f"{max(fewest, 1 - math.floor(math.log2(level)))} or more"
                ),
            )
        return excess, f"a share of ones of {0.5 + excess:.3f} or more"

    return worst(np.minimum(1.0, 2 * np.minimum(below_or_equal, above_or_equal)), where, effect)


def _normal_scores(below: Array, above: Array) -> Array:
    scores = np.where(below < above, norm.ppf(below), norm.isf(above))
    return np.clip(scores, -FARTHEST_SCORE, FARTHEST_SCORE)


def _cosine(first: Array, second: Array) -> float:
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths > 0 else 0.0
