"""The interval of the calibration error holds the truth on simulated models, and seldom more often than it should."""

import math
from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.calibration import rms_interval as interval
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, StoredRow
from fl_dpbayes.run.reproduce.interval_coverage import coverage_cells, measure_coverage
from fl_dpbayes.run.reproduce.interval_coverage_figures import coverage_figures
from fl_dpbayes.run.reproduce.interval_coverage_models import DISTORTIONS, binned, draw_replicates

LEAST_SPREAD = 2.5  # sd of right answers below which a few outcomes carry all probability
CELLS = {cell.label: cell for cell in coverage_cells(0, False)}


def small(cell: Cell, replicates: int) -> Cell:
    return Cell(cell.label, cell.seed, {**cell.settings, "replicates": replicates})


def faults(cell: Cell) -> list[str]:
    """Name the rows that cover less than 93 %, and the cell if it covers more than 99 %, by three standard errors.

    The upper bound is asked of all rows together: on a few hundred test sets no single row could exceed it.
    """
    found, errs = [], []
    for row in measure_coverage(cell, None).rows:
        values = {name: value or 0.0 for name, value in row.values.items()}
        shown = {"coverage": values["intervals"]}
        if cell.settings["noise_std"] == 0:
            replicates = cell.settings["replicates"]
            shown |= {"brier": replicates, "nll": replicates * values["nll_shown"]}
        for name, count in shown.items():
            if count and values[name] < 0.93 - 3 * math.sqrt(0.93 * 0.07 / count):
                found.append(f"{row.setting}: {name} {values[name]:.3f}")
        # With a release's noise the interval is on the safe side.
        if cell.settings["noise_std"] == 0 and values["truth"] > 1e-6 and values["spread"] >= LEAST_SPREAD:
            errs.append((values["coverage"], values["intervals"]))
    if errs:
        together = float(np.mean([coverage for coverage, _ in errs]))
        if together > 0.99 + 3 * math.sqrt(0.99 * 0.01 / sum(count for _, count in errs)):
            found.append(f"all: {together:.4f}")
    return found


QUICK = (
    "top of 2, uniform n=200 noise=0",
    "95 % above .95 n=50 noise=0",
    "Beta(8, 1) n=624 noise=5",
)


@pytest.mark.parametrize("label", QUICK)
def test_it_covers_on_some_models(label: str) -> None:
    assert faults(small(CELLS[label], 100)) == []


@pytest.mark.slow
@pytest.mark.parametrize("label", CELLS)
def test_it_covers_on_all_models(label: str) -> None:
    assert faults(small(CELLS[label], 300)) == []


@pytest.mark.slow
def test_it_sees_an_interval_with_too_small_or_too_large_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = small(CELLS["top of 2, uniform n=624 noise=0"], 300)
    for tail in (0.08, 0.0005):
        monkeypatch.setattr(interval, "TAIL", tail)
        assert faults(cell) != []


def test_sums_of_bins_by_hand() -> None:
    drawn = draw_replicates("top of 2, uniform", "all .05 too high", 40, 3, np.random.default_rng(0))
    table = binned(drawn, 15)
    assert table.shape == (3, 15, 4)
    for replicate in range(3):
        p, q, right = (part[replicate] for part in drawn)
        inside = np.floor(p * 15).astype(int) == 9
        expected = [inside.sum(), p[inside].sum(), right[inside].sum(), q[inside].sum()]
        np.testing.assert_allclose(table[replicate, 9], expected)
    np.testing.assert_allclose(table[..., 1].sum(axis=1) - table[..., 3].sum(axis=1), 40 * 0.05)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_answers_are_right_as_often_as_stated(distortion: str) -> None:
    drawn = draw_replicates("Beta(.6, .6)", distortion, 40_000, 1, np.random.default_rng(1))
    away = drawn.right.mean() - drawn.frequency.mean()
    assert abs(away) < 4 * math.sqrt(float((drawn.frequency * (1 - drawn.frequency)).mean()) / 40_000)
    assert (np.abs(drawn.frequency - drawn.confidence).max() < 1e-9) == (distortion == "calibrated")


def test_a_cell_is_a_function_of_its_settings_and_seed_and_can_be_drawn(tmp_path: Path) -> None:
    cell = small(CELLS["Beta(8, 1) n=50 noise=0"], 5)
    first = measure_coverage(cell, tmp_path)
    assert first.rows == measure_coverage(cell, None).rows
    assert [row.setting for row in first.rows] == list(DISTORTIONS)
    stored = CellResult(cell, tuple(StoredRow(r.method, r.setting, r.values, None) for r in first.rows), 1, {}, 0.0, {})
    assert len(coverage_figures([stored])["interval-coverage"]().axes) == 2
    assert coverage_figures([]) == {}


def test_noise_that_hides_the_records_leaves_no_interval_limit() -> None:
    cell = small(CELLS["Beta(8, 1) n=624 noise=20"], 3)
    hidden = Cell(cell.label, 0, {**cell.settings, "records": 60})
    assert measure_coverage(hidden, None).rows[0].values["intervals"] == 0
