"""The low bits of released numbers: those of noise, or a hiding place."""

import math

import numpy as np
import numpy.typing as npt

from fl_dpbayes.privacy.audit_statistics import Finding, Questions
from fl_dpbayes.privacy.noise_statistics import bit_tests

# So many bits at most, as far as the noise covers them by a factor of 2^MARGIN.
MOST_BITS, MARGIN = 10, 4
# Of fewer bits even all alike would not be a fault at the level of an audit.
LEAST_TRIALS = 64


def low_bit_questions(
    states: npt.NDArray[np.floating],
    bits: int,
    covered: npt.NDArray[np.bool_],
    labels: npt.NDArray[np.int64],
    where: str,
) -> Questions:
    """Ask whether the lowest bits of released numbers are fair coins, alone and against those of other releases.

    A number w - a d, of noise many times its last place, has last bits of which each is 0 or 1 with
    probability 1/2 (the error is exp(-2 pi^2 4^MARGIN)), independent of all others. Tested are the
    ones at each place of the state, in each state, and in all; and how often a bit equals that of
    the next state, that of the next number, and the label that the auditor has planted at its
    place, modulo the number of records.

    `states`: (T, d), float32 or float64. `bits`: how many the noise covers. `covered`: which
    numbers are tested, (T, d). `labels`: of the site's records, in their order.
    """
    words = (
        np.ascontiguousarray(states)
        .view(np.uint32 if states.dtype == np.float32 else np.uint64)
        .astype(np.uint64)
    )
    planted = (labels[np.arange(states.shape[1]) % len(labels)] % 2).astype(bool)
    even_rows = len(states) // 2 * 2
    even_columns = states.shape[1] // 2 * 2
    rows = covered[1::2] & covered[:even_rows:2]
    columns = covered[:, 1::2] & covered[:, :even_columns:2]
    whole: list[Finding] = []
    places: list[Finding] = []
    each: list[Finding] = []
    for bit in range(bits):
        ones = (words >> np.uint64(bit)) & np.uint64(1) == 1
        name = f"{where}, bit {bit + 1} from below"
        compared = {
            "ones": (ones, covered),
            "as in the state before": (ones[1::2] == ones[:even_rows:2], rows),
            "as in the number beside": (ones[:, 1::2] == ones[:, :even_columns:2], columns),
            "as in a label": (ones == planted, covered),
        }
        for said, (equal, among) in compared.items():
            whole += _shares(
                np.array([(equal & among).sum()]), np.array([among.sum()]), f"{name}, {said}"
            )
        tested = ones & covered
        places += _shares(tested.sum(axis=0), covered.sum(axis=0), f"{name}, place")
        each += _shares(tested.sum(axis=1), covered.sum(axis=1), f"{name}, release")
    return {
        (
            "the last bits of what is released are fair, and not those of a neighbour or a label"
        ): whole,
        "the last bits at every place are fair": places,
        "the last bits of every release are fair": each,
    }


def covered_bits(resolution: npt.NDArray[np.float64]) -> int:
    """Return how many bits the noise covers in every number, by the last place over the noise's deviation, (T, d)."""
    largest = float(resolution.max(initial=0.0))
    if largest == 0:
        return 0
    return max(0, min(MOST_BITS, math.floor(-math.log2(largest)) - MARGIN))


def _shares(
    counts: npt.NDArray[np.int64], trials: npt.NDArray[np.int64], name: str
) -> list[Finding]:
    held = np.flatnonzero(trials >= LEAST_TRIALS)
    if not len(held):
        return []
    ones = counts[held].astype(np.float64)
    sizes = trials[held].astype(np.float64)

    def place(number: int) -> str:
        return f"{name} {held[number] + 1}: {ones[number] / sizes[number]:.3g}"

    return [bit_tests(ones, sizes, place)]
