"""The chains of Knolle et al.: disjoint parts, what each predictor costs, and the tables' cells."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.task import BackboneFeatures, LogisticModel, ScatteringFeatures, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.run.reproduce import knolle_mnist, knolle_mnist_settings, knolle_pneumonia, knolle_pneumonia_settings
from fl_dpbayes.run.reproduce.classification import measure
from fl_dpbayes.run.reproduce.experiment import Cell, Experiment
from fl_dpbayes.run.reproduce.knolle_rows import DP_SGD, SGD, Labelled, predictors, split
from fl_dpbayes.run.reproduce.private_temperature import private_temperature
from fl_dpbayes.run.reproduce.registry import EXPERIMENTS

DATA = Path(os.environ["FL_DPBAYES_DATA"]) if "FL_DPBAYES_DATA" in os.environ else None
needs_data = pytest.mark.skipif(DATA is None, reason="FL_DPBAYES_DATA names no data folder")
BOTH = (knolle_mnist.EXPERIMENT, knolle_pneumonia.EXPERIMENT)


def test_parts_are_disjoint_and_no_record_moves_another() -> None:
    rows, kept = split(np.arange(4_000), 0.1, b"key")
    assert sorted([*rows, *kept]) == list(range(4_000))
    assert abs(len(kept) - 400) < 4 * np.sqrt(4_000 * 0.1 * 0.9)
    without, kept_without = split(np.delete(np.arange(4_000), 7), 0.1, b"key")
    assert set(np.delete(np.arange(4_000), 7)[without]) == set(rows) - {7}
    assert set(np.delete(np.arange(4_000), 7)[kept_without]) == set(kept) - {7}


def overconfident(count: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=count) * 2
    labels = (generator.random(count) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    positive = 1 / (1 + np.exp(-sharpness * logits))
    return np.column_stack([1 - positive, positive]), labels


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
def test_private_temperature_finds_the_sharpness(sharpness: float) -> None:
    probabilities, labels = overconfident(4_000, sharpness)
    found = private_temperature(
        probabilities, labels, (probabilities, probabilities[:5]), trained=(GaussianEvent(50.0, 0.1, 10),),
        epsilon=6.0, delta=1e-4, generator=np.random.default_rng(1),
    )  # fmt: skip
    assert found.temperature == pytest.approx(sharpness, rel=0.15)
    logits = np.log(probabilities[:, 1] / probabilities[:, 0])
    changed, first = found.probabilities
    np.testing.assert_allclose(np.log(changed[:, 1] / changed[:, 0]), logits / found.temperature, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(first, changed[:5])


def test_private_temperature_costs_the_larger_of_two() -> None:
    probabilities, labels = overconfident(50, 1.0)
    for noise, own in ((50.0, True), (0.3, False)):
        trained = (GaussianEvent(noise, 0.1, 10),)
        found = private_temperature(
            probabilities, labels, (), trained=trained, epsilon=1.0, delta=1e-4, generator=np.random.default_rng(1)
        )
        assert (found.history != trained) is own
        assert pld_epsilon(found.history, 1e-4) >= pld_epsilon(trained, 1e-4)
        assert not own or 0.99 < pld_epsilon(found.history, 1e-4) <= 1.0


def plan(private: bool) -> dict[str, object]:
    privacy = {"epsilon": 2.0, "delta": 1e-3, "sampling_rate": 0.5} if private else {"kind": "none", "sampling_rate": 1}
    return {
        "rounds": 1, "chain_start": "broadcast", "steps_per_round": 8, "burn_in": 4, "thinning": 2,
        "sampler": {"kind": "dp-sgd" if private else "sgd", "step_size": {"kind": "constant", "initial": 0.5}},
        "privacy": privacy,
    }  # fmt: skip


@pytest.mark.parametrize("private", [True, False])
def test_predictors_of_one_chain(private: bool) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 300)
    data = Labelled((generator.normal(size=(300, 3)) + labels[:, None]).astype(np.float32), labels)
    module = build_model(LogisticModel(), Task(input_shape=(3,), classes=2), seed=0)
    rows, kept = split(np.arange(300), 0.2, b"key")
    found = predictors(
        module, "M", plan(private), data[rows], data[kept], (data, data[kept]), Streams.from_insecure_seed(0, "test")
    )
    names = ["M", "M, chain average", "M + DP temperature"]
    assert [one.method for one in found] == names[: 3 if private else 2]
    for one in found:
        assert [part.shape for part in one.probabilities] == [(300, 2), (len(kept), 2)]
        assert (one.history is not None) is private
        assert one.history is None or 1.99 < pld_epsilon(one.history, 1e-3) <= 2.0
        assert (one.temperature is None) == ("temperature" not in one.method)
    assert not np.allclose(found[0].probabilities[0], found[1].probabilities[0])


@pytest.mark.parametrize("experiment", BOTH, ids=lambda one: one.name)
def test_cells_are_valid_plans_at_the_stated_budget(experiment: Experiment) -> None:
    assert EXPERIMENTS[experiment.name] is experiment
    settings = knolle_mnist_settings if experiment is knolle_mnist.EXPERIMENT else knolle_pneumonia_settings
    cells = experiment.cells(3, True)
    assert len({cell.label for cell in cells}) == len(cells)
    for cell in cells:
        checked = TrainingPlan.model_validate(cell.settings["plan"])
        assert cell.seed == 3
        if checked.privacy.kind == "dp":
            assert (checked.privacy.epsilon, checked.privacy.delta) == (settings.EPSILON, settings.DELTA)
            assert checked.privacy.noise_multiplier is checked.privacy.temperature is None
        else:
            assert cell.label == SGD
    labels = {cell.label for cell in cells}
    assert {method for method, _ in experiment.paper} <= labels


def test_a_weight_file_replaces_scattering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_DPBAYES_DATA", str(tmp_path))
    assert knolle_pneumonia_settings.chosen_features() == ScatteringFeatures(scales=2, angles=8)
    (tmp_path / "backbones").mkdir()
    (tmp_path / "backbones" / "efficientnet_b1.txt").write_text("no weights")
    (tmp_path / "backbones" / "resnet18.pth").write_bytes(b"another network")
    assert isinstance(knolle_pneumonia_settings.chosen_features(), ScatteringFeatures)
    (tmp_path / "backbones" / "efficientnet_b1_rwightman.pth").write_bytes(b"weights")
    found = knolle_pneumonia_settings.chosen_features()
    assert isinstance(found, BackboneFeatures)
    assert found.weights == "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
    assert knolle_pneumonia.knolle_pneumonia_cells(0, True)[0].settings["features"]["weights"] == found.weights


def tiny(experiment: Experiment, method: str, **changes: object) -> Cell:
    cell = next(cell for cell in experiment.cells(0, False) if cell.label == method)
    shorter = {**cell.settings["plan"], "steps_per_round": 3, "burn_in": 1, "thinning": 1}
    return Cell(cell.label, 0, {**cell.settings, **changes, "plan": shorter})


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("method", [SGD, DP_SGD])
def test_mnist_cell_has_a_row_per_predictor(method: str) -> None:
    measurement = knolle_mnist.measure_knolle_mnist(tiny(knolle_mnist.EXPERIMENT, method), DATA)
    assert len(measurement.rows) == len(measurement.details["reliability"]) == (2 if method == SGD else 3)
    assert all(0 <= (row.values["ece"] or 0) <= 1 for row in measurement.rows)
    assert {row.delta for row in measurement.rows} == {None if method == SGD else 1e-5}


@needs_data
@pytest.mark.slow
def test_pneumonia_cell_has_three_rows_per_predictor() -> None:
    narrow = {"kind": "scattering", "scales": 3, "angles": 4}
    cell = tiny(knolle_pneumonia.EXPERIMENT, DP_SGD, features=narrow)
    measurement = knolle_pneumonia.measure_knolle_pneumonia(cell, DATA)
    rows = {(row.method, row.setting): row for row in measurement.rows}
    assert len(rows) == 9
    assert [row.setting for row in measurement.rows[:3]] == [knolle_pneumonia.TEST] * 3
    assert len(measurement.details["reliability"]) == 3
    plain, corrected = (rows[DP_SGD, part] for part in (knolle_pneumonia.TEST, knolle_pneumonia.CORRECTED))
    assert plain.values["ece"] != corrected.values["ece"]
    assert plain.values["auc"] == pytest.approx(corrected.values["auc"], abs=1e-9)


def test_the_auc_of_a_table_is_that_of_its_records() -> None:
    generator = np.random.default_rng(11)
    labels = generator.integers(0, 2, 500)
    log_odds = generator.normal(25 + 20 * labels, 10)  # nearly all in the last of 960 equal bins
    for temperature in (1.0, 10.0):
        probabilities = expit(np.column_stack([-log_odds, log_odds]) / temperature)
        assert measure(probabilities, labels, 0)["auc"] == pytest.approx(roc_auc_score(labels, log_odds), abs=1e-12)
