"""Recalibration of a whole run: its own part and budget, its maps, and sites that do not take part."""

import json

import numpy as np
import pandas
import pytest
from rich.console import Console
from scipy.special import entr

from fl_dpbayes.calibration.metrics.ranking import exact_auroc
from fl_dpbayes.calibration.recalibration.maps import recalibrate
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.records import load_source
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.report.page import write_report
from fl_dpbayes.run.stored_posterior import evaluate_records, predict_records
from tests.server.conftest import predictions

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

RECALIBRATED = ["recalibration={fraction=0.2, steps=12}"]


@pytest.fixture(scope="module")
def recalibrated(federations):
    run = federations(*RECALIBRATED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.federation.write_report", write_report)
        run.run()
    return run


def test_recalibrated_predictions_are_measured_everywhere_and_paid_for_beside_training(recalibrated) -> None:
    run, summary = recalibrated, recalibrated.summary()
    assert not [text for text in summary["warnings"] if "recalibrate" in text]
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    places = {"pooled:train", "pooled:held_out", "pooled:shifted", *run.scenario.sites}
    means = {"mean:train", "mean:shifted"}
    assert {site for site, predictor in rows if predictor == "recalibrated"} == places | means
    for place in places:
        # One temperature for all: the top labels stay, their confidences do not.
        before, after = rows[place, "posterior"], rows[place, "recalibrated"]
        assert after["accuracy"] == before["accuracy"]
        assert after["nll"] != before["nll"]
        assert after["epistemic"] is None
    budget = run.scenario.privacy.epsilon
    for row in summary["privacy"]:
        assert 0.999 * budget <= row["recalibration_epsilon"] <= budget
        assert 0.999 * budget <= row["epsilon"] <= budget
    for site in ("north", "south", "east", "west"):
        with run.ledger(site) as ledger:
            assert ledger.spent("recalibration").steps == 12
            assert ledger.verify() == []
    mapping = load_posterior(run.folder / "posterior.safetensors").metadata.recalibration
    assert list(mapping.parameters) == summary["recalibration"]["average"]
    units = np.array([site["n"] for site in summary["sites"] if site["role"] == "train"])
    own = np.array([parameters[0] for parameters in summary["recalibration"]["sites"].values()])
    assert mapping.parameters[0] == pytest.approx(units @ own / units.sum(), rel=1e-12)
    page = (run.folder / "report.html").read_text()
    assert "recalibrated posterior" in page
    assert "ε of recalibration" in page


def test_predict_and_evaluate_use_the_stored_map(recalibrated, tmp_path, capsys: pytest.CaptureFixture) -> None:
    run = recalibrated
    records = load_source(BuiltIn(kind="digits"), "train")
    archive, table = tmp_path / "digits.npz", tmp_path / "predictions.csv"
    np.savez(archive, features=records.features[:60], labels=records.labels[:60])
    predict_records(run.folder, archive, table, Console(quiet=True))
    stored = load_posterior(run.folder / "posterior.safetensors")
    plain = predictions(run, records.features[:60])
    written = pandas.read_csv(table).filter(like="probability_").to_numpy()
    assert np.abs(written - recalibrate(plain, stored.metadata.recalibration)).max() < 1e-6
    assert np.abs(written - plain).max() > 1e-3
    uncertainty = pandas.read_csv(table).filter(like="_uncertainty")
    assert np.abs(uncertainty["total_uncertainty"] - entr(written).sum(axis=1)).max() < 1e-4
    assert uncertainty[["aleatoric_uncertainty", "epistemic_uncertainty"]].isna().all(axis=None)
    temperature = np.exp(stored.metadata.recalibration.parameters[0])
    assert f"temperature scaling with T = {temperature:.3g}" in " ".join(capsys.readouterr().err.split())
    evaluate_records(run.folder, archive, Console(quiet=True), as_json=True)
    row = json.loads(capsys.readouterr().out)
    assert (row["predictor"], row["n"], row["epistemic"]) == ("recalibrated", 60, None)
    exact = exact_auroc(recalibrate(plain, stored.metadata.recalibration), records.labels[:60]).value
    assert row["auroc"] == pytest.approx(exact, abs=1e-12)
    assert row["auroc_bounds"] == [row["auroc"]] * 2
    costs = pandas.read_csv(run.folder / "privacy.csv")
    rows = costs[costs["purpose"] == "recalibration"]
    assert list(rows["site"]) == ["north", "south", "east", "west"]
    assert rows["round"].isna().all()
    assert list(rows["epsilon"]) == [row["recalibration_epsilon"] for row in run.summary()["privacy"]]
    assert set(costs["purpose"]) == {"training", "recalibration"}


def test_only_training_sites_are_asked_and_each_round_starts_from_the_average(federation) -> None:
    run = federation("recalibration={fraction=0.2, steps=12, rounds=3}").run()
    assert {run.site_of(message) for message in run.requests("train.recalibrate")} == {"north", "south", "east", "west"}
    records = run.asked("train.recalibrate")
    assert [record["first_step"] for record in records] == [0] * 4 + [4] * 4 + [8] * 4
    starts = [record["start"] for record in records]
    assert starts[:4] == [[0.0]] * 4
    assert len({tuple(start) for start in starts[4:8]}) == len({tuple(start) for start in starts[8:]}) == 1
    assert starts[0] != starts[4] != starts[8]


def test_with_scope_site_each_training_site_has_its_own_map_and_the_others_the_average(federation) -> None:
    run = federation("recalibration={fraction=0.2, steps=12, method='vector', scope='site'}").run()
    maps = run.summary()["recalibration"]
    used = {site: run.asked("evaluate", site)[0]["recalibration"] for site in run.scenario.sites}
    assert all(mapping["method"] == "vector" for mapping in used.values())
    for site, mapping in used.items():
        assert mapping["parameters"] == maps["sites"].get(site, maps["average"])
    assert len({tuple(mapping["parameters"]) for mapping in used.values()}) == 5


def test_site_without_budget_for_it_runs_a_prefix_and_the_run_goes_on(federation) -> None:
    run = federation(*RECALIBRATED, "recalibration.epsilon=4.0", "sites.north.epsilon=2.0").run()
    summary = run.summary()
    paid = {row["site"]: row["recalibration_epsilon"] for row in summary["privacy"]}
    assert 0 < paid["north"] <= 2.0 < paid["south"]


def test_refusing_site_is_left_out_of_the_average_with_a_warning(federation) -> None:
    run = federation(*RECALIBRATED, "recalibration.epsilon=3.0", "recalibration.clip_norm=9.0")
    path = sorted((run.folder / "sites").glob("*.toml"))[0]
    path.write_text(path.read_text().replace("max_clip_norm = 1000000.0", "max_clip_norm = 5.0"))
    run.run()
    summary = run.summary()
    assert any("north did not recalibrate: POLICY_DENIED plan.clip_norm" in text for text in summary["warnings"])
    assert set(summary["recalibration"]["sites"]) == {"south", "east", "west"}


def test_silent_sites_leave_a_run_without_recalibration(federation) -> None:
    run = federation(*RECALIBRATED)
    run.grid.change = lambda request, reply: None if request.metadata.message_type == "train.recalibrate" else reply
    soon = run.scenario.resources.model_copy(update={"round_timeout": 2.0})
    run.scenario = run.scenario.model_copy(update={"resources": soon})
    run.run()
    summary = run.summary()
    assert "north did not recalibrate: no reply in time (the same at south, east, west)." in summary["warnings"]
    assert summary["recalibration"] is None
    assert {row["predictor"] for row in summary["calibration"]} == {"last", "posterior"}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("recalibration={rounds=7}", "must divide steps"),
        ("recalibration={scope='site', rounds=2}", "nothing is averaged"),
        ("recalibration={fraction=0.9}", "leaves nothing to train on"),
        ("recalibration={method='beta'}", "recalibration: method 'beta'"),
    ],
)
def test_section_that_makes_no_sense_is_refused(override: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        load_scenario("quickstart", [override])


def test_map_that_is_mostly_noise_is_called_so_and_not_used(
    federation, tmp_path, capsys: pytest.CaptureFixture
) -> None:
    run = federation('recalibration={ scope = "site", epsilon = 0.1, steps = 20, fraction = 0.2 }', name="noisy").run()
    summary = run.summary()
    assert sum("recalibration is mostly noise" in text for text in summary["warnings"]) == 1
    assert "mostly noise" in summary["recalibration"]["noise"]
    records = load_source(BuiltIn(kind="digits"), "train")
    np.savez(tmp_path / "digits.npz", features=records.features[:9], labels=records.labels[:9])
    evaluate_records(run.folder, tmp_path / "digits.npz", Console(quiet=True), as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["predictor"] == "posterior"
    assert "mostly noise" in printed.err
