"""Cells are run once, kept when interrupted, and a failing one does not stop the others."""

import dataclasses
import io
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from fl_dpbayes import cli
from fl_dpbayes.config.errors import Stopped, UserError
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.run.reproduce.cell_file import cell_path, read_cell
from fl_dpbayes.run.reproduce.experiment import Cell, CellResult, Experiment, Measurement, Metric, Row
from fl_dpbayes.run.reproduce.registry import EXPERIMENTS
from fl_dpbayes.run.reproduce.reproduce import reproduce, run_experiment

HISTORY = (GaussianEvent(2.0, 0.1, 50),)
CALLS: list[tuple[str, int]] = []


def measure(cell: Cell, data_dir: Path | None) -> Measurement:
    CALLS.append((cell.label, cell.seed))
    if cell.settings.get("broken"):
        raise ArithmeticError("the chain ran away")
    value = cell.settings["value"] + cell.seed
    private = Row("DP", "eps", {"accuracy": value}, HISTORY, 1e-5)
    plain = Row("plain", "none", {"accuracy": value + 10, "undefined": None, "infinite": float("inf")})
    return Measurement((private, plain), configurations_tried=7, details={"curve": [1.0, 2.0]})


def cells(seed: int, full: bool) -> list[Cell]:
    return [Cell("a", seed, {"value": 2.0 if full else 1.0})]


EXPERIMENT = Experiment(
    name="made-up",
    title="Made-up table",
    source="nobody",
    metrics=(Metric("accuracy", "accuracy", 2),),
    cells=cells,
    measure=measure,
    paper={("DP", "eps"): {"accuracy": 0.5}},
    paper_epsilon={("DP", "eps"): 0.87},
)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def run(
    experiment: Experiment, folder: Path, *, full: bool = False, seeds: int | None = None, workers: int = 1
) -> tuple[bool, str, dict]:
    console = Console(file=io.StringIO(), width=160)
    finished = run_experiment(
        experiment, full=full, seeds=seeds, folder=folder, data_dir=None, workers=workers, console=console
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return finished, text, json.loads((folder / f"{experiment.name}.json").read_text())


def test_record_holds_mean_and_deviation_over_seeds_beside_the_paper(tmp_path: Path) -> None:
    finished, text, record = run(EXPERIMENT, tmp_path, seeds=3)
    assert finished
    private, plain = record["rows"]
    assert private["measured"]["accuracy"] == {"mean": 2.0, "standard_deviation": 1.0, "values": [1.0, 2.0, 3.0]}
    assert private["paper"] == {"accuracy": 0.5}
    assert private["seeds"] == [0, 1, 2]
    assert private["configurations_tried"] == 7
    assert plain["measured"]["undefined"]["mean"] is None
    assert plain["measured"]["infinite"]["mean"] == "inf"
    assert {"fl-dpbayes", "torch", "python"} <= record["versions"].keys()
    assert record["cells"][0]["settings"] == {"value": 1.0}
    assert "2.00±1.00" in text
    assert "paper 0.50" in text
    assert "7 configurations" in " ".join(text.split())


def test_epsilon_is_pld_beside_the_papers_accounting(tmp_path: Path) -> None:
    _, text, record = run(EXPERIMENT, tmp_path)
    private, plain = record["rows"]
    assert private["privacy"]["epsilon"]["pld"] == pytest.approx(pld_epsilon(HISTORY, 1e-5))
    by_limit = gdp_epsilon(gdp_mu(HISTORY).mu, 1e-5)
    assert private["privacy"]["epsilon_by_paper_accounting"] == pytest.approx(by_limit)
    assert private["privacy"]["history"] == [[2.0, 0.1, 50]]
    assert plain["privacy"] is None
    assert "paper 0.87" in text
    assert "by GDP" in text
    assert "none" in text


def test_a_second_run_takes_finished_cells_and_runs_what_is_missing(tmp_path: Path) -> None:
    run(EXPERIMENT, tmp_path, seeds=2)
    assert len(CALLS) == 2
    _, _, first = run(EXPERIMENT, tmp_path, seeds=2)
    assert len(CALLS) == 2
    _, text, second = run(EXPERIMENT, tmp_path, seeds=3)
    assert CALLS[2:] == [("a", 2)]
    assert "2 of 3 cells are already" in text
    assert second["cells"][:2] == first["cells"]


def test_other_settings_or_a_damaged_file_are_run_anew(tmp_path: Path) -> None:
    run(EXPERIMENT, tmp_path)
    run(EXPERIMENT, tmp_path, full=True, seeds=1)
    assert len(CALLS) == 2
    path = cell_path(tmp_path, "made-up", cells(0, False)[0])
    path.write_text(path.read_text()[:40])
    assert read_cell(path) is None
    _, text, _ = run(EXPERIMENT, tmp_path)
    assert len(CALLS) == 3
    assert f"{path} has no checksum or another one" in text.replace("\n", "")
    assert read_cell(path) is not None


def test_a_cell_whose_figure_was_edited_is_run_anew(tmp_path: Path) -> None:
    run(EXPERIMENT, tmp_path)
    path = cell_path(tmp_path, "made-up", cells(0, False)[0])
    text = path.read_text()
    path.write_text(text.replace('"seconds": ', '"seconds": 1'))
    assert path.read_text() != text
    assert read_cell(path) is None


def test_a_failing_cell_is_reported_and_the_others_are_kept(tmp_path: Path) -> None:
    def with_failure(seed: int, full: bool) -> list[Cell]:
        return [Cell("broken", seed, {"broken": True}), *cells(seed, full)]

    experiment = dataclasses.replace(EXPERIMENT, cells=with_failure)
    finished, text, record = run(experiment, tmp_path)
    assert not finished
    assert CALLS == [("broken", 0), ("a", 0)]
    assert "the chain ran away" in text
    assert record["failed"][0]["label"] == "broken"
    assert len(record["rows"]) == 2
    assert "ArithmeticError" in next((tmp_path / "cells").glob("broken*.error.txt")).read_text()
    run(experiment, tmp_path)
    assert CALLS[2:] == [("broken", 0)]


def test_an_interrupted_run_keeps_its_finished_cells(tmp_path: Path) -> None:
    def interrupted(cell: Cell, data_dir: Path | None) -> Measurement:
        if cell.seed == 1:
            raise KeyboardInterrupt
        return measure(cell, data_dir)

    with pytest.raises(Stopped, match="finished cells are kept"):
        run(dataclasses.replace(EXPERIMENT, measure=interrupted), tmp_path, seeds=2)
    run(EXPERIMENT, tmp_path, seeds=2)
    assert CALLS == [("a", 0), ("a", 1)]


@pytest.mark.slow
def test_two_processes_measure_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        import os

        from fl_dpbayes.run.reproduce.experiment import Measurement, Row

        def measure(cell, data_dir):
            if cell.seed == 3:
                raise ValueError("unlucky")
            return Measurement((Row("m", os.environ["OMP_NUM_THREADS"], {"accuracy": cell.seed / 8}),))
    """
    (tmp_path / "made_up_measure.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    import made_up_measure  # type: ignore[import-not-found]

    experiment = dataclasses.replace(EXPERIMENT, measure=made_up_measure.measure)
    finished, text, record = run(experiment, tmp_path / "two", seeds=4, workers=2)
    assert not finished
    assert "unlucky" in text
    _, _, one = run(experiment, tmp_path / "one", seeds=4, workers=1)
    assert [record["rows"][0]["setting"], one["rows"][0]["setting"]] == ["1", "2"]
    assert record["rows"][0]["measured"] == one["rows"][0]["measured"]
    assert record["rows"][0]["measured"]["accuracy"]["values"] == [0.0, 0.125, 0.25]
    monkeypatch.delitem(sys.modules, "made_up_measure")


def test_figures_are_written_as_vectors_and_pixels_with_equal_bytes(tmp_path: Path) -> None:
    def figures(results: Sequence[CellResult]) -> dict:
        def draw() -> Figure:
            figure = Figure(figsize=(2, 1))
            figure.add_subplot().plot(results[0].details["curve"])
            return figure

        return {"made-up-curve": draw}

    experiment = dataclasses.replace(EXPERIMENT, figures=figures)
    contents = []
    for name in ("first", "second"):
        run(experiment, tmp_path / name)
        contents.append([(tmp_path / name / f"made-up-curve.{kind}").read_bytes() for kind in ("svg", "png")])
    assert contents[0] == contents[1]
    assert b"<svg" in contents[0][0]


def test_a_history_without_delta_is_refused(tmp_path: Path) -> None:
    def without_delta(cell: Cell, data_dir: Path | None) -> Measurement:
        return Measurement((Row("DP", "eps", {}, HISTORY),))

    _, text, _ = run(dataclasses.replace(EXPERIMENT, measure=without_delta), tmp_path)
    assert "delta" in text


def test_missing_data_stop_before_any_cell(tmp_path: Path) -> None:
    def needs_data(folder: Path | None) -> None:
        raise UserError("give --data-dir")

    with pytest.raises(UserError, match="--data-dir"):
        run(dataclasses.replace(EXPERIMENT, check_data=needs_data), tmp_path)
    assert not CALLS


def test_an_unknown_name_lists_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="closer-logistic"):
        reproduce(
            "nowhere", full=False, seeds=1, folder=tmp_path, data_dir=None, workers=1, console=Console(quiet=True)
        )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_registered_experiments_have_unique_cells_that_json_can_hold(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.name == name
    for full in (False, True):
        paths = [cell_path(tmp_path, name, cell) for seed in (0, 1) for cell in experiment.cells(seed, full)]
        assert len(set(paths)) == len(paths)
    assert {metric for values in experiment.paper.values() for metric in values} <= {m.name for m in experiment.metrics}


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [(["nowhere"], 2, "closer-logistic"), (["closer-logistic", "--seeds", "0"], 2, "--seeds")],
)
def test_command_line_mistakes_are_told_in_one_line(
    arguments: list[str], status: int, says: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fl-dpbayes", "reproduce", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == status
    assert says in capsys.readouterr().err


def test_the_command_ends_with_status_1_if_a_cell_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(seed: int, full: bool) -> list[Cell]:
        return [Cell("broken", seed, {"broken": True})]

    names = {"made-up": EXPERIMENT, "broken": dataclasses.replace(EXPERIMENT, cells=broken)}
    monkeypatch.setattr("fl_dpbayes.run.reproduce.reproduce.EXPERIMENTS", names)
    for name, status in (("made-up", 0), ("broken", 1)):
        monkeypatch.setattr(sys, "argv", ["fl-dpbayes", "reproduce", name, "--out", str(tmp_path), "--workers", "1"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == status
    assert "the chain ran away" in " ".join(capsys.readouterr().out.split())


def test_page_shows_the_paper_beside_every_measured_value(tmp_path: Path) -> None:
    run(EXPERIMENT, tmp_path, seeds=3)
    page = (tmp_path / "made-up.md").read_text(encoding="utf-8")
    assert page.startswith("# Made-up table\n")
    assert "2.00±1.00<br>paper 0.50" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
