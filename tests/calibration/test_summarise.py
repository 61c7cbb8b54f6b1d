import json

import numpy as np
import pytest
from scipy.special import expit

from fl_dpbayes.calibration.metrics import errors, scores
from fl_dpbayes.calibration.noised_counts import (
    NoisedCounts,
    coded_counts,
    release_counts,
    without_noise,
)
from fl_dpbayes.calibration.noised_measures import CLEAR, joined_bins
from fl_dpbayes.calibration.records import METRICS
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.summarise import says_nothing, summarise, summarise_noised
from fl_dpbayes.report.run_files import CALIBRATION_COLUMNS
from tests.counted import empty

KEYS = {
    "n",
    "accuracy",
    "nll",
    "brier",
    "ece",
    "ece_if_calibrated",
    "rms_debiased",
    "mce",
    "ace",
    "sce",
    "auroc",
}


def random_statistics(seed=41, count=300, classes=3):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(classes), count)
    return from_batch(
        probabilities, np.array([generator.choice(classes, p=row) for row in probabilities])
    )


def test_row_holds_every_metric_as_plain_json():
    statistics = random_statistics()
    row = summarise(statistics, np.random.default_rng(0)).as_row()
    assert row.keys() >= KEYS | {"intervals"}
    assert json.loads(json.dumps(row)) == row
    assert row["n"] == 300
    assert row["ece"] == errors.ece(statistics)
    assert row["nll"] == scores.nll(statistics).value
    assert row["aleatoric"] == pytest.approx(statistics.aleatoric / 300)
    assert set(row["intervals"]) == {"accuracy", "nll", "brier", "rms_debiased"}
    for metric, (low, high) in row["intervals"].items():
        assert low <= row[metric] <= high
    # More than two classes have none of what needs two.
    for metric in ("ece_binary", "calibration_intercept", "calibration_slope", "net_benefit"):
        assert row[metric] is None
    for metric in ("auroc", "aurc"):
        low, high = row[f"{metric}_bounds"]
        assert low <= row[metric] <= high
    for bins in (10, 20):
        assert row[f"ece_{bins}"] == errors.ece(statistics, bins)


def test_without_records_all_undefined_and_of_one_most_limit():
    row = summarise(empty(4), np.random.default_rng(0)).as_row()
    assert (row.pop("n"), row.pop("intervals"), set(row.values())) == (0, {}, {None})
    summary = summarise(from_batch([[0.7, 0.3]], [0]), np.random.default_rng(0))
    assert summary.ece == pytest.approx(0.3)
    assert summary.auroc is None
    assert set(summary.intervals) == {"accuracy", "rms_debiased"}


def test_two_classes_have_a_line_and_a_decision_curve():
    row = summarise(random_statistics(classes=2), np.random.default_rng(0)).as_row()
    for metric in ("calibration_intercept", "calibration_slope"):
        low, high = row["intervals"][metric]
        assert low < row[metric] < high
    assert set(row["net_benefit"][0]) == {"threshold", "counts", "model", "interval", "all", "none"}
    assert row["ece_binary"] is not None


def draw(generator, count, gap, confidences=(0.55, 0.62, 0.68, 0.75, 0.82, 0.88, 0.95)):
    confidence = generator.choice(confidences, count)
    right = generator.random(count) < confidence - gap
    return np.stack([confidence, 1 - confidence], axis=1), np.where(right, 0, 1)


def released(records, noise_multiplier, generator):
    probabilities, _ = records
    (table,) = release_counts(
        [coded_counts(*records)],
        max_records_per_unit=1,
        noise_multiplier=noise_multiplier,
        generator=generator,
        tables_of_a_record=1,
    )
    return NoisedCounts(table.sums, table.noise_std, classes=probabilities.shape[1])


def test_vanishing_noise_gives_the_exact_summary_limit():
    generator = np.random.default_rng(61)
    log_odds = generator.normal(-1, 1.3, 20_000)
    p = 1 / (1 + np.exp(-log_odds))
    records = np.column_stack([1 - p, p]), (generator.random(len(p)) < p**1.2).astype(int)
    exact = summarise(from_batch(*records), np.random.default_rng(0))
    noisy = summarise_noised(released(records, 1e-9, generator), np.random.default_rng(0))
    assert noisy.cannot_tell == ()
    assert noisy.n == exact.n
    assert noisy.accuracy == pytest.approx(exact.accuracy, abs=1e-9)
    # What is left is the width of bins: .45 in log odds at most where records are. Pairs within a
    # bin are ties of the AUROC, which makes it smaller.
    assert noisy.auroc < exact.auroc
    for metric, width in {
        "nll": 2e-3,
        "brier": 2e-3,
        "auroc": 3e-3,
        "rms_debiased": 3e-3,
        "calibration_intercept": 1e-2,
        "calibration_slope": 1e-2,
    }.items():
        assert getattr(noisy, metric) == pytest.approx(getattr(exact, metric), abs=width), metric
    for metric in ("accuracy", "nll", "brier", "calibration_intercept", "calibration_slope"):
        low, high = noisy.intervals[metric]
        exact_low, exact_high = exact.intervals[metric]
        assert (high - low) / (exact_high - exact_low) == pytest.approx(1, abs=0.1), metric
    by_threshold = {round(point.threshold, 6): point for point in exact.net_benefit}
    for point in noisy.net_benefit:
        exact_point = by_threshold[round(point.threshold, 6)]
        assert point.model == pytest.approx(exact_point.model, abs=1e-9)
        assert point.all == pytest.approx(exact_point.all, abs=1e-9)
        assert point.interval == pytest.approx(exact_point.interval, abs=2e-3)


def test_more_than_two_classes_tell_of_the_top_label_alone():
    statistics = random_statistics(count=3000)
    exact = summarise(statistics, np.random.default_rng(0))
    noisy = summarise_noised(without_noise(statistics), np.random.default_rng(0))
    assert noisy.accuracy == pytest.approx(exact.accuracy)
    assert noisy.rms_debiased == pytest.approx(exact.rms_debiased, abs=0.01)
    assert noisy.cannot_tell == ()
    for metric in ("nll", "brier", "auroc", "calibration_slope", "net_benefit"):
        assert getattr(noisy, metric) is None


@pytest.mark.slow
def test_a_calibrated_model_seldom_exceeds_what_calibration_would_show_with_the_release_noise():
    generator = np.random.default_rng(62)
    exceeds = 0
    for _ in range(100):
        summary = summarise_noised(released(draw(generator, 700, 0.0), 1.5, generator), generator)
        exceeds += summary.ece > summary.ece_if_calibrated_high
    assert exceeds / 100 <= 0.05 + 3 * np.sqrt(0.95 * 0.05 / 100)


def test_hidden_by_noise_or_empty_cannot_tell_limit():
    nothing = np.zeros((0, 2)), np.zeros(0, np.int64)
    assert len(joined_bins(released(nothing, 1e-9, np.random.default_rng(0))).sums) == 0
    for multiplier in (1e-9, 50.0):
        table = released(nothing, multiplier, np.random.default_rng(64))
        summary = summarise_noised(table, np.random.default_rng(0))
        assert set(summary.cannot_tell) >= {"accuracy", "rms_debiased", "nll", "auroc"}
        assert summary.accuracy is None
        assert summary.nll is None
        assert summary.net_benefit is None


def test_cannot_tell_is_said_of_intervals_as_wide_as_the_metric_allows_and_of_open_ones():
    for key, width in {"auroc": 0.25, "accuracy": 0.25, "calibration_slope": 1.0}.items():
        metric = METRICS[key]
        assert says_nothing(metric, None)
        assert says_nothing(metric, (None, 0.5))
        assert says_nothing(metric, (0.0, width))
        assert not says_nothing(metric, (0.0, width - 0.01))
    # What noised sums do not tell has no width of its own.
    assert not says_nothing(METRICS["mce"], (0.0, 1.0))


def test_joined_bins_keep_every_record_and_stand_clear():
    generator = np.random.default_rng(65)
    table = released(draw(generator, 500, 0.0), 1.0, generator)
    joined = joined_bins(table)
    assert joined.sums[:, 0].sum() == pytest.approx(table.records)
    assert (joined.sums[:, 0] > 1).all()
    assert len(joined.sums) > 2
    assert CLEAR * np.sqrt(2) * joined.noise_std.max() < 3 * joined.sums[:, 0].max()


def test_columns_of_calibration_csv_golden():
    names = [
        "site",
        "role",
        "predictor",
        "n",
        "accuracy",
        "nll",
        "brier",
        "ece",
        "rms_debiased",
        "mce",
        "ace",
        "sce",
        "auroc",
        "ece_10",
        "ece_20",
        "ece_equal_mass",
        "ece_binary",
        "aurc",
        "aurc_excess",
        "calibration_intercept",
        "calibration_slope",
        "ece_if_calibrated",
        "ece_if_calibrated_high",
        "ece_true",
        "rms_true",
        "epistemic",
        "aleatoric",
    ]
    with_ends = names[4 : names.index("ece_if_calibrated")]
    assert list(CALIBRATION_COLUMNS) == names + [
        f"{metric}_{end}" for metric in with_ends for end in ("low", "high")
    ]


@pytest.mark.parametrize(
    ("count", "noise_std", "tells"), [(0, 3.7, 0), (50, 0.6, 0), (50, 3.7, 0), (1000, 3.7, 10)]
)
def test_no_figure_stands_beside_cannot_tell(count: int, noise_std: float, tells: int) -> None:
    generator = np.random.default_rng(count)
    told = 0
    for _ in range(10):
        p = expit(generator.normal(-1, 1, count))
        events = (generator.random(count) < p).astype(np.int64)
        sums = coded_counts(np.column_stack([1 - p, p]), events).sums
        sums = sums + noise_std * generator.standard_normal(sums.shape)
        row = summarise_noised(NoisedCounts(sums, noise_std, 2), np.random.default_rng(0))
        assert {key for key in row.cannot_tell if getattr(row, key) is not None} == set()
        assert ("rms_debiased" in row.cannot_tell) == ("ece" in row.cannot_tell)
        assert (row.ece is None) == (row.ece_if_calibrated is None)
        told += row.ece is not None
    # At 50 patients a calibrated model had an ECE of up to 44 points.
    assert told == tells
