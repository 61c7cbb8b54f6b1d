import json
from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.calibration.bins import coarsen
from fl_dpbayes.calibration.metrics.errors import reliability_bins
from fl_dpbayes.calibration.statistics import empty, from_batch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "calibration.json").read_text())


def test_sklearn_curve_golden():
    case = GOLDEN["sklearn_curve"]
    p = np.array(case["p"])
    table = coarsen(from_batch(np.stack([1 - p, p], axis=1), case["y"]).class_wise[1], case["bins"])
    assert table[:, 2] / table[:, 0] == pytest.approx(case["frequency"], abs=1e-12)
    assert table[:, 1] / table[:, 0] == pytest.approx(case["confidence"], abs=1e-12)


def test_rows_by_hand():
    rows = reliability_bins(from_batch([[0.9, 0.1], [0.98, 0.02], [0.3, 0.7]], [0, 1, 1]), 10)
    assert [row.n for row in rows] == [0] * 7 + [1, 0, 2]
    assert (rows[9].low, rows[9].high) == (0.9, 1.0)
    assert rows[9].confidence == pytest.approx(0.94)
    assert rows[9].accuracy == 0.5
    assert rows[7].as_row() | {"confidence": 0.7} == {
        "low": 0.7,
        "high": 0.8,
        "n": 1,
        "confidence": 0.7,
        "accuracy": 1.0,
        "band_low": 0.0,
        "band_high": 1.0,
    }


def test_without_records_every_bin_is_undefined_limit():
    rows = reliability_bins(empty(2))
    assert len(rows) == 15
    assert {(row.n, row.confidence, row.accuracy, row.band_low, row.band_high) for row in rows} == {
        (0, None, None, None, None)
    }


def test_band_of_certain_predictions_is_certain_limit():
    last = reliability_bins(from_batch([[1.0, 0.0]] * 4, [0, 0, 0, 1]))[-1]
    assert (last.band_low, last.band_high, last.accuracy) == (1.0, 1.0, 0.75)


def test_band_holds_calibrated_accuracies():
    generator = np.random.default_rng(31)
    outside = bins = 0
    for _ in range(60):
        p = generator.uniform(0.5, 1, 2000)
        statistics = from_batch(np.stack([p, 1 - p], axis=1), np.where(generator.random(2000) < p, 0, 1))
        for row in reliability_bins(statistics):
            if row.n:
                bins += 1
                outside += not row.band_low <= row.accuracy <= row.band_high
    assert outside / bins < 0.05 + 3 * np.sqrt(0.05 * 0.95 / bins)
    assert outside / bins > 0.02
