"""The recalibration tables: disjoint parts, ratios against the baseline, one account per row, figures."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from fl_dpbayes.calibration.recalibration.descent import fit
from fl_dpbayes.calibration.recalibration.maps import recalibrate
from fl_dpbayes.config.recalibration import RecalibrationPlan
from fl_dpbayes.config.task import Task
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.run.reproduce import closer_recalibration as experiment
from fl_dpbayes.run.reproduce import closer_recalibration_predictors as predictors
from fl_dpbayes.run.reproduce.closer_recalibration_figures import recalibration_figures
from fl_dpbayes.run.reproduce.closer_recalibration_settings import (
    DP,
    DP_PART,
    DP_PS,
    DP_TS,
    LANGEVIN,
    LANGEVIN_TS,
    NETWORK,
    NON_PRIVATE,
    NON_PRIVATE_TS,
    PROBE,
    RECALIBRATION,
)
from fl_dpbayes.run.reproduce.closer_recalibration_sites import (
    IN_DOMAIN,
    MNIST,
    OFFICIAL_TEST,
    PNEUMONIA,
    Labelled,
    TaskRecords,
    task_records,
)
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, Measurement, StoredRow

NEEDS_DATA = pytest.mark.skipif("FL_DPBAYES_DATA" not in os.environ, reason="FL_DPBAYES_DATA names no data folder")


def labelled(count: int, seed: int, classes: int = 3) -> Labelled:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    features = generator.normal(size=(count, 5)) + 2 * np.eye(5)[labels]
    return Labelled(features.astype(np.float32), labels)


def synthetic_records() -> TaskRecords:
    sites = {IN_DOMAIN: labelled(300, 2), "noise": labelled(300, 3), "blur": labelled(300, 4)}
    return TaskRecords(Task(input_shape=(5,), classes=3), labelled(600, 0), labelled(60, 1), sites)


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    records = synthetic_records()
    monkeypatch.setattr(experiment, "task_records", lambda *_: records)


@pytest.fixture(scope="module")
def measured() -> tuple[Cell, Measurement]:
    records = synthetic_records()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "task_records", lambda *_: records)
        cell = small("probe, eps 8")
        return cell, experiment.measure_recalibration(cell, None)


def small(label: str) -> Cell:
    cell = next(cell for cell in experiment.recalibration_cells(0, False) if cell.label == label)
    chains = {
        task: {
            method: {**settings, "steps": 4, "batch": 200, "privacy": {**settings["privacy"], "pre_noise": 0.0}}
            if settings["privacy"].get("kind") != "none"
            else {**settings, "steps": 4, "batch": 200}
            for method, settings in methods.items()
        }
        for task, methods in cell.settings["chains"].items()
    }
    return replace(cell, settings={**cell.settings, "model": {"kind": "logistic"}, "chains": chains})


@pytest.mark.slow
def test_rows_ratios_and_accounts(measured: tuple[Cell, Measurement]) -> None:
    _, measurement = measured
    rows = {(row.method, row.setting): row for row in measurement.rows}
    setting, mean = "MNIST, probe, eps 8", "mean of tasks, probe, eps 8"
    assert rows[DP, setting].values["ratio"] == pytest.approx(1.0)
    for row in measurement.rows:
        if row.method == NON_PRIVATE_TS:
            assert row.history is None
        else:
            assert row.history is not None
            assert 8.0 * 0.998 <= pld_epsilon(row.history, 1e-5) <= 8.0
    for name in ("ratio", "ece", "shifted_ece"):
        parts = [rows[DP_TS, f"{task}, probe, eps 8"].values[name] for task in (MNIST, PNEUMONIA)]
        assert rows[DP_TS, mean].values[name] == pytest.approx(np.mean(parts))
    ratio = (rows[DP, setting].values["ece"] or 0.0) / (rows[DP_TS, setting].values["ece"] or 1.0)
    assert rows[DP_TS, setting].values["ratio"] == pytest.approx(ratio)
    # One temperature per chain moves no label.
    for before, after in ((DP_PART, DP_TS), (DP_PART, NON_PRIVATE_TS), (LANGEVIN, LANGEVIN_TS)):
        assert rows[before, setting].values["accuracy"] == rows[after, setting].values["accuracy"]
    assert rows[DP, setting].values["ece"] != rows[DP_PART, setting].values["ece"]


@pytest.mark.usefixtures("synthetic")
def test_without_privacy_there_is_one_row_and_no_ratio() -> None:
    measurement = experiment.measure_recalibration(small("probe, no privacy"), None)
    assert {row.method for row in measurement.rows} == {NON_PRIVATE}
    assert all(row.history is None and "ratio" not in row.values for row in measurement.rows)


@pytest.mark.usefixtures("synthetic")
def test_recalibration_records_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[np.ndarray] = []
    fitted: list[np.ndarray] = []
    original = predictors.train

    def train(module, features, *rest):
        trained.append(np.array(features))
        return original(module, features, *rest)

    def probabilities_of(module, posterior, features):
        fitted.append(np.array(features))
        return np.full((len(features), 3), 1 / 3)

    monkeypatch.setattr(predictors, "train", train)
    monkeypatch.setattr(predictors, "probabilities_of", probabilities_of)
    cell = small("probe, eps 8")
    only = {MNIST: {method: cell.settings["chains"][MNIST][method] for method in (DP, DP_PART)}}
    experiment.measure_recalibration(replace(cell, settings={**cell.settings, "chains": only}), None)
    everything, part = trained
    recalibration = fitted[-1]
    assert len(everything) == 600
    assert (len(part), len(recalibration)) == (540, 60)
    rows = {row.tobytes() for row in part}
    assert not rows & {row.tobytes() for row in recalibration}
    assert rows | {row.tobytes() for row in recalibration} == {row.tobytes() for row in everything}


@pytest.mark.parametrize("epsilon", [3.0, 8.0])
def test_private_temperature_is_near_the_one_without_privacy(epsilon: float) -> None:
    generator = np.random.default_rng(0)
    logits = 2 * generator.standard_normal((5_500, 10))
    labels = (generator.random((5_500, 1)) > softmax(logits, axis=1).cumsum(axis=1)).sum(axis=1)
    sharp = softmax(2 * logits, axis=1)
    plan = RecalibrationPlan(
        method="temperature", epsilon=epsilon, delta=1e-5, adjacency="add_or_remove_one", rounds=1,
        **RECALIBRATION,
    )  # fmt: skip
    mapping, history = predictors.fit_privately(sharp, labels, plan, np.random.default_rng(1))
    best = fit("temperature", sharp, labels)
    assert best.parameters[0] == pytest.approx(np.log(2), abs=0.05)
    assert mapping.parameters[0] == pytest.approx(best.parameters[0], abs=0.25)
    assert recalibrate(sharp, mapping).max(axis=1).mean() < sharp.max(axis=1).mean() - 0.03
    assert history == (GaussianEvent(history[0].noise_multiplier, 1.0, plan.steps),)
    assert pld_epsilon(history, 1e-5) <= epsilon


def test_cells_hold_both_tasks_once_per_model_and_budget() -> None:
    cells = experiment.recalibration_cells(2, False)
    labels = [f"{name}, {end}" for name in (PROBE, NETWORK) for end in ("eps 8", "eps 3", "no privacy")]
    assert [cell.label for cell in cells] == labels
    assert {cell.seed for cell in cells} == {2}
    for cell in cells:
        for methods in cell.settings["chains"].values():
            assert next(iter(methods)) == (NON_PRIVATE if cell.settings["epsilon"] is None else DP)
            for settings in methods.values():
                predictors.plan_of(settings, 3_337)
                # What is recalibrated must not have been trained on the recalibration part.
                assert settings["records"] == "part" or not settings["recalibrated"]


@pytest.mark.slow
def test_figures_are_those_that_finished_cells_allow(measured: tuple[Cell, Measurement]) -> None:
    cell, measurement = measured
    rows = tuple(StoredRow(row.method, row.setting, row.values, {}) for row in measurement.rows)
    drawn = recalibration_figures([CellResult(cell, rows, 1, measurement.details, 0.0, {})])
    stem = "closer-recalibration"
    diagrams = {f"{stem}-reliability-{end}" for end in (
        "dp-on-90-mnist-probe-eps-8", "dp-ts-mnist-probe-eps-8", "dp-on-90-pneumoniamnist-probe-eps-8",
        "dp-ts-pneumoniamnist-probe-eps-8",
    )}  # fmt: skip
    assert set(drawn) == {f"{stem}-ratio", f"{stem}-shifted-ratio"} | diagrams
    axes = drawn[f"{stem}-ratio"]().axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "MNIST, probe, eps 8", "PneumoniaMNIST, probe, eps 8", "mean of tasks, probe, eps 8",
    ]  # fmt: skip
    assert DP_PS in axes.get_legend_handles_labels()[1]
    assert all(draw().axes for draw in drawn.values())
    assert recalibration_figures([]) == {}


@NEEDS_DATA
def test_pneumonia_sites_are_disjoint_from_training_and_shifted() -> None:
    records = task_records(PNEUMONIA, None, Path(os.environ["FL_DPBAYES_DATA"]))
    assert (len(records.training.labels), len(records.choice.labels)) == (3_708, 524)
    assert {site: len(part.labels) for site, part in records.sites.items() if site != "prevalence"} == {
        IN_DOMAIN: 1_000, OFFICIAL_TEST: 624, "detector_noise": 1_000, "blur": 1_000, "contrast": 1_000,
        "rotation": 1_000,
    }  # fmt: skip
    in_domain, rarer = records.sites[IN_DOMAIN], records.sites["prevalence"]
    assert rarer.labels.mean() < in_domain.labels.mean() - 0.2
    for site in ("detector_noise", "blur", "contrast", "rotation"):
        assert (records.sites[site].labels == in_domain.labels).all()
        assert np.abs(records.sites[site].features - in_domain.features).mean() > 0.005
