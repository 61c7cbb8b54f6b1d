"""A paper's table is a study: its file names cells and columns that exist, and its values stand beside ours."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w

from fl_dpbayes.config.scenario import Scenario, scenario_folder
from fl_dpbayes.config.study_file import load_study, shipped_papers, study_of
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
    assert (len({cell.scenario.seed for cell in cells}) > 1) == full
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
