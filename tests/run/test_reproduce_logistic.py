"""The known truth of two Gaussian classes, and what clipping does to logistic regression on them."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from fl_dpbayes.run.reproduce.closer_logistic import logistic_cells, measure_logistic
from fl_dpbayes.run.reproduce.closer_logistic_figures import logistic_figures
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, Measurement, StoredRow
from fl_dpbayes.run.reproduce.gaussian_classes import MEANS, bayes_probability, draw_records, linear_truth


def test_records_have_the_stated_law() -> None:
    features, labels = draw_records(40_000, np.random.default_rng(0))
    assert features.dtype == np.float32
    assert labels.sum() == 20_000
    for label, mean in enumerate(MEANS):
        part = features[labels == label]
        assert np.abs(part.mean(axis=0) - mean).max() < 4 / np.sqrt(len(part))
        assert np.abs(np.cov(part.T) - np.eye(2)).max() < 4 * np.sqrt(2 / len(part))


def test_bayes_probability_by_bayes_rule() -> None:
    features = np.random.default_rng(0).normal(size=(50, 2))
    density = [norm.pdf(features, mean).prod(axis=1) for mean in MEANS]
    np.testing.assert_allclose(bayes_probability(features), density[1] / (density[0] + density[1]), rtol=1e-12)


def test_bayes_classifier_golden() -> None:
    truth = linear_truth(MEANS[1] - MEANS[0], 0.0)
    expected = norm.cdf(np.linalg.norm(MEANS[1] - MEANS[0]) / 2)
    assert truth.accuracy == pytest.approx(expected, abs=1e-12)
    assert truth.calibration_error == pytest.approx(0.0, abs=1e-12)
    assert truth.confidence == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("weight", "bias"), [((3.0, -2.5), 0.3), ((0.1, 0.4), 1.0), ((-2.0, 1.0), -0.5)])
def test_exact_values_agree_with_a_large_sample(weight: tuple[float, float], bias: float) -> None:
    truth = linear_truth(np.array(weight), bias)
    count, bins = 1_000_000, 200
    features, labels = draw_records(count, np.random.default_rng(1))
    z = features @ np.array(weight) + bias
    confidence, right = expit(np.abs(z)), (z > 0) == labels
    error = 4 / np.sqrt(count)
    assert abs(right.mean() - truth.accuracy) < error / 2
    assert abs(confidence.mean() - truth.confidence) < error * confidence.std()
    assert abs((confidence > 0.95).mean() - truth.confident_share) < error / 2
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    binned = np.abs(np.bincount(place, confidence - right, bins)).sum() / count
    # Chance adds about sqrt(2 bins p (1 - p) / (pi count)) where the model is calibrated, less where it is not.
    assert abs(binned - truth.calibration_error) < np.sqrt(bins / count)


def small(cell: Cell, steps: int = 120) -> Cell:
    settings = {**cell.settings, "records": 2_000, "test_records": 2_000, "steps": steps, "epsilon": 8.0}
    return Cell(cell.label, cell.seed, settings)


@pytest.mark.slow
def test_clipping_and_not_noise_makes_overconfident() -> None:
    cells = {cell.label: small(cell) for cell in logistic_cells(0, False)}
    chosen = ("SGD", "DP-SGD C=0.1", "clip only C=0.1", "noise only C=0.1", "Bayes classifier")
    rows = {label: measure_logistic(cells[label], None).rows[0] for label in chosen}
    error = {label: row.values["calibration_error"] or 0.0 for label, row in rows.items()}
    assert error["Bayes classifier"] == pytest.approx(0.0, abs=1e-12)
    assert error["DP-SGD C=0.1"] > 0.05
    assert error["clip only C=0.1"] > 0.05
    assert error["SGD"] < 0.03
    assert error["noise only C=0.1"] < 0.03
    assert min(row.values["accuracy"] or 0.0 for row in rows.values()) > 0.84
    assert rows["DP-SGD C=0.1"].history is not None
    assert all(row.history is None for label, row in rows.items() if not label.startswith("DP-SGD"))


def test_a_cell_is_a_function_of_its_settings_and_seed() -> None:
    cell = small(next(cell for cell in logistic_cells(0, False) if cell.label == "DP-SGD C=1"), steps=5)
    first, second = measure_logistic(cell, None), measure_logistic(cell, None)
    assert first.rows == second.rows
    assert first.details == second.details
    other = measure_logistic(Cell(cell.label, 1, cell.settings), None)
    assert other.rows[0].values["ece"] != first.rows[0].values["ece"]


def stored(cell: Cell, measurement: Measurement) -> CellResult:
    rows = tuple(StoredRow(row.method, row.setting, row.values, None) for row in measurement.rows)
    return CellResult(cell, rows, 1, measurement.details, 0.0, {})


def test_figures_are_those_that_finished_cells_allow() -> None:
    cells = [small(cell, steps=3) for cell in logistic_cells(0, False)]
    results = [stored(cell, measure_logistic(cell, None)) for cell in cells if cell.label in ("SGD", "DP-SGD C=0.1")]
    drawn = logistic_figures(results)
    assert set(drawn) == {
        "closer-logistic-clipping", "closer-logistic-probability", "closer-logistic-reliability-dp",
        "closer-logistic-reliability-sgd",
    }  # fmt: skip
    ticks = [label.get_text() for label in drawn["closer-logistic-clipping"]().axes[0].get_xticklabels()]
    assert ticks == ["0.1"]
    assert all(draw().axes for draw in drawn.values())
    assert set(logistic_figures(results[:1])) == {"closer-logistic-reliability-sgd"}
    assert logistic_figures([]) == {}
