"""How often the intervals hold the truth, on simulated models whose calibration error is known."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import binom

from fl_dpbayes.calibration.bins import REPORT_BINS, Floats
from fl_dpbayes.calibration.intervals import TAILS, Interval, wilson_interval
from fl_dpbayes.calibration.metrics.scores import brier_interval, nll_interval
from fl_dpbayes.calibration.release import NoisedTable
from fl_dpbayes.calibration.rms_interval import rms_interval
from fl_dpbayes.calibration.statistics import PROBABILITY_FLOOR, from_batch
from fl_dpbayes.calibration.summarise import join_small_bins
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.run.reproduce.experiment import Cell, Experiment, Measurement, Metric, Row
from fl_dpbayes.run.reproduce.interval_coverage_figures import coverage_figures
from fl_dpbayes.run.reproduce.interval_coverage_models import (
    CONFIDENCES,
    DISTORTIONS,
    Replicates,
    binned,
    draw_replicates,
)

COUNTS = (50, 200, 624, 2000, 5000)
REPLICATES, FULL_REPLICATES = 250, 1000
# Standard deviations on each released sum: a site's noise multiplier times sqrt(3), or several sites' in squares.
NOISES = (1.0, 5.0, 20.0)
NOISED_COUNTS = (624, 5000)
NOISED_CONFIDENCES = ("Beta(.6, .6)", "top of 2, uniform", "Beta(8, 1)")
POPULATION = 400_000


def coverage_cells(seed: int, full: bool) -> list[Cell]:
    """List the cells of a seed: confidences by records, with exact sums and with noised ones.

    Args:
        seed: number of the repetition.
        full: 1000 test sets per row instead of 250.

    Returns:
        The cells; each measures every distortion.
    """
    exact = [(law, count, 0.0) for law in CONFIDENCES for count in COUNTS]
    noised = [(law, count, noise) for law in NOISED_CONFIDENCES for count in NOISED_COUNTS for noise in NOISES]
    return [
        Cell(
            f"{law} n={count} noise={noise:g}",
            seed,
            {
                "confidences": law,
                "records": count,
                "noise_std": noise,
                "replicates": FULL_REPLICATES if full else REPLICATES,
            },
        )
        for law, count, noise in (*exact, *noised)
    ]


def measure_coverage(cell: Cell, data_dir: Path | None) -> Measurement:
    """Measure coverage and width for every distortion of a cell's confidences.

    Args:
        cell: one of `coverage_cells`.
        data_dir: not used.

    Returns:
        One row per distortion.
    """
    settings = cell.settings
    streams = Streams.from_insecure_seed(cell.seed, f"interval-coverage {cell.label}")
    rows = []
    for distortion in DISTORTIONS:
        generator = streams.generator(distortion)
        law, count = settings["confidences"], settings["records"]
        drawn = draw_replicates(law, distortion, count, settings["replicates"], generator)
        values = _rms(drawn, settings["noise_std"], generator)
        if settings["noise_std"] == 0:
            population = draw_replicates(law, distortion, POPULATION, 1, generator)
            values |= _scores(drawn, population)
            if distortion == "calibrated":
                values["band"] = _band(drawn)
        sums = "exact" if settings["noise_std"] == 0 else f"noise {settings['noise_std']:g}"
        rows.append(Row(f"{law}, n = {count}, {sums}", distortion, values))
    return Measurement(tuple(rows))


def _rms(drawn: Replicates, noise_std: float, generator: np.random.Generator) -> dict[str, float | None]:
    ends, truths = [], []
    for table in binned(drawn, REPORT_BINS):
        noise = np.zeros(len(table))
        if noise_std:
            # The true sums travel along, so that bins that are joined by their noisy counts keep their truth.
            released = table[:, :3] + noise_std * generator.standard_normal((len(table), 3))
            joined, noise = join_small_bins(NoisedTable(np.hstack([released, table]), noise_std))
            released, table = joined[:, :3], joined[:, 3:]
        else:
            released = table[:, :3]
        interval = rms_interval(released, noise) if len(released) else None
        if interval is not None:
            ends.append(interval)
            squares = (table[:, 1] - table[:, 3]) ** 2 / np.maximum(table[:, 0], 1)
            truths.append(math.sqrt(squares.sum() / table[:, 0].sum()))
    variance = float((drawn.frequency * (1 - drawn.frequency)).sum(axis=1).mean())
    values: dict[str, float | None] = {"spread": math.sqrt(variance), "intervals": float(len(ends))}
    if not ends:
        return values
    low, high = np.transpose(ends)
    truth = np.array(truths)
    return values | {
        "truth": float(truth.mean()),
        "coverage": float(np.mean((low <= truth + 1e-12) & (truth <= high + 1e-12))),
        "above": float(np.mean(low > truth + 1e-12)),
        "below": float(np.mean(high < truth - 1e-12)),
        "width": float(np.mean(high - low)),
        "zero": float(np.mean(low == 0)),
    }


def _scores(drawn: Replicates, population: Replicates) -> dict[str, float | None]:
    """Return the coverage of accuracy, NLL and Brier score of the records' population (two classes)."""
    n = drawn.right.shape[1]
    accurate = [wilson_interval(float(right.sum()), n) for right in drawn.right]
    covered: dict[str, float | None] = {"accuracy": _share_holding(accurate, float(population.frequency.mean()))}
    tables = [
        from_batch(np.column_stack([p, 1 - p]), np.where(right, 0, 1))
        for p, right in zip(drawn.confidence, drawn.right, strict=True)
    ]
    for name, loss, interval in (("nll", _nll, nll_interval), ("brier", _brier, brier_interval)):
        of_right, of_wrong = loss(population.confidence), loss(1 - population.confidence)
        truth = float((population.frequency * of_right + (1 - population.frequency) * of_wrong).mean())
        shown = [ends for ends in map(interval, tables) if ends is not None]
        covered |= {name: _share_holding(shown, truth) if shown else None, f"{name}_shown": len(shown) / len(tables)}
    return covered


def _nll(p: Floats) -> Floats:
    return -np.log(np.maximum(p, PROBABILITY_FLOOR))


def _brier(p: Floats) -> Floats:
    return 2 * (1 - p) ** 2


def _share_holding(intervals: Sequence[Interval | None], truth: float) -> float:
    return float(np.mean([ends is not None and ends.low <= truth <= ends.high for ends in intervals]))


def _band(drawn: Replicates) -> float:
    """Return the share of bins that hold records whose accuracy lies in the consistency band."""
    table = binned(drawn, REPORT_BINS)
    n, confidence, right, _ = table[table[..., 0] > 0].T
    low, high = (binom.ppf(tail, n, np.minimum(confidence / n, 1)) for tail in TAILS)
    return float(np.mean((low <= right) & (right <= high)))


EXPERIMENT = Experiment(
    name="interval-coverage",
    title="How often the 95 % intervals hold the truth",
    source="own simulation; 250 test sets per row, 1000 with --full",
    metrics=(
        Metric("truth", "true RMS error"),
        Metric("coverage", "coverage", 3),
        Metric("width", "mean width"),
        Metric("zero", "holds 0", 3),
        Metric("above", "wholly above", 3),
        Metric("below", "wholly below", 3),
        Metric("spread", "sd of right answers", 1),
        Metric("accuracy", "accuracy", 3),
        Metric("nll", "NLL", 3),
        Metric("nll_shown", "NLL shown", 3),
        Metric("brier", "Brier", 3),
        Metric("band", "in band", 3),
    ),
    cells=coverage_cells,
    measure=measure_coverage,
    figures=coverage_figures,
    notes=(
        "Coverage is the share of simulated test sets whose interval of the debiased RMS error holds the true error of "
        "the bins, given the confidences; its standard error is .014 at .95, .007 with --full. `noise` is the standard "
        "deviation of a private release's noise on each sum. Accuracy, NLL and Brier are the coverages of their "
        "intervals for the mean over all records like these, NLL among the test sets that show one "
        "(`NLL shown`); `in band` is the share of bins within the reliability "
        "diagram's pointwise band.",
        "With noise the interval is on the safe side: up to all of the test sets are covered.",
        "With exact sums more than 99 % is covered mostly where hardly an answer can go wrong (a standard deviation of "
        "the number of right answers below 2.5): a handful of outcomes then carries all probability, and coverage "
        "moves in their steps.",
        "No interval of the NLL is shown where one more wrong answer could move the mean by more than .6 of the half "
        "width that the model's probabilities lead to expect: few records, or probabilities of (almost) 0. The Brier "
        "score always has one. Where they are shown both cover 93 % within three standard errors.",
    ),
)
