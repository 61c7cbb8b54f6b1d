"""The simulations of the heteroscedastic regression and the medians over them."""

import numpy as np
import pytest

from fl_dpbayes.privacy.gdp import gdp_epsilon
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, Measurement, StoredRow
from fl_dpbayes.run.reproduce.heteroscedastic import draw_simulation
from fl_dpbayes.run.reproduce.zhang_regression import measure_regression, regression_cells
from fl_dpbayes.run.reproduce.zhang_regression_figure import regression_figures
from fl_dpbayes.run.reproduce.zhang_regression_settings import CLIP_ONLY, DP, PLAIN, SETTINGS


def test_simulation_has_the_stated_shape_and_range() -> None:
    data = draw_simulation(np.random.default_rng(0))
    assert data.features.shape == data.test_features.shape == (250, 1)
    assert data.targets.shape == data.test_targets.shape == data.function.shape == (250,)
    x = data.features[:, 0]
    assert (np.diff(x) >= 0).all()
    assert x[0] <= data.test_features.min()
    assert data.test_features.max() <= x[-1]
    assert 1.5 < x[-1] < 2.5


def test_noise_and_function_have_the_stated_law() -> None:
    generator = np.random.default_rng(1)
    runs = [draw_simulation(generator) for _ in range(45)]
    x = np.concatenate([run.test_features[:, 0] for run in runs])
    noise = np.concatenate([run.test_targets - run.test_function for run in runs])
    standard = noise / (0.3 * np.abs(x + 2))
    assert abs(standard.mean()) < 4 / np.sqrt(len(standard))
    assert abs(standard.var() - 1) < 4 * np.sqrt(2 / len(standard))
    # Differences of the function do not see the centring: E (f(a) - f(b))^2 = 2 (1 - exp(-(a - b)^2 / 2)).
    ratios = []
    for run in runs:
        gaps = run.function[40::50] - run.function[:-10:50]
        distances = (run.features[40::50] - run.features[:-10:50])[:, 0]
        ratios.append(np.mean(gaps**2 / (2 * (1 - np.exp(-0.5 * distances**2)))))
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios) / np.sqrt(len(ratios))


def test_training_and_test_targets_share_the_function() -> None:
    data = draw_simulation(np.random.default_rng(2))
    nearest = np.abs(data.test_features - data.features.T).argmin(axis=1)
    assert np.abs(data.function[nearest] - data.test_function).max() < 0.1


def cell(method: str, setting: str, **changes: object) -> Cell:
    return Cell("test", 0, {"method": method, "setting": setting, "runs": 1, **SETTINGS[method, setting], **changes})


def small(method: str, setting: str) -> Cell:
    return cell(method, setting, runs=2, steps=6, burn_in=3, hidden=[8])


@pytest.mark.parametrize(("method", "setting"), [key for key in SETTINGS if key[0] != "reference"])
def test_every_method_gives_finite_values_and_bands(method: str, setting: str) -> None:
    measurement = measure_regression(small(method, setting), None)
    (row,) = measurement.rows
    assert (row.method, row.setting) == (method, setting)
    assert all(value is not None and np.isfinite(value) for value in row.values.values())
    assert (row.history is None) == (setting in (PLAIN, CLIP_ONLY))
    assert len(measurement.details["simulations"]) == 2
    bands = measurement.details["bands"]
    assert all(total >= noise for total, noise in zip(bands["total"], bands["aleatoric"], strict=True))


def test_reported_values_are_medians_over_simulations() -> None:
    measurement = measure_regression(cell("reference", "the true function", runs=5), None)
    errors = sorted(one["train_mse"] for one in measurement.details["simulations"])
    assert measurement.rows[0].values["train_mse"] == errors[2]
    # The noise variance over the middle of the range: the mean of (.3 (x + 2))^2 there is about .47.
    assert errors[2] == pytest.approx(0.47, abs=0.1)


def test_privacy_is_that_of_the_paper() -> None:
    (row,) = measure_regression(cell("SGLD", DP, hidden=[4]), None).rows
    assert row.history is not None
    assert sum(event.steps for event in row.history) == 200
    assert row.values["epsilon_at_paper_delta"] == pytest.approx(gdp_epsilon(np.sqrt(200) / 10, 1 / 250), rel=1e-3)
    # The paper's 4.21 is that of the authors' 201 steps.
    assert round(gdp_epsilon(np.sqrt(201) / 10, 1 / 250), 2) == 4.21


def stored(measured: Cell, measurement: Measurement, private: bool) -> CellResult:
    rows = tuple(StoredRow(row.method, row.setting, row.values, {} if private else None) for row in measurement.rows)
    return CellResult(measured, rows, 1, measurement.details, 0.0, {})


def test_figure_has_a_panel_per_method_and_privacy() -> None:
    results = [
        stored(small(method, setting), measure_regression(small(method, setting), None), setting == DP)
        for method in ("SGLD", "MC dropout")
        for setting in (PLAIN, DP)
    ]
    drawn = regression_figures(results)
    titles = [axes.get_title() or axes.get_title("left") for axes in drawn["zhang-regression-bands"]().axes]
    assert titles == ["SGLD", "DP-SGLD", "MC dropout", "DP-MC dropout"]
    assert regression_figures(results[:1]) == {}


def test_all_cells_of_a_seed_are_listed_once() -> None:
    cells = regression_cells(3, False)
    assert len(cells) == len(SETTINGS)
    assert {one.seed for one in cells} == {3}
