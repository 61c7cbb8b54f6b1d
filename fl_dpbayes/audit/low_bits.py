"""The low bits of released numbers: those of noise, or a hiding place."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.privacy.audit_statistics import Finding, Questions
from fl_dpbayes.privacy.noise_statistics import bit_tests

# So many bits at most, as far as the noise covers them by a factor of 2^MARGIN.
MOST_BITS = 10
MARGIN = 4
# Of fewer bits even all alike would not be a fault at the level of an audit.
LEAST_TRIALS = 64

Flags = npt.NDArray[np.bool_]


class Comparison(NamedTuple):
    """What bits are compared with.

    Attributes:
        name: In words.
        equal: Whether each bit is so, shape (rows, columns).
        covered: Which of them are tested, of the same shape.
    """

    name: str
    equal: Flags
    covered: Flags


def low_bit_questions(
    states: npt.NDArray[np.floating],
    bits: int,
    covered: Flags,
    labels: npt.NDArray[np.int64],
    where: str,
) -> Questions:
    """Ask whether the lowest bits of released numbers are fair coins, independent of all others.

    A number w - a d, of noise many times its last place, has last bits of which each is 0 or 1 with
    probability 1/2 (the error is exp(-2 pi^2 4^MARGIN)), independent of all others. Tested are the
    ones at each place of the state, in each state, and in all; and how often a bit equals that of
    the next state, that of the next number, and the label that the auditor has planted at its
    place, modulo the number of records.

    Args:
        states: Shape (T, d), float32 or float64.
        bits: How many the noise covers.
        covered: Which numbers are tested, shape (T, d).
        labels: Of the site's records, in their order.
        where: The states are from, in words.

    Returns:
        Findings by question.
    """
    word = np.uint32 if states.dtype == np.float32 else np.uint64
    words = np.ascontiguousarray(states).view(word).astype(np.uint64)
    planted = (labels[np.arange(states.shape[1]) % len(labels)] % 2).astype(bool)
    overall: list[Finding] = []
    by_place: list[Finding] = []
    by_release: list[Finding] = []
    for bit in range(bits):
        ones = (words >> np.uint64(bit)) & np.uint64(1) == 1
        name = f"{where}, bit {bit + 1} from below"
        for comparison in _comparisons(ones, covered, planted):
            overall += _share_tests(
                np.array([(comparison.equal & comparison.covered).sum()]),
                np.array([comparison.covered.sum()]),
                f"{name}, {comparison.name}",
            )
        tested = ones & covered
        by_place += _share_tests(tested.sum(axis=0), covered.sum(axis=0), f"{name}, place")
        by_release += _share_tests(tested.sum(axis=1), covered.sum(axis=1), f"{name}, release")
    return {
        (
            "the last bits of what is released are fair, and not those of a neighbour or a label"
        ): overall,
        "the last bits at every place are fair": by_place,
        "the last bits of every release are fair": by_release,
    }


def _comparisons(ones: Flags, covered: Flags, planted: Flags) -> list[Comparison]:
    """List what one bit of all numbers, shape (T, d), is compared with."""
    # Pairs share no number: every second one is compared with the one before.
    even_rows = len(ones) // 2 * 2
    even_columns = ones.shape[1] // 2 * 2
    return [
        Comparison("ones", ones, covered),
        Comparison(
            "as in the state before",
            ones[1::2] == ones[:even_rows:2],
            covered[1::2] & covered[:even_rows:2],
        ),
        Comparison(
            "as in the number beside",
            ones[:, 1::2] == ones[:, :even_columns:2],
            covered[:, 1::2] & covered[:, :even_columns:2],
        ),
        Comparison("as in a label", ones == planted, covered),
    ]


def covered_bits(resolution: npt.NDArray[np.float64]) -> int:
    """Return how many bits the noise covers in every number.

    Args:
        resolution: Last place over the noise's deviation, shape (T, d).

    Returns:
        From 0 to MOST_BITS.
    """
    largest = float(resolution.max(initial=0.0))
    if largest == 0:
        return 0
    return max(0, min(MOST_BITS, math.floor(-math.log2(largest)) - MARGIN))


def _share_tests(
    counts: npt.NDArray[np.int64], trials: npt.NDArray[np.int64], name: str
) -> list[Finding]:
    """Test shares of one half, of trials enough to tell."""
    tested = np.flatnonzero(trials >= LEAST_TRIALS)
    if not len(tested):
        return []
    ones = counts[tested].astype(np.float64)
    sizes = trials[tested].astype(np.float64)

    def place(number: int) -> str:
        return f"{name} {tested[number] + 1}: {ones[number] / sizes[number]:.3g}"

    return [bit_tests(ones, sizes, place)]
