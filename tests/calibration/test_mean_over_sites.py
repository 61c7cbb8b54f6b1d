"""The mean over sites beside the pooled result, in rows that no reader takes for a site."""

import json

import pytest

from fl_dpbayes.calibration.federation.rows import mean_rows
from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.run_files import read_csv


def row(site, role="train", predictor="posterior", **values):
    return {"site": site, "role": role, "predictor": predictor, "samples": 5, "n": 10, "intervals": {"ece": [0, 1]}} | {
        "ece": 0.2, "nll_clipped": 3, "auroc": 0.5, "terms": {"a": 1.0}, "ece_if_calibrated_high": 0.5,
    } | values  # fmt: skip


def test_mean_counts_each_site_the_same() -> None:
    rows = mean_rows(
        [row("a", n=1000, ece=0.2), row("b", n=10, ece=0.4), row("c", "held_out"), row("b", predictor="last")]
    )
    assert rows == [
        {"site": "mean:train", "role": "train", "predictor": "posterior", "samples": 5, "n": 1010,
         "ece": pytest.approx(0.3), "nll_clipped": None, "auroc": 0.5, "terms": None, "intervals": {}}
    ]  # fmt: skip


def test_bounds_are_averaged_end_by_end() -> None:
    rows = mean_rows([row("a", auroc_bounds=[0.4, 0.6]), row("b", auroc_bounds=[0.6, 1.0])])
    assert rows[0]["auroc_bounds"] == pytest.approx([0.5, 0.8])
    assert mean_rows([row("a", auroc_bounds=[0.4, 0.6]), row("b", auroc_bounds=None)])[0]["auroc_bounds"] is None


def test_what_is_undefined_at_one_site_has_no_mean() -> None:
    assert mean_rows([row("a", auroc=None), row("b")])[0]["auroc"] is None


def test_a_run_shows_means_and_takes_none_for_a_site(federation) -> None:
    run = federation()
    run.run()
    summary = json.loads((run.folder / "summary.json").read_text())
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    trained = [row for row in summary["calibration"] if row["role"] == "train" and ":" not in row["site"]]
    last = [row for row in trained if row["predictor"] == "last"]
    assert len(last) >= 2
    mean = rows["mean:train", "last"]
    assert mean["ece"] == pytest.approx(sum(row["ece"] for row in last) / len(last))
    assert mean["n"] == rows["pooled:train", "last"]["n"]
    # One site has no mean.
    assert ("mean:held_out", "last") not in rows
    assert all(":" not in site["name"] and site["test_n"] for site in summary["sites"])
    assert [line["site"] for line in read_csv(run.folder / "calibration.csv")].count("mean:train") == 2
    without = {**summary, "calibration": [row for row in summary["calibration"] if row is not mean]}
    assert str(answer(summary)) == str(answer(without))
    assert all(not place.mean_of_sites for place in parse_summary(summary).places)
