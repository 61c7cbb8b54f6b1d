"""How often the 95 % intervals hold the truth, on simulated models of known calibration error.

python benchmarks/interval_coverage.py --replicates 1000

No federation and no training. `noise` is the standard deviation of a private release's noise on
each sum. Accuracy, NLL and Brier are the coverages of their intervals for the mean over all records
like these, NLL among the test sets that show one. The page `docs/results/interval-coverage` holds
1,000 test sets of every row and the figure.
"""

import argparse
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, logit
from scipy.stats import binom

from fl_dpbayes.calibration import (
    COUNT_BINS,
    REPORT_BINS,
    Floats,
    count_bin,
    from_batch,
    wilson_interval,
)
from fl_dpbayes.calibration.bins import bin_index
from fl_dpbayes.calibration.intervals import TAILS, Interval
from fl_dpbayes.calibration.metrics.scores import brier_interval, nll_interval
from fl_dpbayes.calibration.noised_counts import CODE, NoisedCounts
from fl_dpbayes.calibration.noised_measures import joined_bins
from fl_dpbayes.calibration.rms_interval import rms_interval
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR
from fl_dpbayes.privacy import Streams

COUNTS = (50, 200, 624, 2000, 5000)
# Standard deviations on each released sum: a site's noise multiplier, or several sites' in squares.
NOISES, NOISED_COUNTS = (1.0, 5.0, 20.0), (624, 5000)
NOISED_CONFIDENCES = ("Beta(.6, .6)", "top of 2, uniform", "Beta(8, 1)")
POPULATION = 400_000
TOP_LABEL_CLASSES = 3
# Of a record whose true class has the probability p.
LOSSES: Mapping[str, Callable[[Floats], Floats]] = {
    "nll": lambda p: -np.log(np.maximum(p, PROBABILITY_FLOOR)),
    "brier": lambda p: 2 * (1 - p) ** 2,
}
ROUNDING = 1e-12


def _mostly_sure(generator: np.random.Generator, count: int) -> Floats:
    sure = generator.random(count) < 0.95
    return np.where(sure, generator.uniform(0.95, 1, count), generator.uniform(0.5, 0.95, count))


def _steepened(slope: Floats | float) -> Callable[[Floats], Floats]:
    return lambda p: expit(slope * logit(np.clip(p, 1e-12, 1 - 1e-12)))


CONFIDENCES: Mapping[str, Callable[[np.random.Generator, int], Floats]] = {
    "Beta(.6, .6)": lambda generator, count: generator.beta(0.6, 0.6, count),
    "top of 2, uniform": lambda generator, count: generator.uniform(0.5, 1, count),
    "top of 10, Dirichlet(.3)": lambda generator, count: generator.dirichlet(
        np.full(10, 0.3), count
    ).max(axis=1),
    "Beta(8, 1)": lambda generator, count: generator.beta(8, 1, count),
    "95 % above .95": _mostly_sure,
    "80 % at 1": lambda draw, count: np.where(
        draw.random(count) < 0.8, 1.0, draw.uniform(0.6, 1, count)
    ),
}
FREQUENCIES: Mapping[str, Callable[[Floats], Floats]] = {
    "calibrated": lambda p: p,
    "logit x .8": _steepened(0.8),
    "logit x .6": _steepened(0.6),
    "logit x 1.5": _steepened(1.5),
    "wrong above .97": lambda p: np.where(p > 0.97, 0.9, p),
    "all .05 too high": lambda p: np.clip(p - 0.05, 0, 1),
    "bump at .6 to .73": lambda p: np.where((p > 0.6) & (p < 0.73), p - 0.2, p),
}
# Law of the confidences, records of a test set, noise.
SETTINGS = [
    *((law, n, 0.0) for law in CONFIDENCES for n in COUNTS),
    *((law, n, noise) for law in NOISED_CONFIDENCES for n in NOISED_COUNTS for noise in NOISES),
]
SITES = "three sites, opposite errors"
SITE_SHARES = ((0.6, 0.5), (0.3, 2.0), (0.1, 1.0))  # share of the records, slope of the logit
DISTORTIONS = (*FREQUENCIES, SITES)


class TestSets(NamedTuple):
    """R independent test sets of n records of one model.

    Attributes:
        confidence: Confidence in the predicted class, shape (R, n).
        frequency: True probability that it is right, shape (R, n).
        right: Whether it is right, shape (R, n).
    """

    confidence: Floats
    frequency: Floats
    right: npt.NDArray[np.bool_]


def draw_test_sets(
    law: str, distortion: str, n: int, replicates: int, generator: np.random.Generator
) -> TestSets:
    """Draw test sets of a model.

    Args:
        law: Law of the confidences, a key of `CONFIDENCES`.
        distortion: How the confidences err, one of `DISTORTIONS`.
        n: Records of a test set.
        replicates: Number R of test sets.
        generator: Source of all draws.
    """
    p = CONFIDENCES[law](generator, replicates * n)
    if distortion == SITES:
        shares, slopes = zip(*SITE_SHARES, strict=True)
        frequency = _steepened(generator.choice(slopes, p.size, p=shares))(p)
    else:
        frequency = FREQUENCIES[distortion](p)
    right = generator.random(p.size) < frequency
    shape = (replicates, n)
    return TestSets(p.reshape(shape), frequency.reshape(shape), right.reshape(shape))


def binned(drawn: TestSets, bins: int) -> Floats:
    """Return sums of 1, p, outcome and true probability per equal-width bin, shape (R, bins, 4)."""
    replicates, count = drawn.confidence.shape
    place = bin_index(drawn.confidence, bins) + bins * np.arange(replicates)[:, None]
    weights = (np.ones((replicates, count)), drawn.confidence, drawn.right, drawn.frequency)
    sums = [np.bincount(place.ravel(), np.ravel(weight), bins * replicates) for weight in weights]
    return np.stack(sums, axis=1).astype(np.float64).reshape(replicates, bins, 4)


def measure(
    law: str, distortion: str, n: int, noise_std: float, replicates: int, seed: int = 0
) -> dict[str, float]:
    """Measure coverage and width of the intervals.

    Args:
        law: Law of the confidences, a key of `CONFIDENCES`.
        distortion: How the confidences err, one of `DISTORTIONS`.
        n: Records of a test set.
        noise_std: Standard deviation of the noise on each released sum; 0: exact sums.
        replicates: Number of test sets.
        seed: Seed of all draws.

    Returns:
        Of the debiased RMS error, given the confidences: mean truth, coverage, width, and the
        shares of intervals wholly `above` and `below` the truth and of those that hold 0.
        `spread` is the standard deviation of the number of right answers. With exact sums also
        the coverage of the other metrics' intervals.
    """
    streams = Streams.from_insecure_seed(seed, f"interval-coverage {law} n={n} noise={noise_std:g}")
    generator = streams.generator(distortion)
    drawn = draw_test_sets(law, distortion, n, replicates, generator)
    values = _rms(drawn, noise_std, generator)
    if noise_std == 0:
        values |= _scores(drawn, _population_scores(law, distortion, seed))
        if distortion == "calibrated":
            values["band"] = _band(drawn)
    return values


def _rms(drawn: TestSets, noise_std: float, generator: np.random.Generator) -> dict[str, float]:
    ends = []
    truths = []
    for number, table in enumerate(binned(drawn, REPORT_BINS)):
        if noise_std:
            of_bins = _sums_by_count_bin(drawn, number)
            counts = np.column_stack([of_bins[:, 0] - of_bins[:, 2], of_bins[:, 2]])
            noise = noise_std * generator.standard_normal(counts.shape)
            # More than two classes: the table is of the top label.
            released = NoisedCounts(CODE @ counts + noise, noise_std, classes=TOP_LABEL_CLASSES)
            joined = joined_bins(released)
            interval = rms_interval(joined.sums, joined.noise_std)
            table = joined.members[..., 1] @ of_bins
        else:
            interval = rms_interval(table[:, :3])
        if interval is not None:
            ends.append(interval)
            truths.append(_true_rms(table))
    variance = float((drawn.frequency * (1 - drawn.frequency)).sum(axis=1).mean())
    values = {"spread": math.sqrt(variance), "intervals": float(len(ends))}
    if not ends:
        return values
    (low, high), truth = np.transpose(ends), np.array(truths)
    above = low > truth + ROUNDING
    below = high < truth - ROUNDING
    shares = {
        "truth": truth,
        "coverage": ~above & ~below,
        "above": above,
        "below": below,
        "width": high - low,
        "zero": low == 0,
    }
    return values | {name: float(np.mean(of_sets)) for name, of_sets in shares.items()}


def _sums_by_count_bin(drawn: TestSets, number: int) -> Floats:
    """Sum 1, p, y and q by bin of one test set, shape (COUNT_BINS, 4)."""
    confidence = drawn.confidence[number]
    right = drawn.right[number]
    place = count_bin(confidence)
    weights = (np.ones_like(confidence), confidence, right, drawn.frequency[number])
    sums = [np.bincount(place, weight, COUNT_BINS) for weight in weights]
    return np.stack(sums, axis=1).astype(np.float64)


def _true_rms(table: Floats) -> float:
    """Return the error of sums of 1, p, y and the true frequency by bin, shape (B, 4)."""
    squares = (table[:, 1] - table[:, 3]) ** 2 / np.maximum(table[:, 0], 1)
    return math.sqrt(squares.sum() / table[:, 0].sum())


@functools.cache
def _population_scores(law: str, distortion: str, seed: int) -> dict[str, float]:
    """Return the mean accuracy, NLL and Brier score (two classes) over the population."""
    generator = Streams.from_insecure_seed(seed, f"interval-coverage population {law}").generator(
        distortion
    )
    p, frequency, _ = (
        part[0] for part in draw_test_sets(law, distortion, POPULATION, 1, generator)
    )
    means = {
        name: float((frequency * loss(p) + (1 - frequency) * loss(1 - p)).mean())
        for name, loss in LOSSES.items()
    }
    return {"accuracy": float(frequency.mean()), **means}


def _scores(drawn: TestSets, truth: Mapping[str, float]) -> dict[str, float]:
    """Return the coverage of the intervals of accuracy, NLL and Brier score."""
    accurate = [wilson_interval(float(right.sum()), right.size) for right in drawn.right]
    covered = {"accuracy": _share_holding(accurate, truth["accuracy"])}
    classes = np.where(drawn.right, 0, 1)
    tables = [
        from_batch(np.column_stack([p, 1 - p]), y)
        for p, y in zip(drawn.confidence, classes, strict=True)
    ]
    for name, interval in (("nll", nll_interval), ("brier", brier_interval)):
        shown = [ends for ends in map(interval, tables) if ends is not None]
        covered |= {
            name: _share_holding(shown, truth[name]),
            f"{name} shown": len(shown) / len(tables),
        }
    return covered


def _share_holding(intervals: Sequence[Interval | None], truth: float) -> float:
    held = [ends is not None and ends.low <= truth <= ends.high for ends in intervals]
    return float(np.mean(held)) if held else math.nan


def _band(drawn: TestSets) -> float:
    """Return the share of bins that hold records whose accuracy lies in the consistency band."""
    table = binned(drawn, REPORT_BINS)
    n, confidence, right, _ = table[table[..., 0] > 0].T
    low, high = (binom.ppf(tail, n, np.minimum(confidence / n, 1)) for tail in TAILS)
    return float(np.mean((low <= right) & (right <= high)))


def main() -> None:
    """Print a row for each law of confidences, size, noise and distortion."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--replicates", type=int, default=250, help="test sets of each row (default: 250)"
    )
    replicates = parser.parse_args().replicates
    for law, n, noise in SETTINGS:
        rows = {
            distortion: measure(law, distortion, n, noise, replicates) for distortion in DISTORTIONS
        }
        print(
            f"\n{law}, n = {n}, noise {noise:g}\n{pd.DataFrame(rows).T.round(4).to_string()}",
            flush=True,
        )


if __name__ == "__main__":
    main()
