"""A study file becomes cells: axes, variants, shifts; and what a user meets who errs."""

import copy
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fl_dpbayes.config.scenario import load_scenario, scenario_folder, shipped_scenarios
from fl_dpbayes.config.study_file import (
    load_study,
    same_study,
    shipped_studies,
    study_of,
    write_study,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.study.grid import StudyCell, study_cells

BASE = tomllib.loads((scenario_folder() / "digits.toml").read_text(encoding="utf-8"))


def study(**tables: Any) -> Any:
    return study_of({**copy.deepcopy(BASE), **tables}, "study")


def cells_of(**tables: Any) -> list[StudyCell]:
    return study_cells(study(**tables))


def test_grid_is_the_product_of_the_axes_with_their_labels_in_the_order_of_records() -> None:
    alphas, budgets = [100.0, 0.5], [1.0, 2.0]
    cells = cells_of(axes={"privacy": {"epsilon": budgets}, "partition": {"alpha": alphas}})
    found = [(cell.scenario.partition.alpha, cell.scenario.privacy.epsilon) for cell in cells]
    # Those that share records follow each other.
    assert found == [(alpha, epsilon) for alpha in alphas for epsilon in budgets]
    assert found == [
        (cell.labels["partition.alpha"], cell.labels["privacy.epsilon"]) for cell in cells
    ]
    assert len({cell.digest for cell in cells}) == 4


def test_a_table_replaces_its_section_and_a_key_under_it_comes_after() -> None:
    prior = {"kind": "gaussian", "scale": 1.0}
    sgld = {"kind": "dp-sgld", "step_size": {"kind": "constant", "initial": 0.5}, "prior": prior}
    samplers = [
        sgld,
        sgld | {"prior": prior | {"scale": 3.0}},
        sgld | {"label": "point", "kind": "dp-sgd"},
    ]
    axes = {"sampler": samplers, "training": {"burn_in": [50]}}
    cells = cells_of(axes=axes)
    assert [cell.labels["sampler"] for cell in cells] == ["dp-sgld", "dp-sgld (2)", "point"]
    assert [cell.scenario.sampler.kind for cell in cells] == ["dp-sgld", "dp-sgld", "dp-sgd"]
    later = cells_of(axes={"sampler.step_size.initial": [7.0], **axes})
    assert {cell.scenario.sampler.step_size.initial for cell in later} == {7.0}


def test_an_empty_table_removes_a_section_and_a_rule_drops_keys_of_others() -> None:
    some = {"epsilon": 1.0, "rounds": 1, "steps": 5, "fraction": 0.2}
    cells = cells_of(axes={"recalibration": [{"label": "none"}, {"label": "scaled", **some}]})
    assert [cell.scenario.recalibration is None for cell in cells] == [True, False]
    assert [cell.labels["recalibration"] for cell in cells] == ["none", "scaled"]
    kinds = cells_of(axes={"partition": {"kind": ["iid", "dirichlet"]}})
    assert [cell.scenario.partition.kind for cell in kinds] == ["iid", "dirichlet"]


def test_a_seed_axis_moves_the_insecure_seed_only_where_the_file_has_one() -> None:
    for simulation, expected in (({}, [None, None]), ({"insecure_seed": 1}, [5, 6])):
        scenarios = [
            cell.scenario for cell in cells_of(axes={"seed": [5, 6]}, simulation=simulation)
        ]
        assert [scenario.seed for scenario in scenarios] == [5, 6]
        assert [scenario.simulation.insecure_seed for scenario in scenarios] == expected


def test_a_variant_changes_several_keys_at_once() -> None:
    north = {"sites.north": {"role": "held_out", "records": 100}}
    east = {"sites": {"east": {"role": "held_out", "records": 100}}}
    for cell in cells_of(variants={"left_out": {"north": north, "east": east}}):
        left_out = cell.scenario.sites[cell.labels["left_out"]]
        assert (left_out.role, left_out.records) == ("held_out", 100)
        assert sum(site.role == "train" for site in cell.scenario.sites.values()) == 3


def test_shift_axes_give_every_run_copies_of_one_site() -> None:
    axes = {"shift": {"kind": ["contrast", "rotation"], "severity": [1, 5]}, "seed": [1, 2]}
    cells = cells_of(axes=axes, study={"shifted_copy_of": "held-out"})
    assert len(cells) == 2
    for cell, kind, severity in product(cells, ("contrast", "rotation"), (1, 5)):
        assert "shift.kind" not in cell.labels
        site = cell.scenario.sites[f"{kind}-{severity}"]
        assert (site.role, site.records_of) == ("shifted", "held-out")
        assert (site.shift.kind, site.shift.severity) == (kind, severity)


def test_the_digest_follows_the_scenario_but_not_where_its_data_lie() -> None:
    def digests(folder: str = "", **tables: Any) -> list[str]:
        data = (
            {**BASE["data"], "source": {"kind": "digits", "folder": folder}}
            if folder
            else BASE["data"]
        )
        return [cell.digest for cell in cells_of(axes={"seed": [1, 2]}, data=data, **tables)]

    first = digests()
    assert digests("elsewhere") == digests("there/elsewhere")
    assert digests(resources={"threads_per_site": 2}) == first
    assert not set(digests(privacy={**BASE["privacy"], "epsilon": 3.0})) & set(first)


def test_the_resolved_file_is_the_same_study_in_the_same_order(tmp_path: Path) -> None:
    axes = {"sampler": [BASE["sampler"]], "partition": {"alpha": [1.0, 2.0]}, "seed": [1, 2]}
    before = study(axes=axes, name="x", study={"compare": ["partition.alpha"]})
    write_study(before, tmp_path / "study.toml")
    after = load_study(str(tmp_path / "study.toml"))
    assert same_study(before, after)
    assert [axis.name for axis in after.axes] == ["sampler", "partition.alpha", "seed"]
    assert [cell.digest for cell in study_cells(after)] == [
        cell.digest for cell in study_cells(before)
    ]
    assert not same_study(
        before, study(axes={**axes, "seed": [1]}, study={"compare": ["partition.alpha"]})
    )


TWO = {"partition": {"alpha": [1.0, 0.5]}, "privacy.epsilon": [1.0]}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({}, "no axes"),
        ({"axes": {"seed": 3}}, "must be a list"),
        ({"axes": {"seed": []}}, "must be a list"),
        ({"axes": {"seed": [1, 1]}}, "holds 1 twice"),
        ({"axes": {"seed": ["one"]}}, "cell (seed one)"),
        ({"axes": {"partition": {"alhpa": [1]}}}, "did you mean 'alpha'"),
        ({"axes": {"name": {"x": [1]}}}, "'name' is a value"),
        ({"axes": {"seed": [1, 2]}, "study": {"compare": ["sampler"]}}, "choose among predictor"),
        ({"axes": {"seed": [1, 2]}, "study": {"metrics": ["ecce"]}}, "rms_debiased"),
        ({"axes": {"seed": [1, 2]}, "study": {"metric": ["ece"]}}, "did you mean 'metrics'"),
        ({"axes": {"seed": [1, 2]}, "study": {"order": ["site"]}}, "list each axis once: seed"),
        ({"axes": {"shift": {"severity": [1]}}}, "needs axes.shift.kind"),
        ({"axes": {"shift": {"kind": ["contrast"]}}}, "shifted_copy_of is missing"),
        ({"variants": {"site": {"a": {}}}}, "choose a name"),
        ({"variants": {"who": {"a": 3}}}, "must be a table of overrides"),
        (
            {"axes": {"seed": list(range(101)), "privacy": {"epsilon": list(range(1, 101))}}},
            "at most 10000",
        ),
        ({"name": "../elsewhere", "axes": {"name": ["a", "b"]}}, "name is '../elsewhere'"),
        ({"axes": {"seed": list(range(100_000))}}, "at most 1000"),
        ({"variants": {"who": {"\x1b[2J": {"seed": 1}}}}, "printable characters"),
        ({"variants": {"who": {"=1+1": {"seed": 1}}}}, "printable characters"),
        ({"axes": {"resources": {"threads_per_site": [1, 2]}}}, "are the same scenario"),
        ({"printed": {"seed": 3, "ece": 0.1}}, "paper.values has seed = 3: choose 1, 2"),
        (
            {"printed": {"predictor": "best", "ece": 0.1}},
            "predictor = 'best': choose last, posterior",
        ),
        (
            {"printed": {"seed": 1, "eec": 0.1}},
            "eec = 0.1: it must be an axis (seed, predictor), site, or a number of",
        ),
        ({"printed": {"ece": "small"}}, "ece = 'small'"),
        ({"axes": TWO, "study": {"focus": {"partition.alpha": 7.0}}}, "choose 1.0, 0.5"),
        ({"axes": TWO, "study": {"focus": {"nothing": 1}}}, "choose an axis among partition.alpha"),
        (
            {"axes": TWO, "study": {"baseline": {"partition.alpha": 3.0}}},
            "study.baseline has partition.alpha = 3.0: choose 1.0, 0.5",
        ),
        (
            {"axes": TWO, "study": {"baseline": {"predictor": "mode"}}},
            "study.baseline has predictor = 'mode': choose last, posterior",
        ),
        (
            {"axes": TWO, "study": {"separate": ["partition.alpha"]}},
            "study.separate names 'partition.alpha': it needs study.baseline",
        ),
        (
            {
                "axes": TWO,
                "study": {"baseline": {"partition.alpha": 0.5}, "separate": ["partition.alpha"]},
            },
            "study.separate names 'partition.alpha': choose among privacy.epsilon",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_remedy(tables: dict[str, Any], said: str) -> None:
    if "printed" in tables:
        tables = {"axes": {"seed": [1, 2]}, "paper": {"source": "p", "values": [tables["printed"]]}}
    with pytest.raises(UserError) as error:
        study_cells(study(**tables))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_scenarios_and_studies_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal
) -> None:
    (tmp_path / "study-mine.toml").write_text("[axes]\nseed = [1]\n")
    (tmp_path / "digits.toml").write_text((scenario_folder() / "digits.toml").read_text())
    monkeypatch.setattr("fl_dpbayes.config.scenario.scenario_folder", lambda: tmp_path)
    assert shipped_scenarios() == ["digits"]
    assert [axis.name for axis in load_study("mine").axes] == [
        axis.name for axis in load_study("study-mine").axes
    ]
    with pytest.raises(UserError, match="fl-dpbayes study study-mine"):
        load_scenario("study-mine")
    assert "no study 'other': choose one of study-mine" in refusal("study", "other")


@pytest.mark.slow
def test_every_shipped_study_is_valid() -> None:
    for name in shipped_studies():
        study = load_study(name)
        assert study.name == name
        assert study.section.question
        assert len(study_cells(study)) >= 10
