"""What Flower's own result shows of a run: its metrics, round by round."""

import csv
import json

import pytest

from server.strategies.strategy import PosteriorStrategy


def test_flower_result_holds_each_round_and_the_pooled_evaluation(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    start = PosteriorStrategy.start
    monkeypatch.setattr(PosteriorStrategy, "start", lambda *args, **kwargs: results.append(start(*args, **kwargs)))
    run = federation()
    run.run()
    with (run.folder / "rounds.csv").open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert [results[0].train_metrics_clientapp[number] for number in (1, 2)] == rows
    assert rows[1]["sites_ok"] == 4
    assert rows[1]["bytes_up"] > 0
    found = results[0].evaluate_metrics_clientapp[2]
    pooled = {
        (row["role"], row["predictor"]): row
        for row in json.loads((run.folder / "summary.json").read_text())["calibration"]
        if row["site"].startswith("pooled:")
    }
    for (role, predictor), row in pooled.items():
        for metric in ("n", "accuracy", "nll", "brier", "ece", "rms_debiased"):
            assert found[f"{role}/{predictor}/{metric}"] == row[metric]
    assert len(found) == 6 * len(pooled) > 0
