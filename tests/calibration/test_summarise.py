import json

import numpy as np
import pytest

from fl_dpbayes.calibration.metrics import errors, scores
from fl_dpbayes.calibration.release import NoisedTable, noised_table, top_label_counts
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.summarise import join_small_bins, summarise, summarise_noised
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


def test_vanishing_noise_gives_the_exact_summary_limit():
    records = draw(np.random.default_rng(61), 3000, 0.1)
    exact = summarise(from_batch(*records), np.random.default_rng(0))
    table = noised_table(top_label_counts(*records, 15), 1e-9, np.random.default_rng(0))
    noisy = summarise_noised(table, np.random.default_rng(0))
    for metric in ("n", "accuracy", "ece", "rms_debiased"):
        assert getattr(noisy, metric) == pytest.approx(getattr(exact, metric), abs=1e-6)
    assert noisy.ece_if_calibrated == pytest.approx(exact.ece_if_calibrated, rel=0.1)
    assert noisy.intervals["accuracy"] == pytest.approx(exact.intervals["accuracy"], abs=1e-6)
    assert noisy.nll is None


@pytest.mark.slow
def test_a_calibrated_model_seldom_exceeds_what_calibration_would_show_with_the_release_noise():
    generator = np.random.default_rng(62)
    exceeds = 0
    for _ in range(100):
        exact = top_label_counts(*draw(generator, 700, 0.0), 15)
        summary = summarise_noised(noised_table(exact, 1.0, generator), generator)
        exceeds += summary.ece > summary.ece_if_calibrated_high
    assert exceeds / 100 <= 0.05 + 3 * np.sqrt(0.95 * 0.05 / 100)


def test_hidden_by_noise_or_empty_undefined_limit():
    joined, noise = join_small_bins(NoisedTable(np.zeros((15, 3)), 0.0))
    assert (joined.shape, noise.shape) == ((0, 3), (0,))
    table = NoisedTable(np.random.default_rng(64).normal(0, 50.0, (15, 3)), 50.0)
    summary = summarise_noised(table, np.random.default_rng(0))
    assert summary.accuracy is None
    assert summary.rms_debiased is None
    assert summary.intervals == {}


def test_joined_bins_keep_every_record():
    generator = np.random.default_rng(65)
    table = noised_table(top_label_counts(*draw(generator, 500, 0.0), 15), 1.0, generator)
    joined, noise = join_small_bins(table)
    np.testing.assert_allclose(joined.sum(axis=0), table.sums.sum(axis=0))
    assert (noise**2).sum() == pytest.approx(15 * table.noise_std**2)
    assert (joined[:, 0] > 5 * noise).all()


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
