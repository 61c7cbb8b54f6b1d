import json

import numpy as np
import pytest

from fl_dpbayes.calibration.federation.rows import conformal_rows
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable
from fl_dpbayes.calibration.statistics import empty, from_batch
from fl_dpbayes.config.summary import parse_summary


def site(seed: int, count: int, prevalence: float):
    """Two classes whose predictions are calibrated at a prevalence of .2."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < prevalence).astype(np.int64)
    p = 1 / (1 + np.exp(-generator.normal(2.0 * labels - 1.0, 2**0.5)) * 4)
    return from_batch(np.stack([1 - p, p], axis=1), labels)


NOISED = NoisedTable(np.ones((15, SENT_COLUMNS)), 1.0)


def test_every_place_that_did_not_train_has_rows_per_predictor_and_weights() -> None:
    train, away, shifted = site(0, 4000, 0.2), site(1, 4000, 0.2), site(2, 4000, 0.8)
    rows = conformal_rows(
        [
            ("pooled:train", "train", "posterior", train),
            ("pooled:held_out", "held_out", "posterior", away),
            ("pooled:held_out", "held_out", "recalibrated", away),
            ("north", "train", "posterior", train),
            ("away", "held_out", "posterior", away),
            ("shifted", "shifted", "posterior", shifted),
            ("shifted", "shifted", "last", shifted),
        ]
    )
    assert json.loads(json.dumps(rows)) == rows
    weights = ("none", "label-shift", "label-shift-estimated")
    assert [(row["site"], row["weights"]) for row in rows] == [
        (place, name) for place in ("pooled:held_out", "away", "shifted") for name in weights
    ]
    by = {(row["site"], row["weights"]): row for row in rows}
    assert by["away", "none"]["coverage"] == pytest.approx(0.9, abs=0.03)
    assert by["shifted", "none"]["interval"][1] < 0.9  # four times the prevalence: unweighted sets miss
    for name in weights[1:]:
        assert by["shifted", name]["coverage"] == pytest.approx(0.9, abs=0.03)
        assert by["shifted", name]["size"] > 0
    assert (by["away", "none"]["n"], by["away", "none"]["n_calibration"]) == (4000, 4000)


def test_noised_or_missing_sums_have_no_rows_limit() -> None:
    exact = site(3, 100, 0.5)
    assert conformal_rows([("pooled:train", "train", "last", NOISED), ("away", "held_out", "last", exact)]) == []
    assert conformal_rows([("pooled:train", "train", "last", exact), ("away", "held_out", "last", NOISED)]) == []
    assert conformal_rows([("pooled:train", "train", "last", exact), ("away", "held_out", "last", empty(2))]) == []
    assert conformal_rows([("away", "held_out", "last", exact)]) == []


def test_class_that_training_sites_lack_leaves_no_weights_limit() -> None:
    one_class = from_batch([[0.3, 0.7]] * 20, [1] * 20)
    rows = conformal_rows(
        [("pooled:train", "train", "last", one_class), ("away", "held_out", "last", site(4, 50, 0.5))]
    )
    assert [row["weights"] for row in rows] == ["none"]


def test_run_holds_rows_of_its_exact_sums(federation) -> None:
    run = federation()
    run.run()
    summary = json.loads((run.folder / "summary.json").read_text())
    places = {(row["site"], row["predictor"], row["weights"]) for row in summary["conformal"]}
    sites = ("pooled:held_out", "pooled:shifted", "held-out", "noisy-scanner", "rotated")
    assert places >= {(place, predictor, "none") for place in sites for predictor in ("posterior", "last")}
    assert not any("estimated" in weights for *_, weights in places)  # ten classes
    assert all(1 <= row["size"] + 1 <= 11 and row["n_calibration"] > 0 for row in summary["conformal"])
    parsed = parse_summary(summary)
    assert len(parsed.conformal) == len(summary["conformal"])
    assert parsed.calibration[0].accuracy_at_coverage["0.8"] == summary["calibration"][0]["accuracy_at_coverage"]["0.8"]


def test_noised_run_has_no_rows(federation) -> None:
    run = federation("evaluation={release='noised', noise_multiplier=2.0}", "simulation.cohort_epsilon=8")
    run.run()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["conformal"] == []
    row = summary["calibration"][0]
    for metric in ("aurc", "brier_terms", "accuracy_at_coverage", "net_benefit", "auroc_bounds", "ece_10"):
        assert row[metric] is None
