"""The tables of a study on made-up summaries: tidy rows, and paired differences that can be checked by hand."""

import copy
import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy.stats import t as student

from fl_dpbayes.config.scenario import scenario_folder
from fl_dpbayes.config.study_file import Study, study_of
from fl_dpbayes.files.atomic_file import read_sealed_json, write_sealed_json
from fl_dpbayes.study.cell import CellOutcome, finished_cell, keep_outcome
from fl_dpbayes.study.differences import differences_table
from fl_dpbayes.study.grid import study_cells
from fl_dpbayes.study.table import (
    further_table,
    reliability_table,
    result_table,
    write_tables,
)
from tests.engine.test_simulate import SUMMARY

BASE = tomllib.loads((scenario_folder() / "digits.toml").read_text(encoding="utf-8"))
ECE = {  # method -> alpha -> seed -> value
    "fald": {9.0: {1: 0.10, 2: 0.12, 3: 0.11}, 0.5: {1: 0.20, 2: 0.24, 3: 0.22}},
    "mixture": {9.0: {1: 0.11, 2: 0.15, 3: 0.16}, 0.5: {1: 0.23, 2: 0.29, 3: None}},
}


@pytest.fixture
def made() -> tuple[Study, list[CellOutcome]]:
    content: dict[str, Any] = {
        **copy.deepcopy(BASE),
        "study": {
            "compare": ["aggregation.rule", "predictor"],
            "metrics": ["ece"],
            "shifted_copy_of": "held-out",
        },
        "axes": {
            "aggregation": {"rule": ["fald", "mixture"]},
            "partition": {"alpha": [9.0, 0.5]},
            "seed": [1, 2, 3],
            "shift": {"kind": ["contrast"], "severity": [2]},
        },
    }
    study = study_of(content, "study")
    cells = []
    for cell in study_cells(study):
        labels = cell.labels
        value = ECE[labels["aggregation.rule"]][labels["partition.alpha"]][labels["seed"]]
        rows = [
            {
                "site": site,
                "role": role,
                "predictor": predictor,
                "n": 9,
                "ece": None if value is None else value + 0.5 * (predictor == "last"),
                "intervals": {"accuracy": [0.1, 0.2], "nll": None},
                "parts": {"a": 1.5},
                "bins": [1, 2],
                "auroc": 0.7,
                "auroc_bounds": [0.6, 0.8],
                "rms_true": None,
            }
            for site, role in (
                ("pooled:held_out", "held_out"),
                ("contrast-2", "shifted"),
                ("north", "train"),
            )
            for predictor in ("last", "posterior")
        ]
        summary = SUMMARY | {
            "privacy": [
                {"site": "a", "epsilon": 1.0, "recalibration_epsilon": 2.5},
                {"site": "b", "epsilon": 2.0},
            ],
            "calibration": rows,
            "seed": labels["seed"],
            "warnings": ["one"],
            "heterogeneity": 0.3,
            "conformal": [
                {
                    "site": "contrast-2",
                    "role": "shifted",
                    "predictor": "posterior",
                    "level": 0.9,
                    "weights": "none",
                    "interval": [0.8, 0.9],
                    "coverage": 0.85,
                }
            ],
            "shift_detection": [
                {
                    "site": "contrast-2",
                    "predictor": "posterior",
                    "measure": "total",
                    "auroc": 0.5,
                    "low": 0.4,
                    "high": 0.6,
                    "interval": [0.3, 0.7],
                }
            ],
        }
        cells.append(CellOutcome(cell, 4.0, summary))
    return study, cells


def test_results_have_one_tidy_row_per_cell_place_and_predictor(tmp_path: Path, made) -> None:
    study, cells = made
    write_tables(result_table(study, cells), tmp_path / "results")
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert len(table) == len(cells) * 3 * 2 == len(pd.read_csv(tmp_path / "results.csv"))
    first = "cell aggregation.rule partition.alpha seed site role shift severity predictor"
    assert list(table.columns[:9]) == first.split()
    shifted = table[table["site"] == "contrast-2"]
    assert (set(shifted["shift"]), set(shifted["severity"])) == ({"contrast"}, {2})
    assert table[table["site"] != "contrast-2"]["severity"].isna().all()
    row = table.iloc[0]
    assert (row["epsilon"], row["heterogeneity"], row["seconds"], row["warnings"]) == (
        2.5,
        0.3,
        4.0,
        1,
    )
    assert (row["accuracy_low"], row["accuracy_high"], row["parts_a"]) == (0.1, 0.2, 1.5)
    assert (row["auroc_low"], row["auroc_high"]) == (0.6, 0.8)
    # What is no number, and what no row defines.
    assert not {"bins", "rms_true"} & set(table.columns)


@pytest.mark.parametrize(
    "edit",
    [
        {"calibration": None},
        {"calibration": [{"site": 1}]},
        {"subgroups": "no rows"},
        {"shift_detection": [{"site": ["a"]}]},
        {"shift_detection": [{"site": "a", "interval": 3}]},
        {"subgroups": [{"site": "a", "intervals": {"nll": [1]}}]},
        {"subgroups": [{"site": "a", "intervals": [1]}]},
        None,
    ],
)
def test_a_cell_that_was_edited_is_run_again(
    tmp_path: Path, made, edit: dict[str, Any] | None
) -> None:
    cell, summary = made[1][0].cell, made[1][0].summary
    path = tmp_path / "cells" / f"{cell.digest}.json"
    path.parent.mkdir()
    keep_outcome(tmp_path, CellOutcome(cell, 1.0, summary))
    assert finished_cell(tmp_path, cell) is not None
    if edit is not None:
        content = read_sealed_json(path)
        write_sealed_json(path, content | {"summary": content["summary"] | edit})
    else:
        # Sound in itself, but not what was sealed; and then with no seal at all.
        content = json.loads(path.read_text())
        content["summary"]["calibration"][0]["accuracy"] = 0.99
        path.write_text(json.dumps(content))
        assert finished_cell(tmp_path, cell) is None
        del content["checksum"]
        path.write_text(json.dumps(content))
    assert finished_cell(tmp_path, cell) is None
    path.write_text("[" * 100_000)
    assert finished_cell(tmp_path, cell) is None


def test_further_lists_become_tables_of_their_own(made) -> None:
    study, cells = made
    table = further_table(study, cells, "conformal")
    assert len(table) == len(cells)
    assert table[["shift", "low", "coverage"]].drop_duplicates().to_numpy().tolist() == [
        ["contrast", 0.8, 0.85]
    ]
    detection = further_table(study, cells, "shift_detection")[
        ["low", "high", "interval_low", "interval_high"]
    ]
    assert detection.drop_duplicates().to_numpy().tolist() == [[0.4, 0.6, 0.3, 0.7]]
    assert further_table(study, cells, "subgroups").empty


def test_the_bins_of_diagrams_at_the_studys_place_become_a_table(made) -> None:
    study, cells = made
    empty = {"low": 0.0, "high": 0.5, "n": 0, "confidence": None, "accuracy": None}
    full = {"low": 0.5, "high": 1.0, "n": 4, "confidence": 0.8, "accuracy": 0.75}
    diagrams = [
        {"site": site, "role": "held_out", "predictor": "last", "bins": [empty, full]}
        for site in ("pooled:held_out", "north")
    ]
    first = cells[0]._replace(summary=cells[0].summary | {"reliability": diagrams})
    table = reliability_table(study, [first, cells[1]._replace(summary=SUMMARY)])
    assert set(table["site"]) == {"pooled:held_out"}
    assert set(table["cell"]) == {first.cell.digest}
    assert table["aggregation.rule"].tolist() == ["fald", "fald"]
    assert table["n"].tolist() == [0, 4]
    assert table["confidence"].tolist()[1] == 0.8


def test_a_site_alone_in_its_role_has_the_diagrams_that_are_pooled_over_it(made) -> None:
    study, cells = made
    at_site = replace(study, section=study.section.model_copy(update={"where": "held-out"}))
    full = {"low": 0.5, "high": 1.0, "n": 4, "confidence": 0.8, "accuracy": 0.75}
    diagrams = [
        {"site": site, "role": "held_out", "predictor": predictor, "bins": [full]}
        for site, predictor in (
            ("pooled:held_out", "last"),
            ("pooled:held_out", "posterior"),
            ("held-out", "posterior"),
        )
    ]
    cell = cells[0]._replace(summary=cells[0].summary | {"reliability": diagrams})
    table = reliability_table(at_site, [cell])
    assert table["predictor"].tolist() == ["last", "posterior"]
    assert set(table["site"]) == {"held-out"}


def test_differences_pair_seeds_and_average_within_them(made) -> None:
    study, cells = made
    table = differences_table(study, result_table(study, cells))
    assert "north" not in set(table["site"])
    here = table[(table["site"] == "pooled:held_out") & (table["compared"] == "aggregation.rule")]
    here = here[here["predictor"] == "posterior"].set_index(["over", "partition.alpha"])
    # .01, .03, .05 by hand: mean .03, standard deviation .02.
    shown = ["mean", "low", "high", "pairs"]
    half = student.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    assert here.loc[("setting", 9.0), shown].tolist() == pytest.approx(
        [0.03, 0.03 - half, 0.03 + half, 3]
    )
    # The undefined value of seed 3 leaves .03 and .05.
    assert here.loc[("setting", 0.5), ["mean", "pairs"]].tolist() == pytest.approx([0.04, 2])
    # Seeds 1 and 2 have both settings: (.01 + .03) / 2 and (.03 + .05) / 2.
    half = student.ppf(0.975, 1) * 0.02 / math.sqrt(2) / math.sqrt(2)
    assert here.loc[("all", "all"), shown].tolist() == pytest.approx(
        [0.03, 0.03 - half, 0.03 + half, 2]
    )


def test_predictors_are_compared_with_the_point_estimate_and_one_seed_has_no_interval(made) -> None:
    study, cells = made
    cells = [cell for cell in cells if cell.cell.labels["seed"] == 1]
    table = differences_table(study, result_table(study, cells))
    assert set(table["pairs"]) == {1}
    assert table["low"].isna().all()
    table = table[table["compared"] == "predictor"]
    assert set(zip(table["method"], table["baseline"], strict=True)) == {("posterior", "last")}
    assert table["mean"].tolist() == pytest.approx([-0.5] * len(table))
    assert set(table["aggregation.rule"]) == {"fald", "mixture", "all"}


def test_a_study_of_which_nothing_finished_has_empty_tables(tmp_path: Path, made) -> None:
    study, _ = made
    results = result_table(study, [])
    for name, table in (("results", results), ("differences", differences_table(study, results))):
        assert table.empty
        write_tables(table, tmp_path / name)
        assert (tmp_path / f"{name}.parquet").is_file()
