"""How often the intervals of noised results hold the truth, and how wide they are."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit

from fl_dpbayes.calibration.intervals import Measured
from fl_dpbayes.calibration.noised_counts import (
    CODE,
    COUNT_BINS,
    NoisedCounts,
    coded_counts,
    count_bin,
)
from fl_dpbayes.calibration.noised_measures import (
    THRESHOLDS,
    TWO_CLASS_MEASURES,
    accuracy,
    net_benefit,
)
from fl_dpbayes.calibration.summarise import noised_rms

DRAWS = 100
THRESHOLD = 0.2


def _net_benefit(table: NoisedCounts) -> Measured | None:
    point = net_benefit(table, THRESHOLD)
    return None if point is None else Measured(point.model, point.interval)


MEASURES: dict[str, Callable[[NoisedCounts], Measured | None]] = {
    "accuracy": accuracy,
    "rms_debiased": noised_rms,
    "net benefit": _net_benefit,
    **TWO_CLASS_MEASURES,
}


def patients(count: int, generator: np.random.Generator, slope: float):
    """Draw risks, and outcomes whose log odds are `slope` times those of the risks, less .3."""
    score = generator.normal(-1.5, 1.3, count)
    true = expit(slope * score - 0.3 * (slope != 1))
    return expit(score), true, (generator.random(count) < true).astype(int)


def truth(slope: float) -> dict[str, float]:
    p, true, _ = patients(400_000, np.random.default_rng(9), slope)
    order = np.argsort(p)
    cumulated = np.cumsum(1 - true[order])
    confidence = np.maximum(p, 1 - p)
    right = np.where(p >= 0.5, true, 1 - true)
    bins = (confidence * 60).astype(int)
    gaps = np.bincount(bins, confidence - right)
    treated = p >= THRESHOLD
    harm = THRESHOLD / (1 - THRESHOLD)
    return {
        "accuracy": right.mean(),
        "rms_debiased": np.sqrt((gaps**2 / np.maximum(np.bincount(bins), 1)).sum() / len(p)),
        "net benefit": (treated * (true - (1 - true) * harm)).mean(),
        "nll": -(true * np.log(p) + (1 - true) * np.log(1 - p)).mean(),
        "brier": 2 * (true * (1 - p) ** 2 + (1 - true) * p**2).mean(),
        "auroc": (true[order] @ cumulated) / (true.sum() * (1 - true).sum()),
        "event_rate": true.mean(),
        "mean_risk": p.mean(),
        "calibration_intercept": _intercept(p, true),
        "calibration_slope": slope,
    }


def _intercept(p: np.ndarray, true: np.ndarray) -> float:
    grid = np.linspace(-3, 3, 601)
    log_odds = np.log(p / (1 - p))[:100_000]
    expected = np.array([expit(a + log_odds).mean() for a in grid])
    return float(np.interp(true[:100_000].mean(), expected, grid))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "noise", "slope"),
    [(200, 1.45, 1.0), (500, 2.57, 1.0), (500, 0.82, 0.6), (1000, 2.57, 0.6)],
)
def test_intervals_hold_the_truth_under_noise_and_sampling_and_are_not_idle(
    count: int, noise: float, slope: float
) -> None:
    generator = np.random.default_rng(count)
    expected = truth(slope)
    held = dict.fromkeys(MEASURES, 0)
    widths: dict[str, list[float]] = {name: [] for name in MEASURES}
    for _ in range(DRAWS):
        p, _, events = patients(count, generator, slope)
        sums = coded_counts(np.column_stack([1 - p, p]), events).sums
        sums = sums + noise * generator.standard_normal(sums.shape)
        table = NoisedCounts(sums, noise, 2)
        for name, measure in MEASURES.items():
            measured = measure(table)
            interval = None if measured is None else measured.interval
            low, high = interval or (-np.inf, np.inf)
            held[name] += low <= expected[name] <= high
            widths[name].append(high - low)
    least = DRAWS * 0.95 - 3 * np.sqrt(DRAWS * 0.95 * 0.05)
    assert {name: n for name, n in held.items() if n < least} == {}
    # Ten standard deviations of the same figure of exact sums, or so.
    most = {"auroc": 4.0, "calibration_intercept": 14.0, "calibration_slope": 32.0}
    idle = {
        name: float(np.median(widths[name]))
        for name in MEASURES
        if np.median(widths[name]) > most.get(name, 7.0) * (1 + noise) / count**0.5 / 2
    }
    assert idle == {}


def test_thresholds_are_edges_of_bins_so_that_who_is_treated_is_known() -> None:
    assert THRESHOLDS[:5] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])
    generator = np.random.default_rng(5)
    p, _, events = patients(800, generator, 1.0)
    table = NoisedCounts(coded_counts(np.column_stack([1 - p, p]), events).sums, 0.0, 2)
    for threshold in THRESHOLDS:
        point = net_benefit(table, threshold)
        treated = p >= threshold
        harm = threshold / (1 - threshold)
        gained = (events[treated].sum() - harm * (1 - events[treated]).sum()) / len(p)
        assert point is not None
        assert point.model == pytest.approx(gained, abs=1e-9)


def test_values_are_unbiased_under_the_noise_of_one_table() -> None:
    generator = np.random.default_rng(6)
    p, _, events = patients(500, generator, 1.0)
    exact = coded_counts(np.column_stack([1 - p, p]), events).sums
    names = ("accuracy", "nll", "brier", "auroc", "calibration_intercept")
    of_exact = {name: MEASURES[name](NoisedCounts(exact, 0.0, 2)).value for name in names}
    values: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(60):
        noisy = exact + 1.45 * generator.standard_normal(exact.shape)
        for name in names:
            values[name].append(MEASURES[name](NoisedCounts(noisy, 1.45, 2)).value)
    for name in names:
        drawn = np.array(values[name])
        off = abs(drawn.mean() - of_exact[name])
        assert off < 4 * drawn.std() / np.sqrt(len(drawn)), name


@pytest.mark.parametrize(("mean", "deviation"), [(-1.0, 1.0), (-1.0, 0.5), (-3.0, 1.0), (0.0, 2.0)])
def test_the_slope_is_that_of_the_patients_and_not_of_the_middles_of_bins(
    mean: float, deviation: float
) -> None:
    scores = np.random.default_rng(1).normal(mean, deviation, 400_000)
    counts = np.zeros((COUNT_BINS, 2))
    np.add.at(counts[:, 0], count_bin(expit(scores)), expit(-scores))
    np.add.at(counts[:, 1], count_bin(expit(scores)), expit(scores))
    measured = MEASURES["calibration_slope"](NoisedCounts(CODE @ counts, 0.0, 2))
    assert measured is not None
    assert measured.value == pytest.approx(1, abs=0.008)


@pytest.mark.parametrize("count", [1_000, 100_000, 1_000_000])
def test_a_slope_lies_within_its_interval_however_many_patients_there_are(count: int) -> None:
    generator = np.random.default_rng(count)
    for _ in range(10):
        p, _, events = patients(count, generator, 1.0)
        sums = coded_counts(np.column_stack([1 - p, p]), events).sums
        sums = sums + 2.57 * generator.standard_normal(sums.shape)
        measured = MEASURES["calibration_slope"](NoisedCounts(sums, 2.57, 2))
        assert measured is not None
        assert measured.interval is not None
        low, high = measured.interval
        assert low < measured.value < high
        # Four standard errors of the same slope of exact sums, which is 2.1 / sqrt(n).
        assert 4 * 1.5 < (high - low) * count**0.5 < 4 * 5.0


@pytest.mark.parametrize("risk", [0.0105, 0.5, 1.0])
def test_patients_of_one_bin_tell_no_slope(risk: float) -> None:
    events = np.arange(1000) % 100 == 0
    table = coded_counts(np.tile([1 - risk, risk], (1000, 1)), events.astype(np.int64))
    noise = 1e-9 * np.random.default_rng(2).standard_normal(table.sums.shape)
    for sums, noise_std in ((table.sums, 0.0), (table.sums + noise, 1e-9)):
        slope = MEASURES["calibration_slope"](NoisedCounts(sums, noise_std, 2))
        assert slope is None or slope.interval is None
