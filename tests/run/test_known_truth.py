"""The scenario with known truth runs whole, and its run can be used like any other."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.config.sources import Logistic2D, Radiographs
from fl_dpbayes.data.records import load_source
from fl_dpbayes.data.simulation import run_identifier
from fl_dpbayes.data.site import load_site
from fl_dpbayes.run.simulate import simulate
from fl_dpbayes.run.stored_posterior import evaluate_records, predict_records

SHORT = [
    "training={rounds=2, steps_per_round=20, burn_in=20, thinning=10}",
    "privacy.sampling_rate=1.0",
    "simulation.insecure_seed=5",
]


def run_of(folder: Path, *settings: str) -> Path:
    return simulate(load_scenario("known-truth", [*SHORT, *settings]), "inline", folder, None, Console(quiet=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return run_of(tmp_path_factory.mktemp("runs") / "known-truth")


@pytest.mark.slow
def test_every_site_is_measured_and_knows_its_truth(run):
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    roles = {site["name"]: site["role"] for site in summary["sites"]}
    assert list(roles.values()) == ["train"] * 4 + ["held_out", "shifted"]
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    for name in roles:
        assert rows[name, "posterior"]["accuracy"] > 0.6
    for path in sorted((run / "sites").glob("*.toml")):
        test = load_site(read_site_file(path)).test
        assert test.truth is not None
        spread = np.sqrt((test.truth[:, 1] * test.truth[:, 0]).sum())
        assert abs(test.labels.sum() - test.truth[:, 1].sum()) < 4 * spread


@pytest.mark.slow
def test_its_posterior_predicts_and_is_evaluated_on_new_records(run, tmp_path, capsys):
    records = load_source(Logistic2D(records=6, test_records=300, seed=9), "test")
    np.savez(tmp_path / "new.npz", features=records.features, labels=records.labels)
    predict_records(run, tmp_path / "new.npz", None, Console(quiet=True))
    assert len(capsys.readouterr().out.splitlines()) == 301
    evaluate_records(run, tmp_path / "new.npz", Console(quiet=True), as_json=True)
    assert json.loads(capsys.readouterr().out)["n"] == 300


@pytest.mark.slow
def test_radiographs_take_the_points_place(tmp_path):
    run = run_of(
        tmp_path / "radiographs",
        "data.source={kind='radiographs', records=600, test_records=60, side=16}",
        "model.kind=cnn",
        "privacy.delta=1e-3",
    )
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert {row["site"] for row in summary["calibration"]} >= {f"site-{number}" for number in range(1, 7)}


def test_a_seeded_run_is_named_by_its_source() -> None:
    scenario = load_scenario("known-truth", SHORT)
    assert run_identifier(scenario) == run_identifier(load_scenario("known-truth", SHORT))
    assert run_identifier(scenario) != run_identifier(load_scenario("known-truth", [*SHORT, "data.source.seed=2"]))


def test_another_kind_of_source_keeps_the_common_keys() -> None:
    source = load_scenario("known-truth", ["data.source.kind=radiographs"]).data.source
    assert source == Radiographs(records=12_000, sites=6, heterogeneity=0.5, seed=1)
