import json

import numpy as np
import pytest

from fl_dpbayes.calibration.metrics import errors, scores
from fl_dpbayes.calibration.statistics import empty, from_batch, merge
from fl_dpbayes.calibration.summarise import summarise

KEYS = {"n", "accuracy", "nll", "brier", "ece", "ece_if_calibrated", "rms_debiased", "mce", "ace", "sce", "auroc"}


def random_statistics(seed=41, count=300, classes=3):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(classes), count)
    return from_batch(probabilities, np.array([generator.choice(classes, p=row) for row in probabilities]))


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


def test_without_records_all_undefined_limit():
    row = summarise(empty(4), np.random.default_rng(0)).as_row()
    assert row.pop("n") == 0
    assert row.pop("intervals") == {}
    assert set(row.values()) == {None}


def test_one_record_limit():
    summary = summarise(from_batch([[0.7, 0.3]], [0]), np.random.default_rng(0))
    assert summary.ece == pytest.approx(0.3)
    assert summary.auroc is None
    assert set(summary.intervals) == {"accuracy", "rms_debiased"}


def test_summary_of_merged_sites_is_that_of_the_pool():
    sites = [random_statistics(seed, count) for seed, count in ((1, 50), (2, 120))]
    first = summarise(merge(*sites), np.random.default_rng(0)).as_row()
    second = summarise(merge(*reversed(sites)), np.random.default_rng(0)).as_row()
    assert first == second


def test_two_classes_have_a_line_and_a_decision_curve():
    row = summarise(random_statistics(classes=2), np.random.default_rng(0)).as_row()
    assert json.loads(json.dumps(row)) == row
    for metric in ("calibration_intercept", "calibration_slope"):
        low, high = row["intervals"][metric]
        assert low < row[metric] < high
    assert [point["threshold"] for point in row["net_benefit"]] == [step / 20 for step in range(1, 20)]
    assert set(row["net_benefit"][0]) == {"threshold", "model", "interval", "all", "none"}
    assert row["ece_binary"] is not None


def test_more_classes_have_none_of_what_needs_two():
    row = summarise(random_statistics(classes=3), np.random.default_rng(0)).as_row()
    for metric in ("ece_binary", "calibration_intercept", "calibration_slope", "net_benefit"):
        assert row[metric] is None
    assert sum(row["brier_terms"].values()) - 2 * (
        row["brier_terms"]["resolution"] + row["brier_terms"]["within_covariance"]
    ) == pytest.approx(row["brier"], abs=1e-12)
    assert set(row["accuracy_at_coverage"]) == {"0.8", "0.9", "0.95"}
    for metric in ("auroc", "aurc"):
        low, high = row[f"{metric}_bounds"]
        assert low <= row[metric] <= high
    for bins in (10, 20):
        assert row[f"ece_{bins}"] == errors.ece(random_statistics(classes=3), bins)
