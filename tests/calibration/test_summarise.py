import json

import numpy as np
import pytest

from fl_dpbayes.calibration import errors, scores
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
    assert row["nll"] == scores.nll(statistics)
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
