"""A paper's table is a study: its file names cells and columns that exist, and its values stand beside ours."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
import torchvision
from rich.console import Console
from scipy.special import expit

from fl_dpbayes.config import training_plan
from fl_dpbayes.config.data import DataSpec
from fl_dpbayes.config.scenario import Scenario, scenario_folder
from fl_dpbayes.config.study_file import load_study, shipped_papers, study_of
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.privacy import pld_epsilon, solve_plan
from fl_dpbayes.study import study as engine
from fl_dpbayes.study.grid import study_cells
from fl_dpbayes.study.table import paper_table

ROOT = Path(__file__).parents[2]


def content(name: str) -> dict[str, Any]:
    return tomllib.loads(
        (scenario_folder() / "papers" / f"{name}.toml").read_text(encoding="utf-8")
    )


def measures(scenario: Scenario, site: str, predictor: str) -> bool:
    """Say whether a run of the scenario has a row of this predictor at this place."""
    kind, _, role = site.partition(":")
    spec = scenario.sites.get(site)
    if spec is None and not (
        kind in ("pooled", "mean") and any(one.role == role for one in scenario.sites.values())
    ):
        return False
    if predictor == "recalibrated":
        return scenario.recalibration is not None
    return predictor in ("last", "posterior") or (
        predictor == "prior_corrected" and bool(spec and spec.prevalence)
    )


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", shipped_papers())
def test_every_published_value_names_a_cell_and_a_place_that_exist(name: str, full: bool) -> None:
    study = load_study(name, full=full)
    cells = study_cells(study)
    assert study.paper.source
    assert (len({cell.scenario.seed for cell in cells}) > 1) == full or not study.published
    for labels, column, _ in study.published:
        axes = {axis: label for axis, label in labels.items() if axis not in ("predictor", "site")}
        named = [cell for cell in cells if axes.items() <= cell.labels.items()]
        assert named, (labels, column)
        assert all(
            measures(cell.scenario, labels["site"], labels["predictor"]) for cell in named
        ), labels
    for cell in cells:
        # A variant changes keys, so a clip norm of the private cells would stay.
        if not cell.scenario.sampler.is_private and "clip only" not in cell.title:
            assert cell.scenario.privacy.clip_norm is None, cell.title


def test_a_value_stands_beside_the_mean_over_seeds_of_what_it_leaves_open() -> None:
    axes = {"seed": [1, 2], "privacy": {"epsilon": [1.0, 2.0]}, "partition": {"alpha": [0.5, 9.0]}}
    values = [{"privacy": {"epsilon": 1.0}, "ece": 0.2, "accuracy": 0.9}, {"site": "x", "nll": 1}]
    digits = tomllib.loads((scenario_folder() / "digits.toml").read_text(encoding="utf-8"))
    study = study_of({**digits, "axes": axes, "paper": {"source": "p", "values": values}}, "study")
    rows = [
        {"seed": seed, "privacy.epsilon": epsilon, "partition.alpha": alpha, "predictor": predictor}
        | {"site": "pooled:held_out", "ece": seed * epsilon + alpha + (predictor == "last")}
        for seed in (1, 2)
        for epsilon in (1.0, 2.0)
        for alpha in (0.5, 9.0)
        for predictor in ("last", "posterior")
    ]
    ece, accuracy, elsewhere = paper_table(study, pd.DataFrame(rows)).to_dict("records")
    assert (ece["paper"], ece["measured"], ece["seeds"]) == (0.2, 1.5 + 4.75, 2)
    assert ece["low"] == pytest.approx(6.25 - 12.706 * 0.5, abs=1e-3)
    assert ece["partition.alpha"] is None
    assert accuracy["seeds"] == elsewhere["seeds"] == 0


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: list[str]) -> list[str]:
    """Ship one small paper's table, and note which of its cells run."""
    table = content("closer-logistic")
    table["data"]["source"] |= {"records": 200, "test_records": 200}
    table["training"] |= {"steps_per_round": 5, "burn_in": 4}
    table["variants"]["algorithm"] = {"DP-SGD, C = 1": {"privacy.clip_norm": 1.0}}
    table["paper"]["values"] = [{"algorithm": "DP-SGD, C = 1", "epsilon": 8.0}]
    (tmp_path / "shipped" / "papers").mkdir(parents=True)
    (tmp_path / "shipped" / "papers" / "tiny.toml").write_text(tomli_w.dumps(table))
    monkeypatch.setattr("fl_dpbayes.config.scenario.scenario_folder", lambda: tmp_path / "shipped")
    return here


@pytest.mark.slow
def test_the_command_runs_what_is_missing_and_shows_the_paper_beside(
    tmp_path, command, refusal, tiny
) -> None:
    run = ["reproduce", "tiny", "--out", tmp_path / "out"]
    status, printed, _ = command(*run, "--seeds", 2)
    assert (status, tiny) == (0, [f"seed {seed}, algorithm DP-SGD, C = 1" for seed in (1, 2)])
    assert all(
        words in " ".join(printed.split())
        for words in ("Beside the paper", "A closer look", "8.0000")
    )
    (row,) = pd.read_csv(tmp_path / "out" / "paper.csv").to_dict("records")
    assert row["measured"] == pytest.approx(8.0, abs=0.01)
    assert row["seeds"] == 2
    assert (
        "Paper: A closer look"
        in json.loads((tmp_path / "out" / "study.json").read_text())["notes"][0]
    )
    assert (
        "What the paper prints beside what was measured"
        in (tmp_path / "out" / "report.html").read_text()
    )
    tiny.clear()
    assert (command(*run, "--seeds", 2)[0], tiny) == (0, [])
    assert "other settings" in refusal(*run, "--full")


def test_what_is_shipped_is_listed_and_a_name_that_is_no_study_is_told_in_one_line(
    command, refusal
) -> None:
    assert "choose one of aggregation-mnist, " in refusal("reproduce", "nowhere")
    assert "python benchmarks/hostile_site.py --help" in refusal("reproduce", "hostile-site")
    assert all((ROOT / script).is_file() for script in engine.SCRIPTS.values())
    printed = command("list")[1]
    assert all(
        name in printed
        for name in (*shipped_papers(), *engine.SCRIPTS, "digits", "shift", "stroke")
    )


# Table -> an algorithm, and how many samples its predictor `posterior` averages; 1 is the last state alone.
SAMPLES = {
    "knolle-mnist": ("DP-SGD", 25),
    "knolle-pneumonia": ("DP-SGD", 10),
    "closer-recalibration": ("DP-SGLD, averaged", 10),
    "closer-logistic": ("DP-SGD, C = 0.1", 1),
    "closer-regularisers": ("DP-SGD, epsilon 8", 10),
    "zhang-mnist": ("DP-SGD, authors' constants", 25),
    "zhang-figure-7": ("SGLD, not private", 100),
}


def small(name: str) -> dict[str, Any]:
    """Return a paper's table with one algorithm and budget, on few records in the plane."""
    table = content(name)
    algorithm = SAMPLES[name][0]
    variants, axes, data = table["variants"], table["axes"], table["data"]
    variants["algorithm"] = {algorithm: variants["algorithm"][algorithm]}
    if "task" in variants:
        task = variants["task"]["PneumoniaMNIST"]
        del task["data"], task["sites"]["official-test"]
        task["sites"]["in-domain"]["records"] = 100
        variants["task"] = {"PneumoniaMNIST": task}
        axes["privacy"]["epsilon"], axes["recalibration"] = [8.0], axes["recalibration"][1:2]
    axes.pop("shift", None)
    variants.pop("network", None)
    if "prior" in variants:
        variants["prior"] = {"flat": variants["prior"]["flat"]}
    for key in ("shifted_copy_of", "baseline", "separate"):
        table["study"].pop(key, None)
    data.pop("records", None)
    if data["source"]["kind"] != "gaussian-classes":
        data["source"] = {"kind": "logistic-2d", "sites": 1}
        table["model"] = {"kind": "logistic"}
    data["source"] |= {"records": 400, "test_records": 200}
    table["sites"].pop("validation", None)
    table["paper"].pop("values", None)
    # With so few records much hangs on the draw of the noise.
    table["simulation"] = {"insecure_seed": 1}
    return table


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_a_small_run_keeps_the_samples_that_its_page_averages(
    name: str, tmp_path: Path, here: list[str]
) -> None:
    study = study_of(small(name), "study")
    workers = engine.Workers(count=1)
    assert engine.begin_study(study, tmp_path / "out", None, workers, Console(quiet=True))
    rows = pd.read_csv(tmp_path / "out" / "results.csv")
    at_site = rows[rows["site"] == study.section.where].set_index("predictor")
    assert {*study.section.metrics, "accuracy", "ece", "epsilon", "samples"} <= set(rows)
    samples = SAMPLES[name][1]
    assert at_site["samples"][["last", "posterior"]].tolist() == [1, samples]
    last, average = at_site["nll"][["last", "posterior"]]
    assert (last == average) == (samples == 1)


@pytest.mark.slow
def test_a_frozen_efficientnet_whose_weights_are_given_takes_the_place_of_scattering(
    tmp_path: Path, here: list[str]
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = torchvision.models.efficientnet_b1(weights=None)
    weights = tmp_path / "backbones" / "weights.pth"
    weights.parent.mkdir()
    torch.save(network.state_dict(), weights)
    table = small("knolle-pneumonia")
    table["data"]["source"] = {"kind": "radiographs", "records": 60, "test_records": 30, "sites": 1}
    features = {"kind": "backbone", "architecture": "efficientnet_b1", "image_size": 32}
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    table["model"] = content("knolle-pneumonia")["model"] | {
        "features": features | {"weights": digest}
    }
    study = study_of(table, "study")
    workers = engine.Workers(count=1)
    assert engine.begin_study(study, tmp_path / "out", tmp_path, workers, Console(quiet=True))
    rows = pd.read_csv(tmp_path / "out" / "results.csv")
    at_site = rows[rows["site"] == "official-test"].set_index("predictor")
    assert at_site["n"].unique().tolist() == [30]
    assert np.isfinite(at_site["nll"]).all()
    assert {"last", "posterior", "recalibrated", "prior_corrected"} <= set(at_site.index)


def test_the_points_of_closer_logistic_follow_the_papers_law() -> None:
    source = load_study("closer-logistic").scenario["data"]["source"]
    records = load_unscaled(DataSpec(source=source).source, "train").scaled()
    # (x - b) | y ~ N(0, I), b = (1.5, 0) if y = 1 else (0, 1.5), and y is uniform.
    assert abs(records.labels.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(records.labels))
    for label, center in enumerate(([0, 1.5], [1.5, 0])):
        moved = records.features[records.labels == label] - center
        error = 4 / np.sqrt(len(moved))
        assert np.abs(moved.mean(axis=0)).max() < error
        assert np.abs(np.cov(moved.T) - np.eye(2)).max() < np.sqrt(2) * error
    log_odds = 1.5 * (records.features[:, 0] - records.features[:, 1])
    np.testing.assert_allclose(records.truth[:, 1], expit(log_odds), atol=1e-6)


def test_the_rows_of_closer_regularisers_are_what_their_labels_say() -> None:
    rows = {
        cell.labels["algorithm"]: cell.scenario
        for cell in study_cells(load_study("closer-regularisers"))
    }
    for decay in (1e-4, 1e-3, 1e-2, 1e-1):
        scenario = rows[f"weight decay {decay:g}"]
        # -grad log p(w) / n = w / (n scale^2).
        added = 1 / (scenario.data.records * scenario.sampler.prior.scale**2)
        assert added == pytest.approx(decay, rel=1e-5)
    for rate in (0.1, 0.2, 0.3, 0.4):
        assert rows[f"dropout {rate:g}"].sampler.rate == rate
    for epsilon in (1, 2, 3, 8):
        assert rows[f"DP-SGD, epsilon {epsilon}"].privacy.epsilon == epsilon
    steps_of_epoch = {1 / scenario.privacy.sampling_rate for scenario in rows.values()}
    assert steps_of_epoch == {20}
    for epochs in (2, 4, 6, 8):
        training = rows[f"early stopping, {epochs} epochs"].training
        assert training.steps_per_round == 20 * epochs
    plain = [scenario for scenario in rows.values() if not scenario.sampler.is_private]
    assert len({scenario.sampler.step_size.initial for scenario in plain}) == 1
    assert {
        scenario.training.steps_per_round - scenario.training.burn_in for scenario in plain
    } == {10}


@pytest.mark.slow
def test_batches_act_on_the_privacy_of_both_methods_as_papers_md_says() -> None:
    epsilons = {}
    for cell in study_cells(load_study("zhang-figure-2", ["axes.seed=[1]"], full=True)):
        plan = training_plan(cell.scenario, prior_share=1.0, chain_start="own_last")
        epsilon = pld_epsilon(solve_plan(plan, 60_000).history, plan.privacy.delta)
        epsilons[cell.labels["algorithm"], cell.labels["batch"]] = epsilon
    for algorithm, stated in (
        ("DP-SGD, step size 0.25", (0.40, 0.87, 1.92)),
        ("DP-SGLD, step size 0.6", (154, 1.69, 0.51)),
    ):
        by_batch = [epsilons[algorithm, batch] for batch in ("64", "256", "1024")]
        assert by_batch == pytest.approx(stated, rel=0.01)
    at_256 = [epsilons[f"DP-SGLD, step size {step}", "256"] for step in (0.2, 0.6, 1.8)]
    assert at_256 == pytest.approx((0.67, 1.69, 9.6), rel=0.01)
