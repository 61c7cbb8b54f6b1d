"""The cells of `zhang-mnist`, its translation of the authors' constants, and its rows on made-up records."""

import dataclasses
import math

import numpy as np
import pytest

from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import Records
from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.solve import solve_plan
from fl_dpbayes.run.reproduce import zhang_mnist
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, Measurement, StoredRow
from fl_dpbayes.run.reproduce.zhang_mnist import EXPERIMENT, measure_mnist, mnist_cells, standardised, training_plan
from fl_dpbayes.run.reproduce.zhang_mnist_figure import mnist_figures
from fl_dpbayes.run.reproduce.zhang_mnist_settings import (
    AUTHORS,
    BBP,
    EPSILON,
    EQUAL,
    FLAT,
    GAUSSIAN,
    MC_DROPOUT,
    MLP,
    PLAIN,
    SGD,
    SGLD,
    constants,
)


@pytest.fixture(autouse=True)
def synthetic_records(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    task = Task(input_shape=(1, 28, 28), classes=10)

    def records(count: int) -> Records:
        labels = np.arange(count) % 10
        features = generator.random((count, 1, 28, 28), dtype=np.float32)
        return Records(features, labels, np.arange(count), None, task, "record")

    pair = records(200), records(50)
    monkeypatch.setattr(zhang_mnist, "mnist_records", lambda data_dir: pair)


def small(method: str, setting: str, network: str = MLP, draws: int = 4) -> Cell:
    settings = constants(network, method, GAUSSIAN, setting, full=False)
    model = settings["model"] | ({"hidden": [8]} if network != "CNN" else {"channels": [2, 2], "hidden": 8})
    privacy = settings["privacy"] | {"sampling_rate": 0.1}
    changes = {"model": model, "privacy": privacy, "steps": 6, "draws": draws, "averaged_draws": 2}
    return Cell(f"{network} {method} {setting}", 0, settings | changes)


@pytest.mark.parametrize("setting", [PLAIN, AUTHORS, EQUAL])
@pytest.mark.parametrize("method", [SGLD, BBP, MC_DROPOUT, SGD])
def test_every_method_gives_a_row_and_draws(method: str, setting: str) -> None:
    measurement = measure_mnist(small(method, setting), None)
    (row,) = measurement.rows
    assert (row.method, row.setting) == (method, f"MLP, Gaussian prior, {setting}")
    assert (row.history is None) == (setting == PLAIN)
    assert all(value is None or math.isfinite(value) for value in row.values.values())
    draws = np.array(measurement.details["draws"])
    assert draws.shape == (4, 10)
    np.testing.assert_allclose(draws.sum(axis=1), 1.0, atol=1e-3)
    assert np.ptp(draws, axis=0).max() > 0


def test_only_the_bayesian_rows_average_over_draws() -> None:
    for method, same in ((SGD, True), (SGLD, False)):
        one, four = (measure_mnist(small(method, AUTHORS, draws=draws), None).rows[0].values for draws in (1, 4))
        assert (one == four) == same


def test_authors_constants_in_our_convention() -> None:
    settings = constants(MLP, SGLD, GAUSSIAN, AUTHORS, full=True)
    solved = solve_plan(training_plan(settings), 60_000)
    eta, clip_norm = 1e-5, 1.5
    assert settings["sampler"]["step_size"]["initial"] == pytest.approx(eta * 60_000)
    # Theorem 1 of the paper.
    np.testing.assert_allclose(solved.noise_multipliers, 256 / (60_000 * math.sqrt(eta) * clip_norm))
    assert round(account(solved.history, 1e-5).epsilon_pld, 2) == 1.69
    others = [solve_plan(training_plan(constants(MLP, method, FLAT, AUTHORS, full=True)), 60_000)
              for method in (BBP, MC_DROPOUT, SGD)]  # fmt: skip
    assert {round(one.epsilon, 2) for one in others} == {EPSILON}


def test_private_methods_are_compared_at_one_epsilon() -> None:
    spent = [
        solve_plan(training_plan(cell.settings), 60_000).epsilon
        for cell in mnist_cells(1, False)
        if cell.settings["setting"] == EQUAL and cell.settings["prior"] == GAUSSIAN
    ]
    assert len(spent) == 6
    assert all(0.999 * EPSILON <= epsilon <= EPSILON for epsilon in spent)


@pytest.mark.parametrize("full", [False, True])
def test_cells_are_plans_with_labels_of_their_own(full: bool) -> None:
    cells = mnist_cells(0, full)
    assert len({cell.label for cell in cells}) == len(cells)
    for cell in cells:
        assert training_plan(cell.settings).kept_before(cell.settings["steps"]) == 100
        assert cell.settings["steps"] == (3525 if full else 705)


def test_every_printed_value_has_a_row_beside_it() -> None:
    rows = {
        (cell.settings["method"], ", ".join(cell.settings[key] for key in ("network", "prior", "setting")))
        for cell in mnist_cells(0, False)
    }
    table_1 = {key for key, values in EXPERIMENT.paper.items() if "accuracy" in values}
    assert table_1 <= rows
    assert EXPERIMENT.paper[SGLD, f"MLP, {GAUSSIAN}, {AUTHORS}"] == {"accuracy": 0.90, "ece": 0.007, "mce": 0.175}
    assert EXPERIMENT.paper[SGD, f"MLP, {FLAT}, {PLAIN}"] == {"accuracy": 0.97, "ece": 0.005, "mce": 0.299}


def test_pixels_are_standardised_by_published_constants() -> None:
    np.testing.assert_allclose(standardised(np.array([0.1307, 0.4388], np.float32)), [0, 1], atol=1e-6)


def stored(cell: Cell, measurement: Measurement) -> CellResult:
    rows = tuple(StoredRow(row.method, row.setting, row.values, None) for row in measurement.rows)
    return CellResult(cell, rows, 1, measurement.details, 0.0, {})


def test_figures_show_the_first_seed_of_each_bayesian_method() -> None:
    cells = [small(method, AUTHORS) for method in (SGLD, BBP, SGD)]
    results = [stored(cell, measure_mnist(cell, None)) for cell in cells]
    later = dataclasses.replace(results[0], cell=dataclasses.replace(cells[0], seed=1), details={})
    figures = mnist_figures([later, *results])
    assert list(figures) == ["zhang-mnist-histograms-private"]
    titles = [axes.get_title() for axes in figures["zhang-mnist-histograms-private"]().axes]
    assert titles == ["", "DP-SGLD", "DP-BBP"]
